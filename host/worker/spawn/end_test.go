package spawn

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
