package tcp

import (
	"bufio"
	"bytes"
	"errors"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// TestDataOfASessionThatIsOver: an answer that a branch had in its buffer when the session ended
// breaks no rule: the session ends for the reason that it has.
func TestDataOfASessionThatIsOver(t *testing.T) {
	m := newMemory(&Carrier{})
	m.reads = []*read{{id: 1, p: make([]byte, 8), whole: &whole{left: 1, done: make(chan error, 1), rung: &m.rung}}}
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

// TestReadsOfASessionThatIsOver: what is asked for when the session has ended, or was before, is
// answered once, in however many parts it would have come.
func TestReadsOfASessionThatIsOver(t *testing.T) {
	for _, most := range []int{0, 4} {
		for _, n := range []int{1, wideLeast + 1, frame.MaxRead, 2*frame.MaxRead + 1} {
			m := newMemory(&Carrier{})
			m.c.wide.most = most
			m.fail(remote.ErrClosed)
			done := m.request(1, make([]byte, n), 0)
			select {
			case err := <-done:
				if !errors.Is(err, remote.ErrClosed) {
					t.Errorf("%d bytes: %v", n, err)
				}
			default:
				t.Errorf("%d bytes, with up to %d branches: no answer", n, most)
			}
			if len(m.reads) != 0 {
				t.Errorf("%d bytes: %d READs wait", n, len(m.reads))
			}
			if err := m.ReadAt(1, make([]byte, n), 0); !errors.Is(err, remote.ErrClosed) {
				t.Error(err)
			}
		}
	}
}
