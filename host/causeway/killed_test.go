package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tempDir is the folder for temporary files of a command.
func tempDir(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	dir := ""
	for _, kv := range cmd.Env {
		if d, ok := strings.CutPrefix(kv, "TMPDIR="); ok {
			dir = d // the last one counts
		}
	}
	return dir
}

// started starts a run of script, with the guest process as $0, and waits until script has said its
// process id and the guest how many devices there are.
func started(t *testing.T, script string) (cmd *exec.Cmd, in io.WriteCloser, out *bufio.Reader, program int) {
	t.Helper()
	guest, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = causeway(t, "run", "--gpu", "soft", "--lib", libFolder(t), "--", "sh", "-c", "echo $$; "+script, guest)
	if in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	// A pipe of our own: programs in the background hold it beyond the command's end.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out = bufio.NewReader(r)
	if program, err = strconv.Atoi(line(t, out)); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "1 devices" {
		t.Fatalf("the guest says %q", got)
	}
	return cmd, in, out, program
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(s, "\n")
}

// childrenOf are the processes that a process has started and that are not gone.
func childrenOf(t *testing.T, pid int) (children []int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range threads {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for w := range strings.FieldsSeq(string(b)) {
			n, err := strconv.Atoi(w)
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, n)
		}
	}
	return children
}

// gone waits until a process runs no more.
func gone(t *testing.T, what string, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(b), ") ")
		if err != nil || strings.HasPrefix(state, "Z") {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s, process %d, goes on: %s", what, pid, b)
			return
		}
	}
}

// TestRunKilled: a run that is killed takes its program and its workers with it, also those of the
// program's own children, and the next run removes its folder.
func TestRunKilled(t *testing.T) {
	for name, script := range map[string]string{
		"the program":            `exec "$0" ` + guestArg,
		"a child of the program": `"$0" ` + guestArg + `; exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			cmd, in, _, program := started(t, script)
			defer in.Close()
			children := childrenOf(t, cmd.Process.Pid)
			if len(children) < 2 {
				t.Fatalf("the run has the processes %v, want a program and a worker", children)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			gone(t, "the program", program)
			for _, c := range children {
				gone(t, "a process of the run", c)
			}
			dir := tempDir(t, cmd)
			left, _ := filepath.Glob(filepath.Join(dir, runPrefix+"*"))
			if len(left) != 1 {
				t.Fatalf("folders %v, want that of the run that was killed", left)
			}
			next := causeway(t, "run", "--gpu", "soft", "--lib", libFolder(t), "--", "true")
			next.Env = cmd.Env
			if out, err := next.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			empty(t, cmd)
		})
	}
}

// TestRunLeaves: a program in the background keeps its worker when its run has ended by itself.
func TestRunLeaves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	lines, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	cmd, in, out, program := started(t, `"$0" `+guestArg+` <`+path+` & read -r go`)
	fmt.Fprintln(in, "go")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	gone(t, "the program", program)
	for range 2 {
		fmt.Fprintln(lines, "go on")
		if got := line(t, out); got != "hello" {
			t.Fatalf("the guest in the background says %q", got)
		}
	}
	_ = lines.Close() // the last writer: the guest ends
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("%v, %q", err, rest)
	}
	empty(t, cmd)
}

// TestRunFolder: folders of runs that go on, of other users and those that are none stay.
func TestRunFolder(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	name := func(pid int) string { return filepath.Join(dir, runPrefix+strconv.Itoa(pid)) }
	mk := func(path string) string {
		t.Helper()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "control"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	stale := mk(name(dead.Process.Pid) + "-1")
	kept := []string{mk(name(os.Getpid()) + "-1"), mk(name(dead.Process.Pid) + "-2"), mk(name(0) + "-1"), mk(filepath.Join(dir, runPrefix+"x-1"))}
	lock, err := lockFolder(kept[1]) // its owner is in another process namespace
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	link := name(dead.Process.Pid) + "-3"
	target := mk(filepath.Join(dir, "target"))
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	kept = append(kept, target, link)
	if os.Geteuid() == 0 {
		other := mk(name(dead.Process.Pid) + "-4")
		if err := os.Chown(other, 1, 1); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, other)
	}
	f, err := newRunFolder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Error("the folder of a run that was killed is left")
	}
	for _, k := range append(kept, f.path) {
		if _, err := os.Lstat(k); err != nil {
			t.Error(err)
		}
	}
	if _, err := lockFolder(f.path); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("lock of a folder in use: %v", err)
	}
	f.Close()
	if _, err := os.Lstat(f.path); !errors.Is(err, os.ErrNotExist) {
		t.Error("a folder is left")
	}
}
