package tcp

import (
	"bufio"
	"bytes"
	"errors"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// TestDataOfASessionThatIsOver: an answer that a branch had in its buffer when the session ended breaks no rule: the session ends for the reason that it has.
func TestDataOfASessionThatIsOver(t *testing.T) {
	m := newMemory(&Carrier{})
	m.reads = []*read{{id: 1, p: make([]byte, 8), whole: &whole{left: 1, done: make(chan error, 1)}}}
	w := m.reads[0].whole
	m.fail(remote.ErrClosed)
	if err := <-w.done; !errors.Is(err, remote.ErrClosed) {
		t.Error(err)
	}
	err := m.data(frame.Header{Kind: frame.Data, Arg: 1, Len: 8}, bufio.NewReader(bytes.NewReader(make([]byte, 8))), trunk+1)
	if !errors.Is(err, remote.ErrClosed) || errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
}
