package device_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/virtio/fs/fstest"
)

// startsGPU is a software GPU whose driver has started when the test says so, at the socket that
// startsEnv names.
const (
	startsGPU = "starts"
	startsEnv = "CAUSEWAY_TEST_STARTS"
)

type startingBackend struct{ driver.Backend }

// Warm implements driver.Warmer.
func (startingBackend) Warm(driver.Options) error {
	c, err := net.Dial("unix", os.Getenv(startsEnv))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// starts are the drivers that start.
type starts struct {
	t    *testing.T
	ln   *net.UnixListener
	base uint64
}

func newStarts(t *testing.T) *starts {
	path := filepath.Join(t.TempDir(), "starts")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	t.Setenv(startsEnv, path)
	return &starts{t: t, ln: ln, base: link.DrawBase()}
}

// on has a device's sessions run there.
func (s *starts) on(o *device.Options) { o.Worker = link.Config{GPU: startsGPU, Base: s.base} }

// come waits until n more are starting, all at once, and returns what has them go on. Drivers of
// which one starts after the other never come, nor does that of a program that was lost: that is
// said, and those that came go on.
func (s *starts) come(n int) (goOn func()) {
	s.t.Helper()
	var list []net.Conn
	for i := range n {
		_ = s.ln.SetDeadline(time.Now().Add(hangs))
		c, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			break // the test has failed, and says why
		}
		if err != nil {
			s.t.Errorf("of %d drivers %d start at once: %v", n, i, err)
			break
		}
		list = append(list, c)
	}
	return func() {
		for _, c := range list {
			if _, err := c.Write([]byte{1}); err != nil {
				s.t.Error(err)
			}
			c.Close()
		}
	}
}

// program starts one.
func (s *starts) program(v *vm, seed byte) *holding {
	s.t.Helper()
	came := make(chan struct{})
	go func() {
		s.come(1)()
		close(came)
	}()
	h := hold(s.t, v, seed)
	await(s.t, "a program's driver does not start", came)
	return h
}

// arrive takes a VM there, where so many drivers start at once, and ends its programs.
func (s *starts) arrive(v, there *vm, programs []*holding, drivers int) {
	s.t.Helper()
	came := make(chan struct{})
	go func() {
		s.come(drivers)()
		close(came)
	}()
	arrive(s.t, v, there.socket, save(s.t, v))
	await(s.t, "the drivers of a VM that came do not start", came)
	for _, h := range programs {
		h.check(s.t)
		if err := h.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

// atOnce is more drivers than would start at a time by the processors of a small machine.
const atOnce = 3

// TestDriversStartTogether: of a VM that comes, the drivers of all programs start at once, as soon
// as its state begins.
func TestDriversStartTogether(t *testing.T) {
	s := newStarts(t)
	v, other := onSoft(t, s.on), empty(t, s.on)
	var programs []*holding
	for i := range atOnce {
		programs = append(programs, s.program(v, byte(i)))
	}
	s.arrive(v, other, programs, len(programs))
}

// TestDriversWait: workers that wait ready where a VM comes to take its programs, if they began
// from the same base; those for which there is none start theirs.
func TestDriversWait(t *testing.T) {
	for name, c := range map[string]struct {
		other  bool // the workers that wait are of another base
		starts int  // drivers that start when the VM is there
	}{"the same base": {false, 1}, "another base": {true, 3}} {
		t.Run(name, func(t *testing.T) {
			s := newStarts(t)
			v := onSoft(t, s.on)
			var programs []*holding
			for i := range 3 {
				programs = append(programs, s.program(v, byte(i)))
			}
			var pool *spawn.Pool
			other := empty(t, func(o *device.Options) {
				s.on(o)
				pool = &spawn.Pool{Spawner: o.Spawner, Config: o.Worker, Size: 2, Once: true, Log: o.Log}
				if c.other {
					pool.Config.Base = s.base ^ 2<<20
				}
				o.Pool = pool
			})
			defer pool.Close()
			pool.Fill()
			s.come(2)()
			s.arrive(v, other, programs, c.starts)
		})
	}
}

// TestDriversStartBeforehand: where memory goes ahead, the drivers of all programs start at once
// when it begins to, and however much it is; the VM may stop when they have, and none starts while
// it stands: nobody would have it go on.
func TestDriversStartBeforehand(t *testing.T) {
	for name, memory := range map[string]bool{"nothing to send": false, "more than waits on the way": true} {
		t.Run(name, func(t *testing.T) { startBeforehand(t, memory) })
	}
}

func startBeforehand(t *testing.T, memory bool) {
	s := newStarts(t)
	v, other := onSoft(t, s.on), empty(t, s.on)
	var programs []*holding
	for i := range atOnce {
		h := s.program(v, byte(i))
		if !memory {
			must(t, h.Guest, &wire.MemFreeArgs{Ptr: h.at}, nil)
		}
		programs = append(programs, h)
	}
	front, err := fstest.Await(other.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, v)
	c := precopy(t, v, other, device.CopyOptions{})
	goOn := s.come(2 * len(programs)) // each is rehearsed by another
	if !memory {                      // with some a round takes until drivers have started
		eventually(t, "no round is made", func() bool { return c.status().Rounds >= 2 })
	}
	if c.status().Ready {
		t.Error("the VM may stop, although drivers start where it goes")
	}
	goOn()
	c.ready(t, len(programs))
	left, err := v.MoveTo(front, save(t, v))
	if err != nil {
		t.Fatal(err)
	}
	left.Close()
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	for _, h := range programs {
		if memory {
			h.check(t)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	c.cut(t)
}
