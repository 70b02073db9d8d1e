package precopy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is both ends of a window of so many slots.
func pair(t testing.TB, slots int) (*Window, *Window) {
	t.Helper()
	mem := make([]byte, slots*Slot)
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	from, err := NewWindow(mem, buffered(a))
	if err != nil {
		t.Fatal(err)
	}
	to, err := NewWindow(mem, b)
	if err != nil {
		t.Fatal(err)
	}
	return from, to
}

// buffered reads ahead, as a socket has room for what nobody has read yet.
func buffered(c net.Conn) io.ReadWriter {
	r, w := io.Pipe()
	bytes := make(chan byte, 1000)
	go func() {
		defer close(bytes)
		var b [1]byte
		for {
			if _, err := c.Read(b[:]); err != nil {
				return
			}
			bytes <- b[0]
		}
	}()
	go func() {
		defer w.Close()
		for b := range bytes {
			if _, err := w.Write([]byte{b}); err != nil {
				return
			}
		}
	}()
	return struct {
		io.Reader
		io.Writer
	}{r, c}
}

// TestWindow: the same through a window, of fewer slots than there are pieces.
func TestWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		large := make([]byte, 2*Slot+Slot/2+rng.IntN(Block))
		for range 20 {
			large[rng.IntN(len(large))]++
		}
		m := memory{1 << 40: large}
		s, v := NewSender(), NewReceiver(1<<30, 100)
		from, to := pair(t, 2+rng.IntN(2))
		s.Through(from)
		v.Through(to)
		in, out := io.Pipe()
		sent := make(chan error, 1)
		go func() {
			w := bufio.NewWriter(out)
			rounds := rng.IntN(4)
			for range rounds {
				change(rng, m)
				if _, err := s.Round(context.Background(), (&restless{m, rng}).export, w); err != nil {
					sent <- err
					return
				}
			}
			change(rng, m)
			err := s.Still(w)
			if err == nil {
				_, err = s.Last(context.Background(), m.export, w)
			}
			sent <- errors.Join(err, w.Flush(), out.Close())
		}()
		copied := memory{}
		if err := v.Rounds(context.Background(), in); err != nil {
			t.Fatal(err)
		}
		if err := v.Last(context.Background(), in, copied.fill); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if !equal(m, copied) {
			t.Fatal("the copy is another")
		}
	}
}

// TestWindowRefused: a sender whose receiver ends does not wait for it.
func TestWindowRefused(t *testing.T) {
	mem := make([]byte, 2*Slot)
	w, err := NewWindow(mem, struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(nil), io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	s := NewSender()
	s.Through(w)
	m := memory{0x1000: bytes.Repeat([]byte{1}, 3*Slot)}
	if _, err := s.Last(context.Background(), m.export, io.Discard); !errors.Is(err, unix.EPIPE) {
		t.Fatal(err)
	}
}

// TestWindowLies: what the stream says of the window is checked.
func TestWindowLies(t *testing.T) {
	block := func(off uint32, size uint64) frame {
		return frame{kind: frameThere, size: off, addr: 0x1000, len: size}
	}
	for _, c := range []struct {
		what   string
		window bool
		frames []frame
	}{
		{"no window", false, []frame{block(0, 10)}},
		{"behind its end", true, []frame{block(2*Slot, 1)}},
		{"more than a slot", true, []frame{block(Slot-1, 2)}},
		{"not the next slot", true, []frame{block(Slot, 1)}},
		{"the same slot again", true, []frame{block(0, 1), block(Slot, 1), block(Slot, 1), block(Slot, 1), block(0, 1), block(0, 1), {kind: frameThere, addr: 0x1000, len: Slot + 1}}},
		{"nothing", true, []frame{block(0, 0)}},
	} {
		v := NewReceiver(1<<30, 10)
		if c.window {
			w, err := NewWindow(make([]byte, 2*Slot), &bytes.Buffer{})
			if err != nil {
				t.Fatal(err)
			}
			v.Through(w)
		}
		var wire bytes.Buffer
		wire.Write(frame{kind: frameAdd, addr: 0x1000, len: 2 * Slot}.append(nil))
		for _, f := range c.frames {
			wire.Write(f.append(nil))
		}
		if err := v.Rounds(context.Background(), &wire); !errors.Is(err, ErrStream) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
