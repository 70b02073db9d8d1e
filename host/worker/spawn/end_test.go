package spawn

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
)

// heard tells of what a worker says.
type heard chan struct{}

func (h heard) Write(p []byte) (int, error) {
	h <- struct{}{}
	return len(p), nil
}

// TestEndLeavesChild: who ends a worker does not wait for what that has started, which holds its
// standard error open.
func TestEndLeavesChild(t *testing.T) {
	started := make(heard, 16)
	s := &Spawner{Command: []string{"/bin/sh", "-c", "sleep 1000 & echo started >&2; wait"}, Stderr: started, grace: time.Millisecond}
	p, err := s.process()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(-p.PID(), unix.SIGKILL) }() // its group
	ended := make(chan struct{})
	go func() {
		<-started
		p.Kill()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the end of a worker waits for what it has started")
	}
}

// TestDeafWorkerEnds: a worker that reads nothing of what it is told, as one that was taken over
// may, does not keep who ends its session.
func TestDeafWorkerEnds(t *testing.T) {
	p, err := (&Spawner{Command: []string{"/bin/sleep", "1000"}}).process()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(p.PID(), unix.SIGKILL) }()
	pages := link.AddPages{Ranges: make([]link.Range, link.MaxRanges)}
	full := make(chan struct{})
	sent := make(chan struct{}, 1<<16)
	go func() { // as the session's goroutine does
		defer close(full)
		for p.Send(pages) == nil {
			sent <- struct{}{}
		}
	}()
	for n := -1; n < len(sent); time.Sleep(50 * time.Millisecond) { // until it waits
		n = len(sent)
	}
	ended := make(chan struct{})
	go func() { p.Stop(10 * time.Millisecond); close(ended) }()
	for _, c := range []chan struct{}{ended, full} {
		select {
		case <-c:
		case <-time.After(5 * time.Second):
			t.Fatal("it is waited for")
		}
	}
	<-p.Done()
}
