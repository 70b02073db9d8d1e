package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"runtime/trace"
)

// Folders in which every worker leaves a profile of its CPU time, for `go tool pprof`, and what its
// goroutines did when and who woke whom, for `go tool trace`.
const (
	profileEnv = "CAUSEWAY_PROFILE"
	traceEnv   = "CAUSEWAY_TRACE"
)

// profiles begins what the environment asks for of this process; stop ends it.
func profiles() (stop func() error, err error) {
	stopProfile, err := profile(profileEnv, "pprof", pprof.StartCPUProfile, pprof.StopCPUProfile)
	if err != nil {
		return nil, err
	}
	stopTrace, err := profile(traceEnv, "trace", trace.Start, trace.Stop)
	if err != nil {
		return nil, errors.Join(err, stopProfile())
	}
	return func() error { return errors.Join(stopProfile(), stopTrace()) }, nil
}

func profile(env, ending string, start func(io.Writer) error, stop func()) (func() error, error) {
	dir := os.Getenv(env)
	if dir == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("worker-%d.%s", os.Getpid(), ending)))
	if err == nil {
		if err = start(f); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", env, err)
	}
	return func() error {
		stop()
		return f.Close()
	}, nil
}
