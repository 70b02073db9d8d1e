package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/resume"
	"causeway/remote/shm"
	"causeway/remote/tcp"
)

// TestOutlinedBesideRounds: what a session is made of is asked for again and again, and no memory
// goes on behind it; a session that does not move is made of nothing that is said.
func TestOutlinedBesideRounds(t *testing.T) {
	l := newLeaves(t)
	stay := frame.Header{Kind: frame.Stay}
	for range 2 {
		l.says(t, frame.Header{Kind: frame.Rehearse})
		l.hears(t, frame.Whole)
		l.says(t, stay)
		l.says(t, frame.Header{Kind: frame.Ahead, Arg: 1})
		l.hears(t, frame.Whole)
		l.says(t, stay)
	}
	for what, s := range map[string]*starter{
		"not by a lease": {cfg: link.Config{Migratable: true}},
		"not migratable": {lasting: &resume.Conn{}},
	} {
		s.log = slog.New(slog.DiscardHandler)
		if _, err := s.outline(newRecorded(t).w, nil); err == nil {
			t.Errorf("%s: it is said", what)
		}
	}
}

// comesToRehearse is a worker to which so many bytes come of a session that is to be rehearsed;
// gone has its other end go.
func comesToRehearse(t *testing.T, wrap func(driver.Session) driver.Session, b []byte) (_ *starter, a arrival, answer <-chan remote.Hello) {
	t.Helper()
	guest, host := net.Pipe()
	heard := make(chan remote.Hello, 1)
	greeted := make(chan struct{})
	go func() {
		_, _ = guest.Write(framed(frame.Header{Kind: frame.Rehearse}, remote.FormatHello(remote.Hello{Type: remote.MsgHello, Va: 1 << 30, Size: remote.Region0Size}, "")))
		_, _ = io.ReadFull(guest, make([]byte, frame.HeaderSize)) // MORE
		close(greeted)
		for h := (frame.Header{}); h.Kind != frame.Welcome; {
			head := make([]byte, frame.HeaderSize)
			if _, err := io.ReadFull(guest, head); err != nil {
				close(heard)
				return
			}
			h = frame.ParseHeader(head)
			body := make([]byte, h.Len)
			_, _ = io.ReadFull(guest, body)
			if h.Kind == frame.Welcome {
				m, _, _ := remote.ParseHello(body)
				heard <- m
			}
		}
		_ = guest.Close()
	}()
	c, err := tcp.Accept(host)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-greeted
		for len(b) > 0 {
			part := b[:min(len(b), 4096)]
			if _, err := guest.Write(framed(frame.Header{Kind: frame.State}, part)); err != nil {
				return
			}
			b = b[len(part):]
		}
		_, _ = guest.Write(framed(frame.Header{Kind: frame.State}, nil))
	}()
	parent, worker := ends(t)
	t.Cleanup(func() { _, _, _ = parent.Close(), worker.Close(), guest.Close() })
	s := &starter{
		cfg: link.Config{Migratable: true}, lasting: &resume.Conn{}, link: worker, log: slog.New(slog.DiscardHandler),
		backend: func(string) (driver.Backend, error) { return fakeBackend{&drivertest.Backend{}, wrap}, nil },
	}
	a, ok := arrivalOf(c)
	if !ok || !c.Rehearsal() {
		t.Fatal("it does not come to be rehearsed")
	}
	return s, a, heard
}

// outlineOf is what a server writes of a snapshot, behind so much memory.
func outlineOf(t *testing.T, snap *snapshot, memory []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	out := state.NewWriter(&b)
	if err := begins(out, snap.Warm); err != nil {
		t.Fatal(err)
	}
	send := precopy.NewSender()
	if len(memory) > 0 {
		export := func(fn func(addr, size uint64, r io.Reader) error) error {
			return fn(1<<40, uint64(len(memory)), bytes.NewReader(memory))
		}
		if _, err := send.Round(context.Background(), export, out); err != nil {
			t.Fatal(err)
		}
	}
	if err := send.Still(out); err != nil {
		t.Fatal(err)
	}
	snap.write(out)
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRehearsedOfAHost: what comes of a session that is rehearsed is made once, and the answer says
// whether it could be; what is no session's, and what a worker without that right is told, says
// nothing of it. The worker ends each time, with nothing made.
func TestRehearsedOfAHost(t *testing.T) {
	made := newRecorded(t)
	made.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.StreamCreateArgs{Stream: 30}, &wire.StreamCreateArgs{Stream: 31})
	regions := []shm.RegionState{{ID: 5, VA: 1 << 41, Size: 8192}}
	outline := func(of *virtiofsState) *snapshot { return made.w.outline(of) }
	whole := outlineOf(t, outline(&virtiofsState{Head: 64, Regions: regions}), nil)
	for what, c := range map[string]struct {
		bytes  []byte
		change func(s *starter)
		reason wire.ID
		errno  unix.Errno
		says   string
	}{
		"all is well":             {bytes: whole},
		"one comes out another":   {bytes: whole, reason: 31, errno: unix.EADDRNOTAVAIL, says: "comes out another"},
		"not by a lease":          {bytes: whole, change: func(s *starter) { s.lasting = nil }, errno: unix.EIO, says: "by a lease alone"},
		"not migratable":          {bytes: whole, change: func(s *starter) { s.cfg.Migratable = false }, errno: unix.EIO, says: "not migratable"},
		"nothing":                 {errno: unix.EIO, says: "EOF"},
		"half of it":              {bytes: whole[:len(whole)/2], errno: unix.EIO, says: "EOF"},
		"more than a session":     {bytes: append(bytes.Clone(whole), 1), errno: unix.EIO, says: "more comes than a session"},
		"with memory":             {bytes: outlineOf(t, outline(&virtiofsState{}), make([]byte, 4096)), errno: unix.EIO, says: "more than 0 allocations"},
		"with guest memory":       {bytes: outlineOf(t, outline(&virtiofsState{Guest: []link.MemoryRegion{{GPA: 1 << 30, Size: 1 << 20}}}), nil), errno: unix.EIO, says: "guest memory"},
		"with a region twice":     {bytes: outlineOf(t, outline(&virtiofsState{Regions: append(regions, regions...)}), nil), errno: unix.EIO},
		"with another ring":       {bytes: outlineOf(t, outline(&virtiofsState{Regions: []shm.RegionState{{VA: 1 << 41, Size: 8192}}}), nil), errno: unix.EIO},
		"of a driver that waited": {bytes: outlineOf(t, func() *snapshot { s := outline(&virtiofsState{}); s.Warm = true; return s }(), nil), change: func(s *starter) { s.warm = false }, errno: unix.EIO, says: "started in another way"},
	} {
		t.Run(what, func(t *testing.T) {
			s, a, heard := comesToRehearse(t, func(d driver.Session) driver.Session { return reasoningGPU{newPlain(d), c.reason} }, c.bytes)
			if c.change != nil {
				c.change(s)
			}
			tried := make(chan error, 1)
			go func() { tried <- s.rehearsed(a) }()
			m, ok := <-heard
			if !ok || m.Type != remote.MsgWelcome || unix.Errno(m.Status) != c.errno {
				t.Errorf("the answer is %+v, %v", m, ok)
			}
			if err := <-tried; err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Error(err)
			}
			if !s.cfg.Rehearsal {
				t.Error("it was made to stay")
			}
		})
		s, a, _ := comesToRehearse(t, func(d driver.Session) driver.Session { return reasoningGPU{newPlain(d), c.reason} }, c.bytes)
		if c.change != nil {
			c.change(s)
		}
		s.cfg.Rehearsal = true
		_, err := s.tried(a)
		if _ = a.state.Close(); (err == nil) != (c.errno == 0) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", what, err, c.says)
		}
		_ = a.carrier.Close()
	}
}

// tellingGPU says something to the guest while a context is reset, as a driver does: that it is
// poisoned no more, and what the reset has printed.
type tellingGPU struct {
	*plainGPU
	host driver.Host
}

func (g tellingGPU) PrimaryCtxReset(c *wire.Call, a *wire.PrimaryCtxResetArgs) cuda.Result {
	g.host.SetSticky(cuda.ErrorLaunchFailed)
	g.host.SetSticky(cuda.Success)
	g.host.Console([]byte("printed"))
	g.host.ConsoleError([]byte("printed"))
	return g.plainGPU.PrimaryCtxReset(c, a)
}

// TestRehearsedReset: what a driver says to the guest while a session is made keeps nobody waiting,
// who would be the one to let the guest hear of it, and the guest hears nothing of it.
func TestRehearsedReset(t *testing.T) {
	made := newRecorded(t)
	made.must(1, &wire.PrimaryCtxRetainArgs{Ctx: 1}, &wire.PrimaryCtxResetArgs{Ctx: 1})
	s, a, heard := comesToRehearse(t, func(d driver.Session) driver.Session {
		return tellingGPU{newPlain(d), d.(*drivertest.Session).Host}
	}, outlineOf(t, made.w.outline(&virtiofsState{}), nil))
	tried := make(chan error, 1)
	go func() { tried <- s.rehearsed(a) }()
	select {
	case err := <-tried:
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the worker of a rehearsal stays")
	}
	if m, ok := <-heard; !ok || m.Status != 0 {
		t.Errorf("the answer is %+v, %v", m, ok)
	}
}

// TestArrivalWithoutParent: a session comes, or is rehearsed, whose guest's end says nothing more,
// in a worker whose parent was killed: the worker ends.
func TestArrivalWithoutParent(t *testing.T) {
	s, a, heard := comesToRehearse(t, func(d driver.Session) driver.Session { return newPlain(d) }, nil)
	parent, worker := ends(t)
	defer worker.Close()
	s.link, s.cfg.Tied = worker, true
	nothing, says := io.Pipe()
	defer says.Close()
	a.state = nothing
	over := make(chan error, 1)
	go func() { over <- s.arrive(t.Context(), a) }()
	if r, err := parent.Receive(); err != nil || r.Message() != (link.Rehearses{}) {
		t.Errorf("the parent hears %v, %v", r, err)
	}
	if worker.Gone() {
		t.Error("its parent is gone")
	}
	_ = parent.Close()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("the worker stays")
	}
	if m, ok := <-heard; !ok || m.Status == 0 {
		t.Errorf("the answer is %+v, %v", m, ok)
	}
	if !worker.Gone() {
		t.Error("its parent is there")
	}
}
