package spawn

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/share"
	"causeway/remote/sys"
)

// end is a worker's end of a link whose parent is p.
func end(t *testing.T, shared *share.Broker) (*link.Conn, *Process) {
	t.Helper()
	conn, child, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(child.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = child.Close()
	if err != nil {
		t.Fatal(err)
	}
	w, err := link.New(fd)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{link: conn, shared: shared, replies: make(chan link.Message, 1), drained: make(chan struct{})}
	go p.routineReceive()
	t.Cleanup(func() {
		_ = w.Close()
		<-p.drained
		_ = conn.Close()
	})
	return w, p
}

func ask(t *testing.T, w *link.Conn, m link.Message) link.Message {
	t.Helper()
	if err := w.Send(m); err != nil {
		t.Fatal(err)
	}
	a, err := w.Receive()
	if err != nil || a.Type != link.Answer || a.A != m.A {
		t.Fatalf("answer %+v, %v", a, err)
	}
	return a
}

// TestShare: what one worker offers another redeems, until it is withdrawn or the first is gone.
func TestShare(t *testing.T) {
	var shared, other share.Broker
	a, pa := end(t, &shared)
	b, _ := end(t, &shared)
	c, _ := end(t, &other)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	token, second := share.NewToken(), share.NewToken()
	offer := func(n uint64, k share.Token) link.Message {
		return link.Message{Type: link.Offer, A: n, Payload: append(k[:], "blob"...), Files: []int{int(f.Fd())}}
	}
	if r := ask(t, a, offer(7, token)); r.B != 0 {
		t.Fatalf("offer: %d", r.B)
	}
	if r := ask(t, b, offer(8, token)); r.B == 0 {
		t.Error("a token was offered twice")
	}
	redeem := link.Message{Type: link.Redeem, A: 9, Payload: token[:]}
	r := ask(t, b, redeem)
	if r.B != 0 || string(r.Payload) != "blob" || len(r.Files) != 1 {
		t.Errorf("redeemed %+v", r)
	}
	sys.CloseAll(r.Files)
	if r := ask(t, c, redeem); r.B == 0 || len(r.Payload) != 0 || len(r.Files) != 0 {
		t.Errorf("another virtual GPU redeemed %+v", r)
	}
	for _, bad := range []link.Message{
		{Type: link.Redeem, A: 1}, {Type: link.Offer, A: 2, Payload: token[:31]},
		{Type: link.Offer, A: 3, Payload: make([]byte, share.TokenSize+share.MaxBlob+1)},
		{Type: link.Offer, A: 4, Payload: second[:], Files: []int{int(f.Fd()), int(f.Fd())}},
	} {
		if r := ask(t, b, bad); r.B == 0 {
			t.Errorf("message %d of %d bytes was taken", bad.Type, len(bad.Payload))
		}
	}
	if err := a.Send(link.Message{Type: link.Withdraw, Payload: token[:]}); err != nil {
		t.Fatal(err)
	}
	if r := ask(t, a, offer(10, second)); r.B != 0 {
		t.Errorf("second offer: %d", r.B)
	}
	if r := ask(t, b, redeem); r.B == 0 {
		t.Error("redeemed what was withdrawn")
	}
	_ = a.Close()
	select {
	case <-pa.drained:
	case <-time.After(5 * time.Second):
		t.Fatal("the end of a worker goes unnoticed")
	}
	if r := ask(t, b, link.Message{Type: link.Redeem, A: 11, Payload: second[:]}); r.B == 0 {
		t.Error("redeemed what a worker that is gone had offered")
	}
}

// FuzzBroker is a worker that says anything about sharing: a byte for each message's type, number of descriptors and length in
// units of 16, then its payload. The parent answers each offer and request once, and nothing is left when the worker is gone.
func FuzzBroker(f *testing.F) {
	f.Fuzz(func(t *testing.T, said []byte) {
		before := descriptors(t)
		var shared share.Broker
		w, p := end(t, &shared)
		for n := uint64(1); len(said) > 0 && n < 64; n++ {
			m := link.Message{Type: link.Offer + link.Type(said[0]%3), A: n}
			for range said[0] / 3 % 3 {
				m.Files = append(m.Files, 0)
			}
			size := min(int(said[0]/9)*16, len(said)-1)
			m.Payload, said = said[1:1+size], said[1+size:]
			if m.Type == link.Withdraw && size >= share.TokenSize && len(m.Files) < 2 {
				if err := w.Send(m); err != nil {
					t.Fatal(err)
				}
				continue
			}
			a := ask(t, w, m)
			if len(a.Files) > 1 || a.B != 0 && len(a.Payload)+len(a.Files) > 0 || len(a.Payload) > share.MaxBlob {
				t.Errorf("%d: answer %d with %d bytes, %d descriptors", m.Type, a.B, len(a.Payload), len(a.Files))
			}
			sys.CloseAll(a.Files)
		}
		_ = w.Close()
		<-p.drained
		_ = p.link.Close()
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
