package device

import (
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
)

// TestThrottleSteps: who changes memory as fast as it is sent is held back more with each such
// round, until rounds fall, or nothing more can be done; but only if that was asked for.
func TestThrottleSteps(t *testing.T) {
	const second = time.Second
	run := func(asked bool, rounds ...uint64) (steps []int, ready, stuck bool) {
		o := &copyOut{d: &Device{log: slog.New(slog.DiscardHandler)}, opt: CopyOptions{Throttle: asked}, streams: map[*session]*outStream{}}
		pace := precopy.Pace{Pause: second / 2}
		for _, sent := range rounds {
			o.counted(precopy.Round{Looked: 1000, Sent: sent}, time.Duration(sent)*time.Millisecond, &pace)
			if steps = append(steps, o.st.Throttled); o.st.Ready {
				break
			}
		}
		return steps, o.st.Ready, o.st.Stuck
	}
	same := slices.Repeat([]uint64{1000}, 30)
	if steps, ready, stuck := run(false, same...); !ready || !stuck || slices.Max(steps) != 0 || len(steps) != 4 {
		t.Errorf("not asked: %v, ready %v, stuck %v", steps, ready, stuck)
	}
	if steps, ready, stuck := run(true, same...); !ready || !stuck || !slices.Equal(steps, []int{0, 0, 0, 20, 20, 30, 30, 40, 40, 50, 50, 60, 60, 70, 70, 80, 80, 90, 90, link.MostThrottle, link.MostThrottle, link.MostThrottle}) {
		t.Errorf("always as much: %v, ready %v, stuck %v", steps, ready, stuck)
	}
	if steps, ready, stuck := run(true, 1000, 1000, 1000, 1000, 1000, 1000, 800, 600, 400); !ready || stuck || !slices.Equal(steps, []int{0, 0, 0, 20, 20, 30, 30, 30, 30}) {
		t.Errorf("it helps: %v, ready %v, stuck %v", steps, ready, stuck)
	}
}

// heldBack is a worker that remembers how much it was held back.
type heldBack struct {
	workerProcess
	mu   sync.Mutex
	said []uint32
}

func (h *heldBack) Send(m link.ToWorker) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t, ok := m.(link.Throttle); ok {
		h.said = append(h.said, t.Share)
	}
	return nil
}

func (*heldBack) Copied() <-chan link.Copied { return nil }
func (*heldBack) Done() <-chan struct{}      { return nil }

// TestThrottleEnds: when a pre-copy ends, here because the connection does, whoever was held back
// is no more; others are told nothing.
func TestThrottleEnds(t *testing.T) {
	for _, share := range []int{0, 40} {
		d, err := New(Options{Tree: Tree{Lib: library(t), GPU: "a GPU"}, Worker: link.Config{GPU: "soft"}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		procs := map[state]*heldBack{}
		for _, st := range []state{idle, starting, running, parking, parked, dead} {
			procs[st] = &heldBack{}
			d.sessions[&session{dev: d, log: d.log, state: st, proc: procs[st]}] = struct{}{}
		}
		near, far := net.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- d.CopyTo(t.Context(), near, CopyOptions{Throttle: true}) }()
		if f, err := readCopyFrame(far, make([]byte, mostCopyData)); err != nil || f.kind != copyHello {
			t.Fatal(f.kind, err)
		}
		o := d.out.Load()
		o.mu.Lock()
		o.st.Throttled = share
		o.mu.Unlock()
		if err := answer(far, copyWelcome, 0, nil); err != nil {
			t.Fatal(err)
		}
		if f, err := readCopyFrame(far, make([]byte, mostCopyData)); err != nil || f.kind != copyOpen {
			// The first round.
			t.Fatal(f.kind, err)
		}
		far.Close()
		if err := <-ended; err == nil {
			t.Error("it ended without a reason")
		}
		for st, p := range procs {
			works := st == running || st == parking || st == parked
			switch last := len(p.said) - 1; {
			case (!works || share == 0) && last >= 0:
				t.Errorf("%d %%: a session in state %v was told %v", share, st, p.said)
			case works && share != 0 && (last < 0 || p.said[last] != 0):
				t.Errorf("%d %%: a session in state %v was told %v, and is held back", share, st, p.said)
			}
		}
	}
}
