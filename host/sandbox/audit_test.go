package sandbox

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestAssess: verdicts name the files of who asked, not the auditor's, whatever has become of them
// since.
func TestAssess(t *testing.T) {
	// Another process, whose folder in /proc exists.
	worker := os.Getppid()
	dir := t.TempDir()
	file, link, mine := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "mine")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{link: file, mine: "/proc/self/status"} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	p := &Policy{Mode: Audit, Real: true, Read: []string{filepath.Join(dir, "none")}}
	a := assessor{rules: p.rules(fmt.Sprintf("/proc/%d", worker)), worker: worker, self: os.Getpid(), said: map[string]bool{}}
	thread := fmt.Sprintf("/proc/self/task/%d/comm", worker)
	for _, c := range []struct {
		path  string
		flags uint64
		want  string
	}{
		{file, unix.O_RDONLY, "open " + file + " to read"},
		{link, unix.O_RDWR, "open " + link + " to write"},
		{file, unix.O_PATH, ""},
		{dir + "/gone", unix.O_RDONLY, ""},
		{dir + "/gone", unix.O_WRONLY | unix.O_CREAT, "open " + dir + "/gone to create"},
		{dir + "/none/gone", unix.O_WRONLY | unix.O_CREAT, ""}, // fails anyhow
		{"/proc/self/status", unix.O_RDONLY, ""},
		{mine, unix.O_RDONLY, ""}, // by a link that leads each process to itself
		{fmt.Sprintf("/proc/%d/status", worker), unix.O_RDONLY, ""},
		{"/proc/1/../self/status", unix.O_RDONLY, ""},
		{"/proc/selfish", unix.O_RDONLY, ""},
		{thread, unix.O_WRONLY | unix.O_TRUNC, ""},
		{"/proc/thread-self/comm", unix.O_WRONLY | unix.O_TRUNC, ""},
		{"/dev/null", unix.O_RDWR, ""},
		{"", unix.O_RDONLY, ""}, // could not be read
	} {
		q := asked{path: c.path, question: question{PID: uint32(worker), Number: unix.SYS_OPENAT, Args: [6]uint64{2: c.flags}}}
		if got := a.verdict(&q); got != c.want {
			t.Errorf("%q, flags %#x: %q, want %q", c.path, c.flags, got, c.want)
		}
	}
	q := asked{question: question{Number: unix.SYS_PTRACE, Args: [6]uint64{16, 1, 2}}}
	if got := a.verdict(&q); got != fmt.Sprintf("system call %d(0x10, 0x1, 0x2)", unix.SYS_PTRACE) {
		t.Error(got)
	}
}

// TestAssessOnce: what was said is not said again, and what was lost is counted.
func TestAssessOnce(t *testing.T) {
	var out bytes.Buffer
	a := &auditor{asked: make(chan asked, waiting), assessor: assessor{said: map[string]bool{}, log: slog.New(slog.NewTextHandler(&out, nil))}}
	for range 3 {
		a.asked <- asked{question: question{Number: unix.SYS_PTRACE}}
	}
	a.lost.Store(7)
	close(a.asked)
	done := make(chan struct{})
	a.routineJudge(done)
	<-done
	if n := strings.Count(out.String(), "strict would deny"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if !strings.Contains(out.String(), `"calls not judged"=7`) {
		t.Errorf("what was lost is not said: %s", out.String())
	}
}

// TestText: strings end at their end, and where the mapping does.
func TestText(t *testing.T) {
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	if err := unix.MunmapPtr(unsafe.Pointer(&b[page]), uintptr(page)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(memory.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	a := &auditor{worker: os.Getpid(), memory: fd}
	defer func() { _ = unix.Close(a.memory) }()
	at := address(b)
	copy(b[page-5:], "path\x00")
	if got := a.text(uint32(unix.Gettid()), at+uint64(page)-5); got != "path" {
		t.Errorf("%q at a mapping's end", got)
	}
	copy(b[page-5:], "paths")
	for _, where := range []uint64{at + uint64(page) - 5, 0, 8, ^uint64(0)} {
		if got := a.text(uint32(unix.Gettid()), where); got != "" {
			t.Errorf("%q at %#x, where no string is", got, where)
		}
	}
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
