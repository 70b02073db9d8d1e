package resume

import (
	"errors"
	"testing"
)

// TestTurn: who agrees for an attempt that another has come after, having had no processor for so
// long, leaves that one alone; else the newer has the older end.
func TestTurn(t *testing.T) {
	c := bareConn(digest{}, minute)
	defer c.end(ErrLost)
	c.attempt = 8
	now, over, err := c.agrees.begin(c, 8)
	if err != nil {
		t.Fatal(err)
	}
	if ctx, _, err := c.agrees.begin(c, 7); ctx != nil || !errors.Is(err, errNewer) {
		t.Errorf("an older one has the turn: %v", err)
	}
	if now.Err() != nil {
		t.Error("an older one ends it")
	}
	c.attempt = 9
	next := make(chan error)
	go func() {
		_, over, err := c.agrees.begin(c, 9)
		if err == nil {
			over()
		}
		next <- err
	}()
	<-now.Done()
	over()
	if err := <-next; err != nil {
		t.Error(err)
	}
}
