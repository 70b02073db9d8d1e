package device_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/host/device"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/verbs"
	"causeway/virtio/fs/fstest"
)

// beside is a guest process that would be an RDMA end, and what it hears.
type beside struct {
	t    *testing.T
	v    *vm
	file *fstest.File
	came []byte
}

func openBeside(t *testing.T, v *vm) *beside {
	t.Helper()
	f, err := v.Open(syscall.O_RDWR, fuse.Caller{Pid: 4711}, "session")
	if err != nil {
		t.Fatal(err)
	}
	return &beside{t: t, v: v, file: f}
}

func (b *beside) control(h remote.Hello) error {
	_, err := b.file.WriteBytes(remote.FormatHello(h, ""), int64(remote.FileControl))
	return err
}

func (b *beside) write(p []byte) error {
	_, err := b.file.WriteBytes(p, int64(remote.FileDirect))
	return err
}

// read returns n bytes of what is sent to the guest, or with an error what came.
func (b *beside) read(n int) ([]byte, error) {
	for end := time.Now().Add(hangs); len(b.came) < n; {
		pages := b.v.Pages(1)
		c, err := b.file.Read(0, int64(remote.FileDirect), pages)
		if err != nil {
			return b.came, err
		}
		p, errno, err := c.Wait(time.Minute)
		switch {
		case err != nil:
			return b.came, err
		case errno != 0:
			return b.came, errno
		case time.Now().After(end):
			b.t.Fatalf("of %d bytes that are to be said %d are", n, len(b.came))
		}
		b.came = append(b.came, pages[0].Bytes[:len(p)]...)
	}
	out := b.came[:n:n]
	b.came = b.came[n:]
	return out, nil
}

// welcome is how the host, and the GPU server, answer.
func (b *beside) welcome() (remote.Hello, string) {
	b.t.Helper()
	p, err := b.read(remote.HelloSize)
	if err != nil {
		b.t.Fatal(err)
	}
	var h remote.Hello
	if err := h.Decode(p); err != nil {
		b.t.Fatal(err)
	}
	text, err := b.read(int(h.TextLen))
	if err != nil {
		b.t.Fatal(err)
	}
	h, s, err := remote.ParseHello(append(p, text...))
	if err != nil || h.Type != remote.MsgWelcome {
		b.t.Fatal(h, err)
	}
	return h, s
}

// bootDirect is bootRelayed of a device whose programs may be RDMA ends, with a server whose
// sessions go by RDMA as rdma says.
func bootDirect(t *testing.T, rdma string) *vm {
	t.Helper()
	s := newRelayServer(t)
	s.rdma = rdma
	v := bootWith(t, func(o *device.Options) {
		s.options(o)
		o.Worker.Direct, o.Tree.Direct = true, true
	})
	s.endsFirst(t)
	return v
}

var directHello = remote.Hello{Type: remote.MsgDirect}

// TestDirect: what a guest process that is an RDMA end says beside the fabric reaches the server's
// worker, and what that says comes back; nothing else may be said on the file. Here the server has
// no adapter, and says so.
func TestDirect(t *testing.T) {
	v := bootDirect(t, "none0")
	b := openBeside(t, v)
	if err := b.control(directHello); err != nil {
		t.Fatal(err)
	}
	if h, text := b.welcome(); h.Status != 0 || text != "127.0.0.1" {
		t.Fatal(h, text)
	}
	if err := b.control(remote.Hello{Type: remote.MsgRegion, Region: 1, Va: 1 << 30, Size: 1 << 20}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a region of an RDMA end: %v", err)
	}
	if err := b.control(directHello); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a second one on the same file: %v", err)
	}
	if err := errors.Join(v.StopRings(), v.StartRings()); err != nil {
		// Nothing is lent, and nothing in the way of a VM that stands.
		t.Fatal(err)
	}
	own := verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 5, GID: [16]byte{1}, Window: verbs.Window{Size: verbs.LeastWindow, Address: 4096}}
	if err := b.write(own.Append(nil)); err != nil {
		t.Fatal(err)
	}
	p, err := b.read(64)
	if err != nil {
		t.Fatal(err)
	}
	why, err := b.read(int(binary.LittleEndian.Uint16(p[8:])))
	if err != nil || !strings.Contains(string(why), "libibverbs") && !strings.Contains(string(why), "none0") {
		t.Errorf("the server's offer: %q, %v", why, err)
	}
	if _, err := b.read(1); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("it goes on: %v", err)
	}
	if err := b.write([]byte("CWVBYE")); err == nil {
		t.Error("there is still somebody to talk to")
	}
	_ = b.file.Close()
	_, g := start(t, v) // the same program goes by the host
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestDirectEnds: a guest process that is an RDMA end and goes takes its session along, at every
// step.
func TestDirectEnds(t *testing.T) {
	v := bootDirect(t, link.RDMAAuto)
	for step := range 3 {
		b := openBeside(t, v)
		if step > 0 {
			if err := b.control(directHello); err != nil {
				t.Fatal(err)
			}
		}
		if step > 1 {
			b.welcome()
		}
		if err := b.file.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the session ends", func() bool { return len(v.device.Status().Sessions) == 0 })
	}
	b := openBeside(t, v)
	if err := b.control(directHello); err != nil {
		t.Fatal(err)
	}
	b.welcome()
	if err := b.control(remote.Hello{Type: remote.MsgRegionEnd}); err != nil {
		// With its file open, as when its link has failed.
		t.Fatal(err)
	}
	eventually(t, "the session ends", func() bool { return len(v.device.Status().Sessions) == 0 })
	if _, err := b.read(1); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("it goes on: %v", err)
	}
}

// TestDirectRefused: where programs may be none, and where the server has RDMA off, that is said,
// and inspect has what a program that goes by the host says of it.
func TestDirectRefused(t *testing.T) {
	b := openBeside(t, bootRelayed(t))
	if err := b.control(directHello); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("a host that has it off: %v", err)
	}
	v := bootDirect(t, "")
	b = openBeside(t, v)
	if err := b.control(directHello); err != nil {
		t.Fatal(err)
	}
	if h, text := b.welcome(); h.Status == 0 || !strings.Contains(text, "the GPU server has RDMA off") {
		t.Errorf("%+v, %q", h, text)
	}
	if err := b.file.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session that was refused ends", func() bool { return len(v.device.Status().Sessions) == 0 })
	v.apart = "no adapter"
	_, g := start(t, v)
	if s := v.device.Status().Sessions; len(s) != 1 || s[0].Carrier != "TCP with TLS; not by the guest itself: no adapter" {
		t.Errorf("what carries the session: %+v", s)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
