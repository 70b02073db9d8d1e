package frame_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote/frame"
	"causeway/remote/remotetest"
)

// TestSlowServer: a client waits for a server that has yet to start the process which answers, on a
// machine that has much to do; not for one that never does.
func TestSlowServer(t *testing.T) {
	for _, x := range []struct {
		after time.Duration
		late  bool
	}{{20 * time.Second, false}, {2 * time.Minute, true}} {
		synctest.Test(t, func(t *testing.T) {
			server, client, err := remotetest.Lease()
			if err != nil {
				t.Fatal(err)
			}
			near, far := net.Pipe()
			answered := make(chan error, 1)
			go func() {
				time.Sleep(x.after)
				s, err := frame.Server(t.Context(), far, server)
				if err == nil {
					s.Abort()
				}
				answered <- err
			}()
			start := time.Now()
			c, err := frame.Client(t.Context(), near, client)
			switch took := time.Since(start); {
			case x.late && (!errors.Is(err, context.DeadlineExceeded) || took > time.Minute):
				t.Errorf("a server that does not answer: %v after %v", err, took)
			case !x.late && err != nil:
				t.Errorf("a server that answers after %v: %v after %v", x.after, err, took)
			case !x.late:
				c.Abort()
			}
			if err := <-answered; (err != nil) != x.late {
				t.Errorf("the server: %v", err)
			}
		})
	}
}
