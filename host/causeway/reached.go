//go:build faults

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// reachedEnv names a folder: a part of a session's move whose name is a file there, PART.stop, says
// PART.at and waits until the first file has gone. A number in that is of those that pass before
// one waits.
const reachedEnv = "CAUSEWAY_STOP_AT"

// reached holds moves up where scripts/migrate.sh wants to kill somebody.
func reached() func(part string) {
	dir := os.Getenv(reachedEnv)
	return func(part string) {
		stop, at := filepath.Join(dir, part+".stop"), filepath.Join(dir, part+".at")
		if b, err := os.ReadFile(stop); err == nil {
			if n, err := strconv.Atoi(string(bytes.TrimSpace(b))); err == nil && n > 0 && os.WriteFile(stop, []byte(strconv.Itoa(n-1)), 0o600) == nil {
				return
			}
		}
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
