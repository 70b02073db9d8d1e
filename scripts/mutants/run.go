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
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// goRunner runs packages' tests over overlays, also several at a time.
type goRunner struct {
	dir  string
	only string // a pattern of the tests that have a say; empty: all
	mu   sync.Mutex
	as   map[string]func() asIs // of packages, found out once
}

// asIs is what a package's tests say without a change.
type asIs struct {
	failing string        // a pattern of those that fail: they notice nothing
	able    bool          // whether they end at all
	took    time.Duration // all of them
}

// goRunnerOf makes runners of tests that match a pattern; empty: of all.
func goRunnerOf(only string) func(context.Context, []area, int) (runner, error) {
	return func(context.Context, []area, int) (runner, error) {
		dir, err := os.MkdirTemp("", "mutants-")
		return &goRunner{dir: dir, only: only, as: map[string]func() asIs{}}, err
	}
}

func (r *goRunner) close() { _ = os.RemoveAll(r.dir) }

func (r *goRunner) run(ctx context.Context, m mutant, limit time.Duration) (verdict, string, error) {
	real, err := filepath.Abs(m.file)
	if err != nil {
		return 0, "", err
	}
	dir := filepath.Join(r.dir, m.name)
	copied, overlay, program := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "test")
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{real: copied}})
	defer os.RemoveAll(dir)
	if err := errors.Join(err, os.Mkdir(dir, 0o700), os.WriteFile(copied, m.text(), 0o600), os.WriteFile(overlay, b, 0o600)); err != nil {
		return 0, "", err
	}
	pkg := filepath.Dir(m.file)
	is := r.asIs(ctx, pkg, limit)
	if !is.able {
		return unable, "", nil
	}
	limit = min(limit, 4*is.took+20*time.Second)
	if _, ok := r.build(ctx, pkg, program, "-overlay", overlay); !ok {
		return broken, "", nil
	}
	tests := func(more ...string) (verdict, string) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return judged(r.tests(ctx, pkg, program, append([]string{"-test.failfast"}, more...)...))
	}
	v, by := tests("-test.skip", "^("+is.failing+")$")
	for range 2 { // a test that fails now and then, on a busy machine, has noticed nothing
		if v != killed || !strings.HasPrefix(by, "Test") && !strings.HasPrefix(by, "Fuzz") {
			break
		}
		if again, _ := tests("-test.run", "^"+by+"$"); again == killed {
			break
		}
		v, by = tests("-test.skip", "^("+is.failing+"|"+by+")$")
	}
	return v, by, nil
}

func (r *goRunner) build(ctx context.Context, pkg, program string, more ...string) ([]byte, bool) {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-trimpath", "-o", program}, more...)
	return ends(exec.CommandContext(ctx, "go", append(args, "./"+filepath.ToSlash(pkg))...))
}

func (r *goRunner) tests(ctx context.Context, pkg, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-test.paniconexit0", "-test.timeout=10m", "-test.run=" + r.only}, args...)...)
	cmd.Dir = pkg
	return cmd
}

// asIs finds out once which tests of a package fail as they are, where something is missing that
// they need, and whether they can say anything.
func (r *goRunner) asIs(ctx context.Context, pkg string, limit time.Duration) asIs {
	r.mu.Lock()
	is := r.as[pkg]
	if is == nil {
		program := filepath.Join(r.dir, fmt.Sprint("plain", len(r.as)))
		is = sync.OnceValue(func() asIs { return r.findOut(ctx, pkg, program, limit) })
		r.as[pkg] = is
	}
	r.mu.Unlock()
	return is()
}

func (r *goRunner) findOut(ctx context.Context, pkg, program string, limit time.Duration) (is asIs) {
	defer os.Remove(program)
	said, ok := r.build(ctx, pkg, program)
	var list []string
	if ok {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		began := time.Now()
		if said, ok = ends(r.tests(ctx, pkg, program)); !ok {
			for _, f := range failed.FindAllSubmatch(said, -1) {
				list = append(list, string(f[1]))
			}
			ok = len(list) > 0 && !bytes.Contains(said, []byte("\npanic: "))
		}
		is.took = time.Since(began)
	}
	if !ok && ctx.Err() == nil {
		fmt.Printf("the tests of %s do not end as they are: %s\n", pkg, said[max(0, len(said)-2000):])
	} else if len(list) > 0 {
		fmt.Printf("of %s fail as they are: %s\n", pkg, strings.Join(list, " "))
	}
	is.failing, is.able = strings.Join(list, "|"), ok
	return is
}

// failed finds the tests of Go that failed.
var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// unended is what noticed a change that keeps the tests from ending, or ends them without a word.
const unended = "not ended in time, or by a signal"

// judged is a verdict by how the tests end, and what noticed it.
func judged(cmd *exec.Cmd) (verdict, string) {
	said, ok := ends(cmd)
	if ok {
		return survived, ""
	}
	if by := noticed.FindSubmatch(said); by != nil {
		return killed, string(bytes.Join(by[1:], nil))
	}
	return killed, unended
}

// noticed finds the first test that failed in what one of Go, or one of C, said.
var noticed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^(panic: .*)|^(fatal error: .*)|^(\S+\.[ch]:\d+): failed|^(SUMMARY: .*)`)

// ends runs a command, whose children end with it, and reports what it said and whether it ended
// well.
func ends(cmd *exec.Cmd) ([]byte, bool) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	said, err := cmd.CombinedOutput()
	return said, err == nil
}
