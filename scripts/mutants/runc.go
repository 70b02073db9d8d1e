package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// cRunner runs the tests that areas of C name, each mutant in a workspace that it has to itself.
type cRunner struct {
	dir    string
	spaces chan string       // those that are free
	as     map[string]cTests // of areas
}

// cTests are the programs of an area's tests that pass as they are, in a workspace.
type cTests struct {
	programs []string
	took     time.Duration // all of them
}

// newCRunner builds the areas' tests, finds out which of them pass as they are, and has a workspace
// for each job.
func newCRunner(ctx context.Context, areas []area, jobs int) (runner, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	r := &cRunner{dir, make(chan string, jobs), map[string]cTests{}}
	first := filepath.Join(dir, "0")
	if err = errors.Join(err, copyInto(ctx, first, "guest", "remote")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	for _, a := range areas {
		if r.as[a.name] = r.findOut(ctx, first, a, jobs); len(r.as[a.name].programs) == 0 && ctx.Err() == nil {
			return nil, errors.Join(fmt.Errorf("no test of %s passes as it is", a.name), os.RemoveAll(dir))
		}
	}
	r.spaces <- first
	for i := 1; i < jobs; i++ {
		space := filepath.Join(dir, fmt.Sprint(i))
		if err := copyInto(ctx, space, first+"/."); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		r.spaces <- space
	}
	return r, nil
}

// copyInto copies folders, with the times at which their files were written, by which make goes.
func copyInto(ctx context.Context, to string, from ...string) error {
	err := os.Mkdir(to, 0o700)
	if said, ok := ends(exec.CommandContext(ctx, "cp", append(append([]string{"-a"}, from...), to)...)); !ok {
		err = errors.Join(err, fmt.Errorf("copy for the tests of C: %s", said))
	}
	return err
}

func (r *cRunner) close() { _ = os.RemoveAll(r.dir) }

// cFlags are the Makefile's without errors for what a change leaves unused.
const cFlags = "-std=c11 -O2 -g -fPIC -fvisibility=hidden -MMD -MP"

func (r *cRunner) make(ctx context.Context, space string, what ...string) *exec.Cmd {
	args := []string{"--no-print-directory", "-C", filepath.Join(space, "guest", "libcuda"), "OUT=../../built/lib", "TEST_OUT=../../built/tests", "CFLAGS_=" + cFlags}
	return exec.CommandContext(ctx, "make", append(args, what...)...)
}

// test runs a program of the tests as make does.
func (r *cRunner) test(ctx context.Context, space, program string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir = filepath.Join(space, "guest", "libcuda")
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
	return cmd
}

// programs are an area's tests, each plain and sanitized, and what one of them loads.
func programs(space string, a area) (list []string, err error) {
	for _, folder := range a.tests {
		found, err := filepath.Glob(filepath.Join(space, "guest", "libcuda", folder, "*_test.c"))
		if err != nil || len(found) == 0 {
			return nil, errors.Join(err, fmt.Errorf("%s: no tests in %s", a.name, folder))
		}
		for _, f := range found {
			at := filepath.Join("..", "..", "built", "tests", folder, strings.TrimSuffix(filepath.Base(f), ".c"))
			list = append(list, at+".plain", at+".san")
		}
	}
	return list, nil
}

// loaded is a library that a test of sessions by RDMA loads.
const loaded = "../../built/tests/session/tests/libibverbs.so.1"

// findOut finds out which of an area's tests pass as they are: the others notice nothing.
func (r *cRunner) findOut(ctx context.Context, space string, a area, jobs int) (t cTests) {
	list, err := programs(space, a)
	if err != nil {
		fmt.Println(err)
		return t
	}
	said, ok := ends(r.make(ctx, space, append([]string{"-k", fmt.Sprint("-j", jobs), loaded}, list...)...))
	if !ok {
		fmt.Printf("not all tests of %s can be built as they are: %s\n", a.name, said[max(0, len(said)-2000):])
	}
	for _, p := range list {
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		said, ok := ends(r.test(ctx, space, p))
		cancel()
		if !ok {
			fmt.Printf("%s does not pass as it is: %s\n", p, said[max(0, len(said)-300):])
			continue
		}
		t.programs = append(t.programs, p)
		t.took += time.Since(began)
	}
	return t
}

func (r *cRunner) run(ctx context.Context, m mutant, limit time.Duration) (v verdict, by string, err error) {
	space := <-r.spaces
	defer func() { r.spaces <- space }()
	where := filepath.Join(space, m.file)
	was, err := os.ReadFile(where)
	if err == nil {
		err = os.WriteFile(where, m.text(), 0o600)
	}
	if err != nil {
		return 0, "", err
	}
	// Younger than what was built of the mutant: built again for the next.
	defer func() { err = errors.Join(err, os.WriteFile(where, was, 0o600)) }()
	t := r.as[m.area]
	if _, ok := ends(r.make(ctx, space, t.programs...)); !ok {
		return broken, "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(limit, 4*t.took+20*time.Second))
	defer cancel()
	for _, p := range t.programs {
		if v, by = judged(r.test(ctx, space, p)); v == survived {
			continue
		}
		if by == unended && ctx.Err() != nil {
			return v, by, nil
		}
		if again, _ := judged(r.test(ctx, space, p)); again == killed {
			// One that fails now and then has noticed nothing.
			return v, filepath.Base(p) + ": " + by, nil
		}
	}
	return survived, "", nil
}
