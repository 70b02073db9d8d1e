package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// goRunner runs a package's tests over an overlay.
type goRunner struct{ dir string }

func newGoRunner() (runner, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	return &goRunner{dir}, err
}

func (r *goRunner) close() { _ = os.RemoveAll(r.dir) }

func (r *goRunner) run(ctx context.Context, m mutant, limit time.Duration) (verdict, error) {
	real, err := filepath.Abs(m.file)
	if err != nil {
		return 0, err
	}
	copied, overlay, program := filepath.Join(r.dir, filepath.Base(m.file)), filepath.Join(r.dir, "overlay.json"), filepath.Join(r.dir, "test")
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{real: copied}})
	if err := errors.Join(err, os.WriteFile(copied, m.text, 0o600), os.WriteFile(overlay, b, 0o600)); err != nil {
		return 0, err
	}
	pkg := filepath.Dir(m.file)
	if !ends(exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, "./"+filepath.ToSlash(pkg))) {
		return broken, nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.failfast", "-test.paniconexit0", "-test.timeout=10m")
	cmd.Dir = pkg
	return judged(cmd), nil
}

// judged is a verdict by how the tests end.
func judged(cmd *exec.Cmd) verdict {
	if ends(cmd) {
		return survived
	}
	return killed
}

// ends reports whether a command ends well. What it started ends with it.
func ends(cmd *exec.Cmd) bool {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil && os.Getenv("MUTANTS_SHOW") != "" {
		fmt.Fprintf(os.Stderr, "%s\n", out.Bytes())
	}
	return err == nil
}

// cRunner runs the session layer's tests in a copy of guest/.
type cRunner struct{ dir string }

func newCRunner() (runner, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	r := &cRunner{dir}
	if out, err := exec.Command("cp", "-a", "guest", filepath.Join(dir, "guest")).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy guest/: %w: %s", err, out)
	}
	if ctx := context.Background(); !ends(r.make(ctx, r.programs()...)) || !ends(r.make(ctx, r.tests()...)) {
		return nil, errors.New("the tests of guest/libcuda/session fail as they are")
	}
	return r, nil
}

func (r *cRunner) close() { _ = os.RemoveAll(r.dir) }

func (r *cRunner) make(ctx context.Context, what ...string) *exec.Cmd {
	args := []string{"--no-print-directory", "-C", filepath.Join(r.dir, "guest", "libcuda"), "OUT=" + filepath.Join(r.dir, "lib"), "TEST_OUT=" + filepath.Join(r.dir, "tests"), "CFLAGS_=" + cFlags}
	return exec.CommandContext(ctx, "make", append(args, what...)...)
}

// cFlags are the Makefile's without errors for what a change leaves unused.
const cFlags = "-std=c11 -O2 -g -fPIC -fvisibility=hidden -MMD -MP"

func (r *cRunner) targets(suffix string) (list []string) {
	found, _ := filepath.Glob("guest/libcuda/session/tests/*_test.c")
	for _, f := range found {
		list = append(list, filepath.Join(r.dir, "tests", "session", "tests", strings.TrimSuffix(filepath.Base(f), ".c")+suffix))
	}
	return list
}

func (r *cRunner) programs() []string { return append(r.targets(".plain"), r.targets(".san")...) }
func (r *cRunner) tests() []string    { return r.targets(".ran") }

func (r *cRunner) run(ctx context.Context, m mutant, limit time.Duration) (v verdict, err error) {
	where := filepath.Join(r.dir, m.file)
	was, err := os.ReadFile(where)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(where, m.text, 0o600); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.WriteFile(where, was, 0o600)) }()
	if !ends(r.make(ctx, r.programs()...)) {
		return broken, nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return judged(r.make(ctx, r.tests()...)), nil
}
