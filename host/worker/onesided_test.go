package worker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"causeway/host/driver"
	"causeway/host/driver/soft"
	"causeway/host/worker"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

const (
	// guestBuilt is where `make build` puts the guest's library, and a program that uses managed
	// memory as it is told (guest/libcuda/memory/tests/turns.c).
	guestBuilt   = "../../build"
	turnsProgram = guestBuilt + "/obj/libcuda/tests/ends/turns"
	turnsSize    = 16 << 20
	turnsTouched = turnsSize >> 20 * 16 << 10 // a unit (CW_UNIT) in each MiB
)

// turns is that program, behind a relay and a server with the software GPU. Its memory is at the
// GPU while that works.
type turns struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said strings.Builder // its log; whole when it has ended
	over chan error      // a relay and a worker
}

// startTurns starts it with its memory of a kind (CAUSEWAY_MANAGED), and returns its first word.
func startTurns(t *testing.T, kind string, p remotetest.Passed) (*turns, string) {
	t.Helper()
	if _, err := os.Stat(turnsProgram); err != nil {
		t.Skip("make build makes it: ", err)
	}
	dir, err := os.MkdirTemp("", "turns.") // whose name fits in a socket's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "session")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	s := &turns{over: make(chan error, 2)}
	go func() { s.over <- runSoft(p.Accept) }()
	go func() {
		program, err := ln.AcceptUnix()
		if err := errors.Join(err, ln.Close()); err != nil {
			s.over <- err
			return
		}
		s.over <- p.Pass(program)
	}()
	lib, err := filepath.Abs(filepath.Join(guestBuilt, "lib"))
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(turnsProgram, fmt.Sprint(turnsSize))
	s.cmd.Env = append(os.Environ(), "CAUSEWAY=unix:"+path, "CAUSEWAY_MANAGED="+kind, "CAUSEWAY_LOG=info", "LD_LIBRARY_PATH="+lib)
	s.cmd.Stderr = &s.said
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Of a crowded machine.
	limit := time.AfterFunc(5*time.Minute, func() { _ = s.cmd.Process.Kill() })
	t.Cleanup(func() {
		limit.Stop()
		_ = s.cmd.Process.Kill() // where the test failed
		_ = s.cmd.Wait()
	})
	s.out = bufio.NewReader(out)
	return s, s.line(t)
}

// runSoft is a server's worker, with the software GPU, to its session's end.
func runSoft(accept func() (remote.Carrier, error)) error {
	c, err := accept()
	if err != nil {
		return err
	}
	w, err := worker.New(c, soft.New(), driver.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return errors.Join(c.Welcome(0, ""), w.Run(context.Background()))
}

// ready has the first word be that the memory is there. Linux gives userfaultfd to root.
func (s *turns) ready(t *testing.T, first string) {
	t.Helper()
	switch {
	case first == "ready":
	case os.Getuid() != 0 && strings.HasPrefix(first, "cuMemAllocManaged"):
		t.Skip("managed memory at the GPU needs userfaultfd: ", first)
	default:
		t.Fatal(first)
	}
}

func (s *turns) line(t *testing.T) string {
	t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		_ = s.cmd.Wait()
		t.Fatalf("the program: %v\n%s", err, s.said.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// do has the program do something, and what it finds be right.
func (s *turns) do(t *testing.T, word string) {
	t.Helper()
	if _, err := fmt.Fprintln(s.in, word); err != nil {
		t.Fatal(err)
	}
	if answer := s.line(t); answer != "done" {
		t.Fatalf("%s: %s", word, answer)
	}
}

// end ends it, and all that served it.
func (s *turns) end(t *testing.T) {
	t.Helper()
	_ = s.in.Close()
	rest, err := io.ReadAll(s.out)
	if err = errors.Join(err, s.cmd.Wait()); err != nil || len(rest) > 0 {
		t.Errorf("the program: %v, %q\n%s", err, rest, s.said.String())
	}
	if err := errors.Join(<-s.over, <-s.over); err != nil {
		t.Error(err)
	}
}

// moved is what went over a link, in bytes, by where to: in to the GPU, and out from there.
type moved struct{ in, out int64 }

func (m moved) since(before moved) moved { return moved{m.in - before.in, m.out - before.out} }

// tally is a carrier's count: of what went as copies are to go, and of all else, which is the
// stream of calls.
type tally func() (copies, calls moved)

// step has the program do something, and says what that has moved.
func (s *turns) step(t *testing.T, l tally, word string) (copies, calls moved) {
	t.Helper()
	copied, called := l()
	s.do(t, word)
	copies, calls = l()
	return copies.since(copied), calls.since(called)
}

// managedSteps is a few turns, with what each step moves as copies do. A touch brings a unit
// (CW_UNIT) at least of each MiB, and what it does not is left for check.
func (s *turns) managedSteps(t *testing.T, l tally, judge func(step string, copies, calls, want moved)) {
	t.Helper()
	for round := range 3 {
		var touched moved
		for _, word := range []string{"fill", "launch", "touch", "check"} {
			copies, calls := s.step(t, l, word)
			step, want := fmt.Sprintf("round %d, %s", round, word), moved{}
			t.Logf("%s: as copies %+v, with the calls %+v", step, copies, calls)
			switch word {
			case "launch":
				want.in = turnsSize
			case "touch":
				if touched.out = copies.out + calls.out; touched.out < turnsTouched {
					t.Errorf("%s: %+v", step, touched)
				}
				want = touched
			case "check":
				want.out = turnsSize - touched.out
			}
			judge(step, copies, calls, want)
		}
	}
}

// TestManagedOneSided: over RDMA managed memory at the GPU goes there before a kernel, and back
// when the processor touches it, by READs and WRITEs that the server posts: every byte of it, and
// but for a hundredth once. What goes in the stream, and with that all that the relay could copy,
// is calls and their answers. Where the relay may not have its adapter told of memory the same
// bytes are in the stream.
func TestManagedOneSided(t *testing.T) {
	for name, pinned := range map[string]int{"granted": 0, "refused": 4 << 20} {
		t.Run(name, func(t *testing.T) {
			f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
			near, far := f.Adapter("relay", here), f.Adapter("server", here)
			p, err := remotetest.PassedLifted(near, far)
			if err != nil {
				t.Fatal(err)
			}
			f.Pin(pinned)
			s, first := startTurns(t, "gpu", p)
			s.ready(t, first)
			count := func() (copies, calls moved) {
				all := func(a *verbstest.Adapter) int64 {
					return int64(f.MovedBy(a, verbs.Read) + f.MovedBy(a, verbs.Write) + f.MovedBy(a, verbs.WriteImmediate))
				}
				copies = moved{int64(f.ReachedBy(far, verbs.Read)), int64(f.ReachedBy(far, verbs.Write))}
				return copies, moved{all(near), all(far) - copies.in - copies.out}
			}
			s.managedSteps(t, count, func(step string, copies, calls, want moved) {
				const most = turnsSize / 100
				by, beside := copies, calls
				if pinned > 0 {
					by, beside = calls, copies
				}
				if by.in < want.in || by.out < want.out-most || by.in > want.in+most || by.out > want.out+most || beside.in > most || beside.out > most {
					t.Errorf("%s: one-sided %+v, in the stream %+v, where %+v are to go", step, copies, calls, want)
				}
			})
			s.end(t)
		})
	}
}

// TestManagedBeside: over TCP managed memory goes by the connections for copies, once there are
// any, but for what is less than is worth it, and not by that of calls.
func TestManagedBeside(t *testing.T) {
	var conns atomic.Int64
	var trunk, branches [2]count // what relay and server send
	p, err := remotetest.PassedBy(func() (near, far net.Conn, err error) {
		by := &branches
		if conns.Add(1) == 1 {
			by = &trunk
		}
		near, far, err = remotetest.PairTCP()
		return &counted{near, &by[0]}, &counted{far, &by[1]}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	s, first := startTurns(t, "gpu", p)
	s.ready(t, first)
	sent := func(c *[2]count) moved { return moved{c[0].bytes.Load(), c[1].bytes.Load()} }
	l := tally(func() (copies, calls moved) { return sent(&branches), sent(&trunk) })
	for late := time.Now().Add(time.Minute); ; {
		// Until the connections are there, copies go by that of calls.
		if copies, _ := s.step(t, l, "copy"); copies.in >= 1<<20 {
			break
		}
		if time.Now().After(late) {
			t.Fatal("no copy goes by connections of its own")
		}
	}
	s.managedSteps(t, l, func(step string, copies, calls, want moved) {
		const most = turnsSize / 20
		if copies.in < want.in-most || copies.out < want.out-most || calls.in > most || calls.out > most {
			t.Errorf("%s: beside %+v, with the calls %+v, where %+v are to go", step, copies, calls, want)
		}
	})
	s.end(t)
}

// TestManagedLinkFar: managed memory that stays in the program (CAUSEWAY_MANAGED=link) is none that
// a GPU server's kernels reach: it is refused by name, and nothing of it moves.
func TestManagedLinkFar(t *testing.T) {
	f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
	p, err := remotetest.PassedLifted(f.Adapter("relay", here), f.Adapter("server", here))
	if err != nil {
		t.Fatal(err)
	}
	s, first := startTurns(t, "link", p)
	if first != "cuMemAllocManaged: 801" {
		t.Errorf("the program says %q", first)
	}
	_, _ = io.Copy(io.Discard, s.out)
	if err := s.cmd.Wait(); err == nil || !strings.Contains(s.said.String(), "this carrier cannot share the program's memory with the GPU") {
		t.Errorf("%v\n%s", err, s.said.String())
	}
	if err := errors.Join(<-s.over, <-s.over); err != nil {
		t.Error(err)
	}
}
