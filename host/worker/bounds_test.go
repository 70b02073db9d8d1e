package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/precopy"
	"causeway/remote"
	"causeway/remote/sys"
)

// TestConsoleBound: both streams together keep so much and no more, what comes beyond is lost and
// said so once, behind all that was kept.
func TestConsoleBound(t *testing.T) {
	const rest = 10
	for _, first := range []int{consoleOut, consoleErr} {
		w, c := newFake(t, nil)
		into := []func([]byte){w.Console, w.ConsoleError}
		into[first](make([]byte, maxConsole-rest))
		into[1-first]([]byte("0123456789abcdef"))
		into[first]([]byte("nothing of this"))
		if c.console != maxConsole {
			t.Fatalf("%d bytes wait, of at most %d", c.console, maxConsole)
		}
		var got [2][]byte
		for c.console != 0 {
			part, stream := w.consoleRead()
			got[stream] = append(got[stream], part...)
		}
		last := consoleErr // which is read when there is nothing else
		text, ok := bytes.CutSuffix(got[last], []byte(consoleLost))
		if got[last] = text; !ok || bytes.Contains(slices.Concat(got[0], got[1]), []byte("lost")) {
			t.Errorf("the loss is said at another place than the end, or not: %.60q", got[last][max(0, len(got[last])-60):])
		}
		if string(got[1-first]) != "0123456789" || len(got[first]) != maxConsole-rest {
			t.Errorf("%q beside %d bytes", got[1-first], len(got[first]))
		}
		into[first]([]byte("again"))
		if part, stream := w.consoleRead(); string(part) != "again" || stream != uint32(first) {
			t.Errorf("behind a loss: %q to %d", part, stream)
		}
	}
}

// TestCallbacksRestored: callbacks that another process had open are open, at a slot that there is,
// and at none else: the next one would be posted there.
func TestCallbacksRestored(t *testing.T) {
	for _, s := range []callbackState{
		{}, {Open: true}, {Slot: 7, Base: 3, Number: 9}, {Open: true, Slot: remote.SlotCount - 1, Base: 1<<32 - 1, Number: 1<<32 - 1},
		{Open: true, Slot: remote.SlotCount}, {Open: true, Slot: 1<<32 - 1},
	} {
		var b callbacks
		b.restore(s)
		want := s
		want.Open = s.Open && s.Slot < remote.SlotCount
		if got := b.state(); got != want {
			t.Errorf("%+v came as %+v", s, got)
		}
	}
}

// TestVerdicts: what one worker says at the end the other hears, of a long text as much as that
// takes.
func TestVerdicts(t *testing.T) {
	for _, text := range []string{"", "no room", strings.Repeat("x", maxVerdict), strings.Repeat("y", maxVerdict+1), strings.Repeat("z", 3*maxVerdict)} {
		says, to := handoverPair(t)
		hears := handoverOn(t, to)
		var said error
		if text != "" {
			said = errors.New(text)
		}
		if err := says.sendVerdict(said); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := hears.receiveVerdict(); err != nil {
			got = err.Error()
		}
		if got != text[:min(len(text), maxVerdict)] {
			t.Errorf("%d bytes came as %d: %.50q", len(text), len(got), got)
		}
	}
}

// handoverOn is the other end as a worker's.
func handoverOn(t *testing.T, c *net.UnixConn) *handover {
	t.Helper()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	h, err := newHandover(fd, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h
}

// seenGPU is memory that programs change between rounds, and that a round reads as far as it may.
type seenGPU struct {
	mem   map[uint64][]byte
	calls int    // a round lists what there is before it reads it
	upTo  int    // ranges, from which on the round is late
	late  func() // ends the round
}

func (g *seenGPU) ExportRunning(fn func(addr, size uint64, r io.Reader) error) error {
	g.calls++
	for i, addr := range slices.Sorted(maps.Keys(g.mem)) {
		if i == g.upTo && g.late != nil && g.calls%2 == 0 {
			g.late()
		}
		if err := fn(addr, uint64(len(g.mem[addr])), bytes.NewReader(g.mem[addr])); err != nil {
			return err
		}
	}
	return nil
}

// TestRoundsByChance: whatever rounds are cut, and wherever the session stood in them, the other
// side has what there is in the end: only of what a whole round has read since the session stood is
// nothing read again.
func TestRoundsByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 3))
	spared := 0
	for trial := range 200 {
		h, to := handoverPair(t)
		other := handoverOn(t, to)
		g := &seenGPU{mem: map[uint64][]byte{}}
		for i := range uint64(3) {
			g.mem[(i+1)<<24] = make([]byte, 4096)
		}
		came := map[uint64][]byte{}
		done := make(chan error, 1)
		go func() {
			err := other.recv.Rounds(context.Background(), other.in.Rest())
			if err == nil {
				err = other.recv.Last(context.Background(), other.in.Rest(), func(addr, _ uint64, r io.Reader) (err error) {
					came[addr], err = io.ReadAll(r)
					return err
				})
			}
			done <- err
		}()
		a, head := &ahead{h: h}, uint64(0)
		work := func() {
			for _, m := range g.mem {
				if rng.IntN(2) == 0 {
					binary.LittleEndian.PutUint64(m[8*rng.IntN(8):], rng.Uint64()|1)
				}
			}
			head++
		}
		for number := range uint64(rng.IntN(6)) {
			if rng.IntN(2) == 0 {
				work()
			}
			ctx, cancel := context.WithCancel(context.Background())
			g.upTo, g.late = rng.IntN(4), cancel
			before := a.seen
			at := still{head, rng.IntN(4) != 0}
			said := a.round(ctx, g, number, at)
			cancel()
			if want := map[bool]still{true: before, false: at}[said.Cut]; said.Status.Errno != 0 || a.seen != want {
				t.Fatalf("trial %d: %+v, and it stood at %+v, not %+v", trial, said, a.seen, want)
			}
			if said.Looked == 0 && !said.Cut {
				spared++
			}
		}
		g.late = nil
		if a.seen == (still{head, true}) {
			h.send.Same()
		}
		var w bytes.Buffer
		err := h.send.Still(&w)
		if err == nil {
			_, err = h.send.Last(context.Background(), g.ExportRunning, &w)
		}
		if err == nil {
			_, err = h.Write(w.Bytes())
		}
		if err := errors.Join(err, <-done); err != nil {
			t.Fatalf("trial %d: %v", trial, err)
		}
		for addr, m := range g.mem {
			if !bytes.Equal(came[addr], m) {
				t.Fatalf("trial %d: what is at %#x came as it was before", trial, addr)
			}
		}
	}
	if spared < 10 {
		t.Errorf("only %d rounds read nothing again", spared)
	}
}

// TestWindowsOfOneSize: a window is of the size that both ends know, and of a kind that nobody can
// cut short under them.
func TestWindowsOfOneSize(t *testing.T) {
	for _, c := range []struct {
		size int64
		ok   bool
	}{{windowSize, true}, {windowSize - precopy.Slot, false}, {windowSize + precopy.Slot, false}, {2 * windowSize, false}, {0, false}} {
		h, _ := handoverPair(t)
		fd, err := sys.NewMemory("causeway-test-window", c.size, 0)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.mapWindow(fd, pair[0])
		if (err == nil) != c.ok || (h.win != nil) != c.ok {
			t.Errorf("%d bytes, of %d: %v", c.size, windowSize, err)
		}
		_, _ = unix.Close(fd), unix.Close(pair[1])
	}
}
