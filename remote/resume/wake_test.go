package resume

import (
	"errors"
	"testing"
	"testing/synctest"

	"causeway/remote/frame"
)

// TestWriterOfALostConnection: who waits because a connection is far behind goes on when it is lost, and need not wait for the next.
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

// TestReaderOfAStreamThatEnds: who waits for a connection hears at once that there will be none, or that the stream is held.
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
