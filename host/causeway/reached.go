//go:build faults

package main

import (
	"os"
	"path/filepath"
	"time"
)

// reachedEnv names a folder: a part of a session's move whose name is a file there, PART.stop, says PART.at and waits until the first file has gone.
const reachedEnv = "CAUSEWAY_STOP_AT"

// reached holds moves up where scripts/migrate.sh wants to kill somebody.
func reached() func(part string) {
	dir := os.Getenv(reachedEnv)
	return func(part string) {
		stop, at := filepath.Join(dir, part+".stop"), filepath.Join(dir, part+".at")
		for {
			if _, err := os.Lstat(stop); err != nil {
				return
			}
			if err := os.WriteFile(at, nil, 0o600); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
