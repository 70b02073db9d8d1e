package vhostuser_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

func TestAcceptsAgain(t *testing.T) {
	dev := &fakeDevice{}
	b := serve(t, dev)
	for i := 0; i < 3; i++ {
		f := b.connect()
		m := ram(t, 0, 1<<20)
		must(t, f.AddMemory(m))
		if n := len(b.mem.Regions()); n != 1 {
			t.Fatalf("%d regions", n)
		}
		f.Close()
		eventually(t, "disconnect", func() bool { return strings.HasSuffix(dev.take(), "disconnect") })
		eventually(t, "memory gone", func() bool { return len(b.mem.Regions()) == 0 })
	}
}

func TestOneFrontEndAtATime(t *testing.T) {
	b := serve(t, &fakeDevice{})
	first := b.connect()
	second := b.dial()
	if _, err := second.GetU64(vhostuser.GetFeatures, nil); err == nil {
		t.Error("a second front end was served")
	}
	if _, err := first.GetU64(vhostuser.GetFeatures, nil); err != nil {
		t.Errorf("the first front end lost its connection: %v", err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := vhostuser.Listen(path)
	must(t, err)
	if _, err := vhostuser.Listen(path); err == nil {
		t.Error("a socket in use was taken over")
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	ln, err = vhostuser.Listen(path)
	must(t, err)
	ln.Close()
	must(t, os.WriteFile(path, nil, 0o600))
	if _, err := vhostuser.Listen(path); err == nil {
		t.Error("an ordinary file was replaced")
	}
}

func TestServeEndsWithContext(t *testing.T) {
	ln, err := vhostuser.Listen(filepath.Join(t.TempDir(), "s"))
	must(t, err)
	ln.Close()
	if err := vhostuser.NewServer(vhostuser.NewMemory(), &fakeDevice{}, vhostuser.Options{}).Serve(context.Background(), ln); err == nil {
		t.Error("Serve on a closed listener returned nil")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ln, err = vhostuser.Listen(filepath.Join(t.TempDir(), "s"))
	must(t, err)
	if err := vhostuser.NewServer(vhostuser.NewMemory(), &fakeDevice{}, vhostuser.Options{}).Serve(ctx, ln); err != nil {
		t.Errorf("Serve = %v", err)
	}
}

func TestRingLifecycle(t *testing.T) {
	dev := &fakeDevice{next: 77}
	b := serve(t, dev)
	f := b.connect()
	if got := dev.take(); got != "reset" {
		t.Errorf("handshake called %q", got)
	}
	m := ram(t, 0x10_0000, 1<<20)
	must(t, f.AddMemory(m))
	r := &vhosttest.Ring{Size: 64, Desc: 0x10_0000, Avail: 0x10_1000, Used: 0x10_2000}
	must(t, f.StartRing(m, 1, r, 5))
	if got := dev.take(); got != "start1" {
		t.Errorf("ring start called %q", got)
	}
	c := dev.config(1)
	if c.Size != 64 || c.Desc != r.Desc || c.Avail != r.Avail || c.Used != r.Used || c.Base != 5 || !c.EventIdx || !c.IndirectDesc || c.LogUsed {
		t.Errorf("config %+v", c)
	}
	// Both directions of notification; QEMU's eventfd stays non-blocking.
	r.Kick.Signal()
	must(t, c.Kick.Wait())
	c.Call.Signal()
	if !r.Call.Wait(time.Minute) {
		t.Error("the call did not arrive")
	}
	if !r.Kick.NonBlocking() || !r.Call.NonBlocking() {
		t.Error("an eventfd of the front end became blocking")
	}
	// A migration starts: features and addresses with the log flag, while the ring runs.
	must(t, f.SetFeatures(vhostuser.Features))
	addr := append(vhosttest.U32s(1, 1), vhosttest.U64(m.UserOf(r.Desc), m.UserOf(r.Used), m.UserOf(r.Avail), 0x10_2000)...)
	must(t, f.Set(vhostuser.SetVringAddr, addr))
	if got := dev.take(); got != "update1 update1" {
		t.Errorf("log start called %q", got)
	}
	if c := dev.config(1); !c.LogUsed || c.LogAddr != 0x10_2000 || !b.mem.Logging() {
		t.Errorf("config %+v", c)
	}
	base, err := f.StopRing(1)
	must(t, err)
	if base != 77 {
		t.Errorf("GET_VRING_BASE = %d", base)
	}
	if got := dev.take(); got != "stop1" {
		t.Errorf("ring stop called %q", got)
	}
	// A ring that never ran has a base too.
	if base, err := f.StopRing(2); err != nil || base != 0 {
		t.Errorf("GET_VRING_BASE of an idle ring = %d, %v", base, err)
	}
	must(t, f.StartRing(m, 1, r, 77))
	must(t, f.Set(vhostuser.ResetDevice, nil))
	if got := dev.take(); got != "start1 stop1 reset" {
		t.Errorf("reset called %q", got)
	}
	// It has all else that it needs, and runs when it is enabled, as after a connection.
	must(t, f.Set(vhostuser.SetVringAddr, addr))
	if got := dev.take(); got != "" {
		t.Errorf("after a reset it is not enabled, and %q", got)
	}
	must(t, f.Set(vhostuser.SetVringEnable, vhosttest.U32s(1, 1)))
	if got := dev.take(); got != "start1" {
		t.Errorf("enabled after a reset: %q", got)
	}
}

func TestRingThatCannotStart(t *testing.T) {
	dev := &fakeDevice{refuse: errors.New("misaligned")}
	b := serve(t, dev)
	f := b.connect()
	m := ram(t, 0, 1<<20)
	must(t, f.AddMemory(m))
	r := &vhosttest.Ring{Size: 64, Desc: 0, Avail: 0x1000, Used: 0x2000}
	fault := newEvent(t)
	must(t, f.Set(vhostuser.SetVringErr, vhosttest.U64(0), fault.FD()))
	if err := f.StartRing(m, 0, r, 0); !errors.Is(err, vhosttest.ErrRefused) {
		t.Errorf("start = %v", err)
	}
	if !fault.Wait(0) {
		t.Error("the front end does not hear of it by the ring's eventfd")
	}
	// Without an acknowledgement to carry the news, the connection survives: it is the guest's
	// mistake.
	must(t, f.Send(vhostuser.SetVringEnable, 0, vhosttest.U32s(0, 1)))
	if _, err := f.GetU64(vhostuser.GetFeatures, nil); err != nil {
		t.Errorf("the connection ended: %v", err)
	}
}

func TestDeviceState(t *testing.T) {
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = byte(i * 7)
	}
	dev := &migratable{state: big}
	b := serve(t, dev)
	f := b.connect()
	save := func() ([]byte, uint64, uint64) {
		r, w, err := os.Pipe()
		must(t, err)
		defer r.Close()
		p, err := f.GetU64(vhostuser.SetDeviceStateFD, vhosttest.U32s(0, 0), int(w.Fd()))
		must(t, err)
		w.Close()
		got, err := io.ReadAll(r)
		must(t, err)
		c, err := f.GetU64(vhostuser.CheckDeviceState, nil)
		must(t, err)
		return got, p, c
	}
	// The reply comes although nobody reads the pipe yet: 3 MiB do not fit in it.
	if got, p, c := save(); string(got) != string(big) || p != 1<<8 || c != 0 {
		t.Errorf("saved %d bytes, replies %#x and %d", len(got), p, c)
	}
	load := func(data []byte) uint64 {
		r, w, err := os.Pipe()
		must(t, err)
		p, err := f.GetU64(vhostuser.SetDeviceStateFD, vhosttest.U32s(1, 0), int(r.Fd()))
		must(t, err)
		if p != 1<<8 {
			t.Errorf("load replied %#x", p)
		}
		r.Close()
		_, err = w.Write(data)
		must(t, err)
		w.Close()
		c, err := f.GetU64(vhostuser.CheckDeviceState, nil)
		must(t, err)
		return c
	}
	if c := load(big); c != 0 || string(dev.loaded) != string(big) {
		t.Errorf("loaded %d bytes, check %d", len(dev.loaded), c)
	}
	if c, err := f.GetU64(vhostuser.CheckDeviceState, nil); err != nil || c == 0 {
		t.Errorf("a transfer that was checked is checked again: %d, %v", c, err)
	}
	dev.err = errors.New("corrupt")
	if c := load([]byte("x")); c == 0 {
		t.Error("a failed load was reported as success")
	}
	if _, _, c := save(); c == 0 {
		t.Error("a failed save was reported as success")
	}
	if c, err := f.GetU64(vhostuser.CheckDeviceState, nil); err != nil || c == 0 {
		t.Errorf("check without a transfer = %d, %v", c, err)
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	for _, bad := range [][]byte{vhosttest.U32s(2, 0), vhosttest.U32s(0, 1)} {
		if p, err := f.GetU64(vhostuser.SetDeviceStateFD, bad, int(w.Fd())); err != nil || p&0xff == 0 {
			t.Errorf("transfer % x = %#x, %v", bad, p, err)
		}
	}
	// A transfer that nobody ends is aborted with the connection.
	if _, err := f.GetU64(vhostuser.SetDeviceStateFD, vhosttest.U32s(1, 0), int(r.Fd())); err != nil {
		t.Error(err)
	}
}

// TestTransfersInTurn: one transfer goes on at a time, undisturbed by another that is refused; what
// ended unchecked is in nobody's way.
func TestTransfersInTurn(t *testing.T) {
	big := bytes.Repeat([]byte("state"), 100_000)
	dev := &migratable{state: big}
	f := serve(t, dev).connect()
	begin := func(direction uint32, fd *os.File) uint64 {
		p, err := f.GetU64(vhostuser.SetDeviceStateFD, vhosttest.U32s(direction, 0), int(fd.Fd()))
		must(t, err)
		must(t, fd.Close())
		return p
	}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		must(t, err)
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		return r, w
	}
	in, data := pipe()
	if p := begin(1, in); p != 1<<8 {
		t.Fatalf("load replied %#x", p)
	}
	_, err := data.Write([]byte("first"))
	must(t, err)
	for direction := range uint32(2) {
		r, w := pipe()
		if p := begin(direction, [...]*os.File{w, r}[direction]); p&0xff == 0 {
			t.Errorf("direction %d beside another transfer: %#x", direction, p)
		}
	}
	_, err = data.Write([]byte(" and second"))
	must(t, err)
	must(t, data.Close())
	if c, err := f.GetU64(vhostuser.CheckDeviceState, nil); err != nil || c != 0 || string(dev.loaded) != "first and second" {
		t.Errorf("loaded %q, check %d, %v", dev.loaded, c, err)
	}

	out, to := pipe()
	if p := begin(0, to); p != 1<<8 {
		t.Fatalf("save replied %#x", p)
	}
	got, err := io.ReadAll(out)
	must(t, err)
	if !bytes.Equal(got, big) {
		t.Errorf("saved %d bytes", len(got))
	}
	for p, until := uint64(0), time.Now().Add(10*time.Second); p != 1<<8; {
		// The end of the file comes just before the transfer's.
		in, data := pipe()
		if p = begin(1, in); time.Now().After(until) {
			t.Fatalf("load after a save that was not checked: %#x", p)
		}
		_, _ = data.Write([]byte("third"))
		must(t, data.Close())
	}
	if c, err := f.GetU64(vhostuser.CheckDeviceState, nil); err != nil || c != 0 || string(dev.loaded) != "third" {
		t.Errorf("loaded %q after a save that was not checked, check %d, %v", dev.loaded, c, err)
	}
}

func TestDeviceStateUnsupported(t *testing.T) {
	f := serve(t, &fakeDevice{}).connect()
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	if p, err := f.GetU64(vhostuser.SetDeviceStateFD, vhosttest.U32s(0, 0), int(w.Fd())); err != nil || p&0xff == 0 {
		t.Errorf("device state of a device without = %#x, %v", p, err)
	}
}
