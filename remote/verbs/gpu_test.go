package verbs_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// gpu is memory of a GPU's as the software GPU has it: a file, with addresses from base on.
type gpu struct {
	f   *os.File
	mem []byte
}

const base = 0x7800_0000_0000

func newGPU(t *testing.T, size int) *gpu {
	t.Helper()
	fd, err := sys.NewMemory("gpu memory", int64(size), unix.F_SEAL_SEAL)
	if err != nil {
		t.Fatal(err)
	}
	g := &gpu{f: os.NewFile(uintptr(fd), "gpu memory")}
	if g.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(unix.Munmap(g.mem), g.f.Close()) })
	return g
}

// part is memory that the session has of it.
func (g *gpu) part(at, size, serial uint64) verbs.GPUMemory {
	return verbs.GPUMemory{Address: base + at, Size: size, Serial: serial, Export: func() (*os.File, uint64, error) {
		fd, err := unix.Dup(int(g.f.Fd()))
		return os.NewFile(uintptr(fd), "dma-buf"), at, err
	}}
}

func (g *gpu) adapter(f *verbstest.Fabric) *verbstest.WithGPU {
	return &verbstest.WithGPU{Adapter: f.Adapter("far", here), At: func(address, size uint64) []byte { return g.mem[address-base:][:size] }}
}

// TestDirect: bytes go between the client's memory and a GPU's without the server's, by several at
// once, beside the stream.
func TestDirect(t *testing.T) {
	const each, users = 3 << 20, 3
	f, g := verbstest.New(), newGPU(t, each*users)
	a := g.adapter(f)
	e, err1, err2 := upgrade(t, []verbs.Adapter{f.Adapter("near", here)}, []verbs.Adapter{a})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	e.Fabric = f
	mem, granted, revoke := granted(t, e, each*users)
	far, regions := e.far.(*verbs.Conn), verbs.NewGPURegions(a, func(string) {})
	var wg sync.WaitGroup
	for u := range users {
		wg.Go(func() {
			m, done, ok := regions.Use(g.part(uint64(u*each), each, uint64(u)))
			if !ok {
				t.Error("not registered")
				return
			}
			defer done()
			r := rand.New(rand.NewPCG(9, uint64(u)))
			for i := range 40 {
				at, off := r.IntN(each), r.IntN(each)
				n := min(each-at, each-off, 1+r.IntN(1<<r.IntN(22)))
				here, there := g.mem[u*each+at:][:n], mem[u*each+off:][:n]
				var err error
				if i%2 == 0 {
					fill(there, byte(r.Uint32()))
					err = far.FetchTo(m, uint64(at), uint64(n), granted, uint64(u*each+off))
				} else {
					fill(here, byte(r.Uint32()))
					err = far.StoreFrom(m, uint64(at), uint64(n), granted, uint64(u*each+off))
				}
				if err != nil || !bytes.Equal(here, there) {
					t.Errorf("%d bytes at %d of %d: %v, or other bytes", n, at, off, err)
					return
				}
			}
		})
	}
	wg.Wait()
	m, done, _ := regions.Use(g.part(0, each, 0))
	for _, x := range [][2]uint64{{uint64(len(mem)), 1}, {uint64(len(mem)) - 1, 2}, {0, 1 << 40}, {1 << 63, 1}} {
		if err := errors.Join(far.FetchTo(m, 0, x[1], granted, x[0])); !errors.Is(err, remote.ErrOutOfBounds) {
			t.Errorf("%v: %v", x, err)
		}
	}
	done()
	regions.Close()
	revoke()
	e.end(t)
}

// TestDirectFaults: a transfer that fails says why, and nothing of it is under way once the
// connection has ended.
func TestDirectFaults(t *testing.T) {
	for name, x := range map[string]struct {
		fault func(e ends, revoke func())
		want  verbs.Status
	}{
		"taken back": {func(_ ends, revoke func()) { revoke() }, verbs.RemoteAccess},
		"link down":  {func(e ends, _ func()) { e.Cut() }, verbs.RetryExceeded},
		"queue pair": {func(e ends, _ func()) { e.Break(verbs.LocalOperation) }, verbs.LocalOperation},
	} {
		f, g := verbstest.New(), newGPU(t, 4<<20)
		a := g.adapter(f)
		e, err1, err2 := upgrade(t, []verbs.Adapter{f.Adapter("near", here)}, []verbs.Adapter{a})
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		e.Fabric = f
		_, granted, revoke := granted(t, e, 4<<20)
		once, far, regions := sync.OnceFunc(revoke), e.far.(*verbs.Conn), verbs.NewGPURegions(a, func(string) {})
		m, done, ok := regions.Use(g.part(0, 4<<20, 1))
		x.fault(e, once)
		if err := far.FetchTo(m, 0, 4<<20, granted, 0); !ok || !errors.Is(err, x.want) || !errors.Is(err, verbs.ErrQueue) {
			t.Errorf("%s: %v", name, err)
		}
		if err := far.StoreFrom(m, 0, 4<<20, granted, 0); err == nil {
			t.Errorf("%s: the connection goes on", name)
		}
		done()
		regions.Close()
		once()
		e.end(t)
	}
}

// TestGPUWays: memory is registered in the best way that there is, and people are told which, and
// why not a better.
func TestGPUWays(t *testing.T) {
	no, never := errors.New("too much"), errors.Join(verbs.ErrNoWay, errors.New("an old library"))
	for name, x := range map[string]struct {
		file, address error
		registered    bool
		said          string
		tries         int // of files, in four uses
	}{
		"both":       {nil, nil, true, "GPU memory by dma-buf", 4},
		"address":    {never, nil, true, "GPU memory by its addresses; no dma-buf: not here\nan old library", 1},
		"some fail":  {no, nil, true, "GPU memory by its addresses; no dma-buf: too much", 3},
		"none":       {never, never, false, "GPU memory through the server's; no dma-buf: not here\nan old library; not by its addresses: not here\nan old library", 1},
		"none at 3":  {no, no, false, "GPU memory through the server's; no dma-buf: too much; not by its addresses: too much", 3},
		"no address": {nil, never, true, "GPU memory by dma-buf", 4},
	} {
		f, g := verbstest.New(), newGPU(t, 1<<20)
		a := g.adapter(f)
		a.NoFile, a.NoAddress = x.file, x.address
		var told []string
		r := verbs.NewGPURegions(a, func(s string) { told = append(told, s) })
		tries := 0
		for i := range uint64(4) {
			p := g.part(i*4096, 4096, i)
			export := p.Export
			p.Export = func() (*os.File, uint64, error) { tries++; return export() }
			_, done, ok := r.Use(p)
			if ok != x.registered {
				t.Errorf("%s: use %d: %v", name, i, ok)
			}
			if ok {
				done()
			}
		}
		if r.String() != x.said || len(told) != 1 || told[0] != x.said || tries != x.tries || r.Off() == x.registered {
			t.Errorf("%s: it says %q, has told %q, and tried %d files", name, r, told, tries)
		}
		r.Close()
		if _, _, ok := r.Use(g.part(0, 4096, 9)); ok || f.Left() != 0 {
			t.Errorf("%s: %d things are left", name, f.Left())
		}
	}
	// One allocation without a file is no reason against the next; three are, but not with others
	// in between.
	f, g := verbstest.New(), newGPU(t, 1<<20)
	a := g.adapter(f)
	a.NoAddress = verbs.ErrNoWay
	r := verbs.NewGPURegions(a, func(string) {})
	for i := range uint64(9) {
		p := g.part(i*4096, 4096, i)
		exports := i%3 == 2
		if !exports {
			p.Export = func() (*os.File, uint64, error) { return nil, 0, no }
		}
		if _, done, ok := r.Use(p); ok != exports {
			t.Errorf("use %d: %v", i, ok)
		} else if ok {
			done()
		}
	}
	if r.Off() || r.Count() != 3 {
		t.Errorf("%d are registered; off: %v", r.Count(), r.Off())
	}
	r.Close()
	plain := verbs.NewGPURegions(f.Adapter("plain", here), func(string) {})
	if _, _, ok := plain.Use(g.part(0, 4096, 1)); ok || !plain.Off() {
		t.Error("an adapter that takes no GPU's memory does")
	}
}

// TestGPURegions: so many are registered at most, the longest unused of which give way; what ends,
// or is another allocation's, is registered no more, once nothing of it is under way.
func TestGPURegions(t *testing.T) {
	f, g := verbstest.New(), newGPU(t, 1<<20)
	r := verbs.NewGPURegions(g.adapter(f), func(string) {})
	use := func(page, serial uint64) (verbs.Memory, func()) {
		t.Helper()
		m, done, ok := r.Use(g.part(page*4096, 4096, serial))
		if !ok {
			t.Fatalf("page %d is not registered", page)
		}
		return m, done
	}
	first, done := use(0, 1)
	done()
	for page := range uint64(63) {
		_, done := use(page+1, page)
		done()
	}
	if again, done := use(0, 1); again != first || r.Count() != 64 {
		t.Errorf("what is registered is registered again, or %d are", r.Count())
	} else {
		done()
	}
	_, done = use(64, 1) // page 1 gives way
	done()
	if again, done := use(0, 1); again != first || r.Count() != 64 || f.Left() != 64 {
		t.Errorf("the longest unused does not give way; %d are there", r.Count())
	} else {
		done()
	}
	other, done := use(0, 2)
	if other == first || r.Count() != 64 {
		t.Errorf("another allocation has the registration of the one before; %d are there", r.Count())
	}
	forgot := make(chan struct{})
	go func() {
		r.Forget(base, 4096)
		close(forgot)
	}()
	select {
	case <-forgot:
		t.Error("memory is given back while a transfer is under way")
	default:
	}
	done()
	<-forgot
	if r.Count() != 63 || f.Left() != 63 {
		t.Errorf("%d are left", r.Count())
	}
	r.Forget(base+2*4096, 10*4096)
	if r.Count() != 53 {
		t.Errorf("%d are left", r.Count())
	}
	// All that may be are in use: the next goes without.
	var dones []func()
	for page := range uint64(64) {
		_, done := use(page, 7)
		dones = append(dones, done)
	}
	if _, _, ok := r.Use(g.part(100*4096, 4096, 7)); ok {
		t.Error("more are registered than may be")
	}
	for _, done := range dones {
		done()
	}
	r.Close()
	if f.Left() != 0 {
		t.Errorf("%d are left", f.Left())
	}
}

// stuck is memory whose registration does not end.
type stuck struct{ *verbstest.WithGPU }

type stuckMemory struct{ verbs.Memory }

func (stuckMemory) Close() error { return errors.New("busy") }

func (s stuck) RegisterFile(f *os.File, off, size, address uint64) (verbs.Memory, error) {
	m, err := s.WithGPU.RegisterFile(f, off, size, address)
	return stuckMemory{m}, err
}

// TestGPUStuck: where a registration does not end there are no more.
func TestGPUStuck(t *testing.T) {
	g := newGPU(t, 1<<20)
	r := verbs.NewGPURegions(stuck{g.adapter(verbstest.New())}, func(string) {})
	if _, done, ok := r.Use(g.part(0, 4096, 1)); ok {
		done()
	}
	r.Forget(base, 4096)
	if !r.Off() || !strings.Contains(r.String(), "a registration does not end: busy") {
		t.Errorf("%q", r)
	}
}
