package worker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"causeway/host/driver"
	"causeway/host/worker/link"
)

// pinningGPU is a driver that notes what windows it knows.
type pinningGPU struct {
	*standingGPU
	pins, unpins int
}

func (g *pinningGPU) Pin([]byte) (func(), error) {
	g.pins++
	return func() { g.unpins++ }, nil
}

// TestRebuildStops: wherever a rebuild stops, nothing is done that would have come behind it; the
// parent is told why, the window is let go of, and the session goes on. One that has moved is told
// of, and ends.
func TestRebuildStops(t *testing.T) {
	no := errors.New("no such thing")
	to := newRecorded(t)
	to.w.session = &lendingGPU{plainGPU: to.gpu}
	x := successor{to.w, no}
	files, snap, takes, memory, agrees, refuses, hears := x.files, x.snap, x.takes, x.memory, x.agrees, x.refuses, x.hears
	warmed := 0
	ready := func(h *handover) error { return h.getReady(func() { warmed++ }) }
	window := func(h *handover) error { return h.takeWindow() }
	rounds := func(h *handover) error { return h.recv.Rounds(context.Background(), h) }
	lent := func(h *handover) error { list, err := h.receiveLent(); driver.CloseLent(list); return err }
	for what, c := range map[string]struct {
		fixed error
		warm  bool
		far   bool // it goes to another GPU, which reads nothing of this one
		peer  steps
		err   string // empty: it moves
		tasks int    // of the consumer's
		pins  int
	}{
		"of one that does not move": {fixed: no, err: no.Error(), tasks: 1},
		"to one that is gone":       {err: "", peer: nil, tasks: 1},
		"behind its start":          {peer: steps{ready}, err: " ", tasks: -1, pins: -1},
		"behind its window":         {peer: steps{ready, window}, err: " ", tasks: -1, pins: -1},
		"refused behind rounds":     {peer: steps{ready, window, rounds, files, lent, snap, takes, memory, refuses}, err: no.Error(), tasks: 4, pins: 1},
		"moved":                     {peer: steps{ready, window, rounds, files, lent, snap, takes, memory, agrees, hears}, tasks: 3, pins: 1},
		"moved, warm":               {warm: true, peer: steps{ready, window, rounds, files, lent, snap, takes, memory, agrees, hears}, tasks: 3, pins: 1},
		"moved elsewhere":           {far: true, peer: steps{ready, window, rounds, files, lent, snap, memory, agrees, hears}, tasks: 3, pins: 1},
	} {
		moves := len(c.peer) > 0 && c.err == ""
		s := newRecorded(t)
		g := &pinningGPU{standingGPU: &standingGPU{lendingGPU: &lendingGPU{plainGPU: s.gpu}, fixed: c.fixed}}
		s.w.session = g
		carried(t, s.w)
		parent, worker := ends(t)
		st := &starter{link: worker, log: slog.New(slog.DiscardHandler), warm: c.warm}
		tasks := 0
		consumer := make(chan struct{})
		go func() { // the consumer, which ends with its first error
			defer close(consumer)
			defer close(s.w.ended)
			for task := range s.w.tasks {
				if tasks++; task == nil || task() != nil {
					return
				}
			}
		}()
		ours, theirs := stream(t)
		other, err := newHandover(theirs, localMost)
		if err != nil {
			t.Fatal(err)
		}
		warmed = 0
		done := c.peer.play(other)
		if len(c.peer) == 0 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			done <- nil
		}
		err = st.rebuild(s.w, link.Rebuild{Elsewhere: c.far, Successor: link.FileOf(ours)})
		if errors.Is(err, errMoved) != moves || !moves && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: the successor: %v", what, err)
		}
		r, err := parent.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := r.Message().(link.Rebuilt); !ok || (m.Err() == nil) != moves || !moves && !strings.Contains(m.Text, c.err) {
			t.Errorf("%s: the parent is told %#v", what, r.Message())
		}
		if !moves {
			s.w.tasks <- nil
		}
		<-consumer
		if !moves {
			tasks-- // the one that ended it
		}
		if c.tasks >= 0 && tasks != c.tasks || c.pins >= 0 && g.pins != c.pins || !moves && g.unpins != g.pins {
			t.Errorf("%s: %d tasks, %d windows, of which %d are known still", what, tasks, g.pins, g.pins-g.unpins)
		}
		if moves && (g.lends == 0) != c.far {
			t.Errorf("%s: it lends %d times", what, g.lends)
		}
		if (warmed == 1) != (c.warm && len(c.peer) > 0) {
			t.Errorf("%s: the successor's driver is started ahead %d times", what, warmed)
		}
		_, _ = parent.Close(), worker.Close()
	}
}
