package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/soft"
	"causeway/host/worker"
	"causeway/host/worker/workertest"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// directSession is a session on the software GPU whose frames go over a fabric, and whose copies
// may go between guest memory and the GPU's by the worker's adapter.
type directSession struct {
	*workertest.Guest
	regions *verbs.GPURegions
	told    []string
	done    chan error
}

func startDirect(t *testing.T, relay verbs.Adapter, own *verbstest.WithGPU) *directSession {
	t.Helper()
	ends, err := remotetest.Lifted(relay, own)
	if err != nil {
		t.Fatal(err)
	}
	s := &directSession{done: make(chan error, 1)}
	s.regions = verbs.NewGPURegions(own, func(text string) { s.told = append(s.told, text) })
	go func() {
		s.done <- func() error {
			c, err := ends.Accept()
			if err != nil {
				return err
			}
			w, err := worker.New(c, soft.New(), driver.Options{}, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			worker.Direct(w, s.regions)
			return errors.Join(c.Welcome(0, ""), w.Run(context.Background()))
		}()
	}()
	g, err := ends.Connect()
	if err != nil {
		t.Fatal(err)
	}
	s.Guest = workertest.New(g)
	if _, err := s.Init(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *directSession) must(t *testing.T, a wire.Args, r wire.Reply) {
	t.Helper()
	if res, err := s.Call(0, a, r); err != nil || res != cuda.Success {
		t.Fatalf("%T: %v, %v", a, res, err)
	}
}

// TestGPUDirect: whichever way GPU memory is registered, or is not, and whatever becomes of the
// link meanwhile, copies bring the right bytes; what is freed is registered no more ahead of that,
// and nothing is left.
func TestGPUDirect(t *testing.T) {
	const size = 4 << 20
	noise := make([]byte, 2*size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(noise)
	for name, c := range map[string]struct {
		file   error
		flaps  int
		direct bool
		told   string
	}{
		"dma-buf":            {direct: true, told: "GPU memory by dma-buf"},
		"dma-buf, and flaps": {direct: true, flaps: 23, told: "GPU memory by dma-buf"},
		"refused":            {file: errors.New("none of it"), told: "GPU memory through the server's; no dma-buf: none of it; not by its addresses: not here"},
	} {
		f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
		own := &verbstest.WithGPU{Adapter: f.Adapter("worker", here), NoFile: c.file, NoAddress: verbs.ErrNoWay}
		s := startDirect(t, f.Adapter("relay", here), own)
		s.must(t, &wire.PrimaryCtxRetainArgs{Ctx: 20}, nil)
		s.Ctx = 20
		s.must(t, &wire.StreamCreateArgs{Stream: 30, Flags: 1}, nil)
		var m, other wire.MemAllocReply
		s.must(t, &wire.MemAllocArgs{Size: size}, &m)
		s.must(t, &wire.MemAllocArgs{Size: size}, &other)
		id, staging, res, err := s.AddRegion(0, wire.RegionStaging, size)
		if err != nil || res != cuda.Success {
			t.Fatal(res, err)
		}
		f.Flap(c.flaps)
		r, mirror, value := rand.New(rand.NewPCG(3, 4)), make([]byte, size), uint32(0)
		copied := func(direction uint32, device uint64, off, n int) {
			value++
			a := &wire.MemcpyStagedArgs{Direction: direction, Region: id, Offset: uint64(off), Size: uint64(n), Device: device, Word: 3, Value: value, Stream: 30}
			if err := s.Send(a); err != nil {
				t.Fatal(err)
			}
			s.must(t, &wire.SessionFenceArgs{}, nil)
			s.must(t, &wire.CtxSynchronizeArgs{}, nil)
			if s.Word(3) != value {
				t.Fatalf("%s: a copy of %d bytes is not done: %#x, not %#x", name, n, s.Word(3), value)
			}
		}
		for range 20 {
			at, off := r.IntN(size), r.IntN(size)
			n := min(size-at, size-off, 1+r.IntN(2<<20))
			if r.IntN(2) == 0 {
				copy(staging[off:][:n], noise[r.IntN(size):])
				copied(0, m.Ptr+uint64(at), off, n)
				copy(mirror[at:], staging[off:][:n])
			} else {
				copied(1, m.Ptr+uint64(at), off, n)
				if !bytes.Equal(staging[off:][:n], mirror[at:][:n]) {
					t.Fatalf("%s: other bytes than were copied, of %d at %d", name, n, at)
				}
			}
		}
		copied(0, other.Ptr, 0, size)
		want := 0
		if c.direct {
			want = 2
		}
		if s.regions.Count() != want {
			t.Errorf("%s: %d registrations, not %d", name, s.regions.Count(), want)
		}
		s.must(t, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
		s.must(t, &wire.CtxSynchronizeArgs{}, nil)
		if s.regions.Count() != want/2 {
			t.Errorf("%s: %d registrations when half is freed", name, s.regions.Count())
		}
		if c.direct && f.Moved(verbs.Read) < size {
			t.Errorf("%s: %d bytes were read by RDMA", name, f.Moved(verbs.Read))
		}
		f.Flap(0)
		if err := errors.Join(s.Close(), <-s.done); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(s.told) != 1 || s.told[0] != c.told {
			t.Errorf("%s: told %q", name, s.told)
		}
		if s.regions.Count() != 0 {
			t.Errorf("%s: %d registrations are left", name, s.regions.Count())
		}
		for late := time.Now().Add(time.Minute); f.Left() != 0; time.Sleep(10 * time.Millisecond) {
			// The relay's end goes when it hears of this one's.
			if time.Now().After(late) {
				t.Fatalf("%s: %d queue pairs and registrations are left", name, f.Left())
			}
		}
	}
}
