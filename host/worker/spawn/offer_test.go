package spawn

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/offer"
)

// end is a worker's end of a link whose parent is p. killed is closed when the parent ends the
// worker.
func end(t *testing.T, shared *offer.Broker) (w *link.WorkerEnd, p *Process, killed chan struct{}) {
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
	if w, err = link.NewWorkerEnd(fd); err != nil {
		t.Fatal(err)
	}
	p, killed = newProcess(conn, shared), make(chan struct{})
	p.kill = func() error { close(killed); return nil }
	go p.routineReceive()
	t.Cleanup(func() {
		_ = w.Close()
		<-p.drained
		_ = conn.Close()
	})
	return w, p, killed
}

// ask sends a request and returns its answer.
func ask(t *testing.T, w *link.WorkerEnd, n uint64, m link.ToParent) link.Answer {
	t.Helper()
	if err := w.Send(m); err != nil {
		t.Fatal(err)
	}
	r, err := w.Receive()
	if err != nil {
		t.Fatal(err)
	}
	a, ok := r.Message().(link.Answer)
	if !ok || a.Request != n {
		t.Fatalf("answer %+v", r.Message())
	}
	return a
}

func closeFile(a link.Answer) {
	if fd := a.File.FD(); fd >= 0 {
		_ = unix.Close(fd)
	}
}

// TestShare: what one worker offers another redeems, until it is withdrawn or the first is gone.
func TestShare(t *testing.T) {
	var shared, other offer.Broker
	a, pa, _ := end(t, &shared)
	b, _, _ := end(t, &shared)
	c, _, _ := end(t, &other)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	token, second := offer.NewToken(), offer.NewToken()
	offer := func(n uint64, k offer.Token) link.Offer {
		return link.Offer{Request: n, Token: k, Blob: []byte("blob"), File: link.FileOf(int(f.Fd()))}
	}
	if r := ask(t, a, 7, offer(7, token)); r.Errno != 0 {
		t.Fatalf("offer: %d", r.Errno)
	}
	if r := ask(t, a, 8, offer(8, token)); r.Errno == 0 {
		t.Error("a token was offered twice")
	}
	redeem := link.Redeem{Request: 9, Token: token}
	r := ask(t, b, 9, redeem)
	if r.Errno != 0 || string(r.Blob) != "blob" || r.File.FD() < 0 {
		t.Errorf("redeemed %+v", r)
	}
	closeFile(r)
	if r := ask(t, c, 9, redeem); r.Errno == 0 || len(r.Blob) != 0 || r.File.FD() >= 0 {
		t.Errorf("another virtual GPU redeemed %+v", r)
	}
	if r := ask(t, a, 12, link.Withdraw{Request: 12, Token: token}); r.Errno != 0 {
		t.Errorf("withdrawn: %d", r.Errno)
	}
	if r := ask(t, a, 10, offer(10, second)); r.Errno != 0 {
		t.Errorf("second offer: %d", r.Errno)
	}
	if r := ask(t, b, 9, redeem); r.Errno == 0 {
		t.Error("redeemed what was withdrawn")
	}
	_ = a.Close()
	select {
	case <-pa.drained:
	case <-time.After(time.Minute):
		t.Fatal("the end of a worker goes unnoticed")
	}
	if r := ask(t, b, 11, link.Redeem{Request: 11, Token: second}); r.Errno == 0 {
		t.Error("redeemed what a worker that is gone had offered")
	}
}

// TestKeptIsCounted: what a worker lets go of, and what it has open of others, is counted before it
// is answered, or is gone.
func TestKeptIsCounted(t *testing.T) {
	var shared offer.Broker
	var kept atomic.Int64
	shared.OnKept(func(n int64) { kept.Add(n) })
	a, pa, _ := end(t, &shared)
	b, pb, _ := end(t, &shared)
	c, _, _ := end(t, &shared)
	step := func(what string, want int64) {
		t.Helper()
		if n := kept.Load(); n != want {
			t.Errorf("%s: %d bytes are kept, of %d", what, n, want)
		}
	}
	one, two := offer.NewToken(), offer.NewToken()
	ask(t, a, 1, link.Offer{Request: 1, Token: one, Memory: offer.Memory{Bytes: 10}})
	ask(t, a, 2, link.Offer{Request: 2, Token: two, Memory: offer.Memory{Bytes: 100}})
	for n, k := range []offer.Token{one, two} {
		ask(t, b, 3+uint64(n), link.Redeem{Request: 3 + uint64(n), Token: k})
		ask(t, c, 3+uint64(n), link.Redeem{Request: 3 + uint64(n), Token: k})
	}
	step("shared", 0)
	ask(t, a, 5, link.Withdraw{Request: 5, Token: one})
	step("withdrawn", 10)
	ask(t, b, 6, link.LetGo{Request: 6, Token: one})
	step("let go of by one", 10)
	_ = a.Close()
	<-pa.drained
	step("its owner gone", 110)
	ask(t, c, 7, link.LetGo{Request: 7, Token: one})
	step("let go of by both", 100)
	ask(t, c, 8, link.LetGo{Request: 8, Token: two})
	_ = b.Close()
	<-pb.drained
	step("all gone", 0)
}

// TestRedeemLater: a worker that waits for what another is about to share is answered then; one
// that waits for two things at once is ended.
func TestRedeemLater(t *testing.T) {
	var shared offer.Broker
	a, _, _ := end(t, &shared)
	b, _, _ := end(t, &shared)
	c, _, killed := end(t, &shared)
	token := offer.NewToken()
	for range 3 { // one after the other it may
		if err := b.Send(link.Redeem{Request: 3, Token: token, Await: true}); err != nil {
			t.Fatal(err)
		}
		if r := ask(t, b, 4, link.Redeem{Request: 4, Token: token}); r.Errno == 0 {
			// Who does not wait is told at once.
			t.Error("redeemed what nobody shares")
		}
		if r := ask(t, a, 5, link.Offer{Request: 5, Token: token, Blob: []byte("late")}); r.Errno != 0 {
			t.Fatalf("offer: %d", r.Errno)
		}
		r, err := b.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := r.Message().(link.Answer); !ok || m.Request != 3 || m.Errno != 0 || string(m.Blob) != "late" {
			t.Errorf("%+v", r.Message())
		}
		token = offer.NewToken()
	}
	for n := range uint64(2) {
		if err := c.Send(link.Redeem{Request: n, Token: offer.NewToken(), Await: true}); err != nil {
			t.Fatal(err)
		}
	}
	<-killed
}

// TestOfferOfALeaver: a token that another worker has is had when that one is gone, and its own
// answers at once that it has it.
func TestOfferOfALeaver(t *testing.T) {
	var shared offer.Broker
	a, _, _ := end(t, &shared)
	b, pb, _ := end(t, &shared)
	token := offer.NewToken()
	if r := ask(t, a, 1, link.Offer{Request: 1, Token: token, Blob: []byte("before")}); r.Errno != 0 {
		t.Fatalf("offer: %d", r.Errno)
	}
	if r := ask(t, a, 2, link.Offer{Request: 2, Token: token}); r.Errno == 0 {
		t.Error("offered twice by one")
	}
	if err := b.Send(link.Offer{Request: 3, Token: token, Blob: []byte("after")}); err != nil {
		t.Fatal(err)
	}
	if r := ask(t, b, 4, link.Redeem{Request: 4, Token: token}); string(r.Blob) != "before" {
		t.Errorf("while the other is there: %q", r.Blob)
	}
	_ = a.Close()
	r, err := b.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := r.Message().(link.Answer); !ok || m.Request != 3 || m.Errno != 0 {
		t.Fatalf("%+v", r.Message())
	}
	if r := ask(t, b, 5, link.Redeem{Request: 5, Token: token}); string(r.Blob) != "after" {
		t.Errorf("then: %q", r.Blob)
	}
	_ = b.Close()
	<-pb.drained
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, _, err := shared.Redeem(t, token); err != nil {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("offered by nobody")
		}
	}
}

// FuzzBroker is a worker that says anything about sharing: a byte for each message's kind,
// descriptor and length in units of 16, then its token's first byte and its payload. The parent
// answers each offer and request once, and nothing is left when the worker is gone.
func FuzzBroker(f *testing.F) {
	f.Fuzz(func(t *testing.T, said []byte) {
		before := descriptors(t)
		var shared offer.Broker
		kept := int64(0)
		shared.OnKept(func(n int64) { kept += n })
		w, p, _ := end(t, &shared)
		for n := uint64(1); len(said) > 1 && n < 64; n++ {
			how, token := said[0], offer.Token{said[1]}
			size := min(int(how/6)*16, len(said)-2)
			blob := said[2 : 2+size]
			said = said[2+size:]
			switch how % 3 {
			case 0:
				m := link.Offer{Request: n, Token: token, Memory: offer.Memory{Bytes: uint64(len(blob)), Of: uint64(how >> 6)}, Blob: blob}
				if how/3%2 == 1 {
					m.File = link.FileOf(0)
				}
				checkAnswer(t, ask(t, w, n, m))
			case 1:
				checkAnswer(t, ask(t, w, n, link.Redeem{Request: n, Token: token}))
			case 2:
				if how/3%2 == 1 {
					checkAnswer(t, ask(t, w, n, link.LetGo{Request: n, Token: token}))
				} else {
					checkAnswer(t, ask(t, w, n, link.Withdraw{Request: n, Token: token}))
				}
			}
		}
		_ = w.Close()
		<-p.drained
		_ = p.link.Close()
		if kept != 0 {
			t.Errorf("%d bytes are kept for nobody", kept)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func checkAnswer(t *testing.T, a link.Answer) {
	t.Helper()
	if a.Errno != 0 && (len(a.Blob) > 0 || a.File.FD() >= 0) {
		t.Errorf("answer %d with %d bytes, descriptor %d", a.Errno, len(a.Blob), a.File.FD())
	}
	closeFile(a)
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
