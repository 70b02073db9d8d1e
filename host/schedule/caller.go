package schedule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// caller is the asking end of a connection. One call at a time; a goroutine reads the answers, so
// that the end of the connection is seen also between calls.
type caller struct {
	uc      *net.UnixConn
	answers chan answer
	done    chan struct{} // closed when nothing more comes
}

func newCaller(uc *net.UnixConn) *caller {
	c := &caller{uc: uc, answers: make(chan answer, 1), done: make(chan struct{})}
	go c.routineRead()
	return c
}

func (c *caller) routineRead() {
	defer close(c.done)
	buf, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(8*4))
	for {
		b, files, err := receive(c.uc, buf, oob)
		sys.CloseAll(files)
		if err != nil {
			return
		}
		var a answer
		if err := json.Unmarshal(b, &a); err != nil {
			return
		}
		select {
		case c.answers <- a:
		default:
			return // it answers what nobody asked
		}
	}
}

// call asks, and turns a refusal into an error.
func (c *caller) call(r *request, files []int) error {
	_, err := c.ask(r, files)
	return err
}

// ErrSilent says that a scheduler has its socket and answers nothing there, as one does that is
// stopped.
var ErrSilent = errors.New("no answer")

func (c *caller) ask(r *request, files []int) (answer, error) {
	if err := send(c.uc, r, files); err != nil {
		return answer{}, fmt.Errorf("scheduler: %s: %w", r.Op, err)
	}
	t := time.NewTimer(callLimit)
	defer t.Stop()
	select {
	case a := <-c.answers:
		if a.Error != "" {
			return a, fmt.Errorf("scheduler: %s: %s", r.Op, a.Error)
		}
		return a, nil
	case <-c.done:
		return answer{}, fmt.Errorf("scheduler: %s: %w", r.Op, errors.ErrUnsupported)
	case <-t.C:
		return answer{}, fmt.Errorf("scheduler: %s: %w within %v", r.Op, ErrSilent, callLimit)
	}
}

// close ends the connection and its reader.
func (c *caller) close() {
	_ = c.uc.Close()
	<-c.done
}
