package spawn

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/offer"
)

// probe is one question that a worker was asked.
func probe(t *testing.T, w *link.WorkerEnd) link.Probe {
	t.Helper()
	r, err := w.Receive()
	if err != nil {
		t.Fatal(err)
	}
	m, ok := r.Message().(link.Probe)
	if !ok {
		t.Fatalf("%+v is no question", r.Message())
	}
	return m
}

// TestProbesOfABusyWorker: a worker that has no time to say whether its session can move, while
// somebody looks again and again, is asked once. What it says at last is no answer to a later
// question, and no reason to end it.
func TestProbesOfABusyWorker(t *testing.T) {
	var shared offer.Broker
	w, p, killed := end(t, &shared)
	ctx, giveUp := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := p.Probe(ctx, link.Probe{Together: true})
		done <- err
	}()
	if !probe(t, w).Together {
		t.Error("another question")
	}
	giveUp()
	if err := <-done; !errors.Is(err, ErrSilent) {
		t.Errorf("of a worker that is busy: %v", err)
	}
	for range 10 * mostReplies {
		if _, err := p.Probe(ctx, link.Probe{Together: true}); !errors.Is(err, ErrSilent) {
			t.Fatalf("of one that is busy still: %v", err)
		}
	}
	captures := link.Probed{Status: link.StatusOf(unix.EOPNOTSUPP, errors.New("a stream captures"))}
	if err := w.Send(captures); err != nil {
		t.Fatal(err)
	}
	for range 3 { // and each that is answered owes nothing
		go func() {
			m, err := p.Probe(context.Background(), link.Probe{OtherModel: true})
			if err == nil && m.Errno != 0 {
				err = m.Err()
			}
			done <- err
		}()
		if m := probe(t, w); !m.OtherModel || m.Together {
			t.Errorf("the next question is %+v", m)
		}
		if err := w.Send(link.Probed{}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("its answer: %v", err)
		}
	}
	select {
	case <-killed:
		t.Error("the worker was ended for its answers")
	default:
	}
	// Whoever answers what nobody asked is.
	for range 2 {
		if err := w.Send(captures); err != nil {
			t.Fatal(err)
		}
	}
	<-killed
}

// TestProbeOfAWorkerThatEnds: there is no answer.
func TestProbeOfAWorkerThatEnds(t *testing.T) {
	var shared offer.Broker
	w, p, _ := end(t, &shared)
	done := make(chan error)
	go func() {
		_, err := p.Probe(context.Background(), link.Probe{})
		done <- err
	}()
	probe(t, w)
	_ = w.Close()
	if err := <-done; !errors.Is(err, ErrEnded) {
		t.Error(err)
	}
}
