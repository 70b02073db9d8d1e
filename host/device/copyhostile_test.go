package device

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/worker/link"
)

// TestSourceThatDoesNotRead: a source that takes no answer, on its first connection or on another,
// does not keep the vGPU from others for ever.
func TestSourceThatDoesNotRead(t *testing.T) {
	d, err := New(Options{Tree: Tree{Lib: library(t), GPU: "a GPU"}, Worker: link.Config{GPU: "soft"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h := d.copyHello()
	h.Connections, h.Join = 2, make([]byte, tokenSize)
	hello, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		theirs, ours := net.Pipe()
		ended := make(chan error, 2)
		go func() { ended <- d.CopyFrom(t.Context(), ours) }()
		if _, err := theirs.Write(frameOf(copyHello, 0, 0, hello)); err != nil {
			t.Fatal(err)
		}
		another, joins := net.Pipe()
		go func() { ended <- d.CopyFrom(t.Context(), joins) }()
		if _, err := another.Write(frameOf(copyJoin, 0, 0, h.Join)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("it ended without a reason")
			}
		}
		if _, ok := d.in.status(); ok || !d.in.open(ours) {
			t.Error("the vGPU is kept from others")
		}
		_, _ = theirs.Close(), another.Close()
	})
}

// TestRehearsalsAreBounded: what another host has rehearsed takes nothing of what the vGPU's
// sessions have, and no more than those may, all together; and nothing when it is over.
func TestRehearsalsAreBounded(t *testing.T) {
	const most = 64 << 20
	d, err := New(Options{Tree: Tree{Lib: library(t), GPU: "a GPU"}, Worker: link.Config{GPU: "soft"}, Limits: api.Limits{Memory: most, HostMemory: 1 << 30}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeWorkers{lent: func(uint64) bool { return true }, fail: t.Errorf}
	d.workers = f
	hello, err := json.Marshal(d.copyHello())
	if err != nil {
		t.Fatal(err)
	}
	open := func(flags byte) []byte {
		b := make([]byte, openSize)
		binary.LittleEndian.PutUint64(b[tokenSize+3*4:], link.DrawBase())
		b[openSize-4] = flags
		return b
	}
	theirs, ours := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- d.CopyFrom(t.Context(), ours) }()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	if _, err := theirs.Write(said(copyFrameBytes(copyHello, 0, hello...), copyFrameBytes(copyOpen, 1, open(rehearses)...), copyFrameBytes(copyOpen, 2, open(rehearses)...),
		copyFrameBytes(copyOpen, 3, open(0)...))); err != nil {
		t.Fatal(err)
	}
	started := func() []*fakeWorker {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.started
	}
	for late := time.Now().Add(time.Minute); len(started()) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the workers do not start")
		}
	}
	slots := map[[3]int]bool{}
	for i, w := range started()[:3] {
		memory, host := -1, -1
		for _, p := range w.cfg.Pages {
			switch p.Kind {
			case link.PageMemory:
				memory = p.File
			case link.PageHost:
				host = p.File
			}
		}
		own := memory == d.budget.File() && host == d.host.File()
		if apart := memory == d.apart.memory.File() && host == d.apart.host.File(); w.cfg.Rehearsal != apart || w.cfg.Rehearsal == own {
			t.Errorf("worker %d, a rehearsal: %v, has the session's budgets: %v", i, w.cfg.Rehearsal, own)
		}
		slots[[3]int{memory, w.cfg.MemorySlot, w.cfg.HostSlot}] = true
	}
	if len(slots) != 3 || d.apart.memory.Limit() != most || d.apart.host.Limit() != 1<<30 {
		t.Errorf("%d slots of rehearsals with %d bytes and %d of the host's", len(slots), d.apart.memory.Limit(), d.apart.host.Limit())
	}
	if _, err := d.SetLimits(api.Change{Memory: new(limit.Memory)}); err != nil || d.apart.memory.Limit() != 0 {
		t.Errorf("without a limit rehearsals have %d bytes: %v", d.apart.memory.Limit(), err)
	}
	_ = theirs.Close()
	<-ended
	for late := time.Now().Add(time.Minute); len(d.all()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("sessions are left")
		}
	}
	if s, err := d.apart.take(); err != nil || *s != (apartSlots{}) {
		t.Errorf("a slot is left: %+v, %v", s, err)
	}
}
