package resume

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote/frame"
)

// TestWriterOfALostConnection: who waits because a connection is far behind goes on when it is
// lost, and need not wait for the next.
func TestWriterOfALostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bareConn(digest{}, minute)
		if err := c.kept.begin(&budget{limit: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		c.up = &frame.Secure{} // nobody sends over it
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(frames(1, 2*ahead))
			wrote <- err
		}()
		synctest.Wait()
		c.mu.Lock()
		if c.kept.size() == 0 || c.kept.size() > ahead {
			t.Errorf("%d bytes are kept while nothing is sent", c.kept.size())
		}
		c.loseLocked(errors.New("lost"))
		c.mu.Unlock()
		synctest.Wait()
		select {
		case err := <-wrote:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("it waits still")
		}
		c.end(ErrLost)
		synctest.Wait()
	})
}

// TestReaderOfAStreamThatEnds: who waits for a connection hears at once that there will be none, or
// that the stream is held.
func TestReaderOfAStreamThatEnds(t *testing.T) {
	for _, want := range []error{ErrLost, ErrHeld} {
		synctest.Test(t, func(t *testing.T) {
			c := bareConn(digest{}, minute)
			heard := make(chan error, 1)
			go func() {
				_, err := c.Read(make([]byte, 1))
				heard <- err
			}()
			synctest.Wait()
			if want == ErrHeld {
				_ = c.Hold() // says that nobody was told
			} else {
				c.end(want)
			}
			synctest.Wait()
			select {
			case err := <-heard:
				if !errors.Is(err, want) {
					t.Errorf("%v, not %v", err, want)
				}
			default:
				t.Errorf("it waits still: %v", want)
			}
			c.end(ErrLost)
		})
	}
}

// standing is a connection that takes nothing before it is opened, and brings nothing before a
// deadline.
type standing struct {
	net.Conn
	open, ends chan struct{}
}

func newStanding() *standing { return &standing{open: make(chan struct{}), ends: make(chan struct{})} }

func (g *standing) WriteAll([][]byte) error {
	<-g.open
	return nil
}

func (g *standing) Read([]byte) (int, error) {
	<-g.ends
	return 0, os.ErrDeadlineExceeded
}

func (g *standing) SetReadDeadline(at time.Time) error {
	if at.Before(time.Now()) && !at.IsZero() {
		close(g.ends)
	}
	return nil
}
func (g *standing) SetDeadline(at time.Time) error   { return g.SetReadDeadline(at) }
func (g *standing) SetWriteDeadline(time.Time) error { return nil }
func (g *standing) Ended() bool                      { return false }
func (g *standing) Abort()                           {}

// TestHoldBehindASender: the word that a stream is held leaves behind what somebody is sending at
// the moment, who does not know of it.
func TestHoldBehindASender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, up := bareConn(digest{}, minute), newStanding()
		c.up = up
		go c.routineSend()
		go func() { _, _ = c.Write(frame.Header{Kind: frame.Ring}.Append(nil)) }()
		synctest.Wait() // in WriteAll
		held := make(chan error, 1)
		go func() { held <- c.Hold() }()
		synctest.Wait()
		close(up.open)
		synctest.Wait()
		select {
		case err := <-held:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("nobody tells that it is held")
		}
		c.end(ErrLost)
		synctest.Wait()
	})
}

// TestHoldInVain: where the server cannot be told that a session is held, whoever reads a branch of
// it returns as well.
func TestHoldInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bareConn(digest{}, minute) // without a connection
		c.client = true
		b, err := c.bareBranch(0)
		if err != nil {
			t.Fatal(err)
		}
		b.branches.fresh, b.up, c.branches.list[0] = false, newStanding(), b
		heard := make(chan error, 1)
		go func() {
			_, err := b.Read(make([]byte, 1))
			heard <- err
		}()
		synctest.Wait()
		if err := c.Hold(); !errors.Is(err, ErrLost) {
			t.Errorf("held: %v", err)
		}
		synctest.Wait()
		select {
		case err := <-heard:
			if !errors.Is(err, ErrHeld) {
				t.Error(err)
			}
		default:
			t.Error("who reads a branch waits still")
		}
		c.end(ErrLost)
		synctest.Wait()
	})
}
