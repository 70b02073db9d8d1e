package worker

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// TestConformance: the carrier of a guest process in a VM does what every carrier must. What a
// guest's kernel and the device process have to do with it is here: pages that are listed over the
// link, and wake-ups that come by it.
func TestConformance(t *testing.T) {
	remotetest.Conformance(t, func() (remotetest.Ends, error) {
		parent, worker := linkPair(t)
		g, err := newVirtiofsGuest(parent)
		return remotetest.Ends{
			Accept:  func() (remote.Carrier, error) { return acceptVirtiofs(worker) },
			Connect: g.connect,
		}, err
	})
}

// virtiofsEnd is a worker's end: with it goes the link, as its process would.
type virtiofsEnd struct {
	*virtiofs
	wg sync.WaitGroup
}

func acceptVirtiofs(l *link.WorkerEnd) (remote.Carrier, error) {
	s := &starter{link: l}
	c, err := s.acceptVirtiofs()
	if err == nil && c == nil {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	e := &virtiofsEnd{virtiofs: s.virtiofs}
	e.wg.Go(func() {
		for {
			r, err := l.Receive()
			if err == nil {
				err = e.handle(r)
			}
			if err != nil {
				e.end()
				return
			}
		}
	})
	return e, nil
}

// Close implements remote.Carrier.
func (e *virtiofsEnd) Close() error {
	err := e.link.Close()
	e.wg.Wait()
	return errors.Join(err, e.virtiofs.Close())
}

// virtiofsGuest implements remotetest.Carrier: a process whose memory is single pages of its VM's.
type virtiofsGuest struct {
	*link.ParentEnd
	ram     int
	pages   uint64 // so many are some region's
	mem     *shm.Memory
	bell    int
	started chan link.Status
	ended   chan struct{} // a region has
	gone    chan struct{}
	wg      sync.WaitGroup

	mu    sync.Mutex
	woken *sync.Cond
}

// The VM's memory: its pages are used in another order than that of their addresses.
const (
	virtiofsGPA    = 1 << 32
	virtiofsPages  = 1 << 14
	virtiofsStride = 6151 // odd: all are used before one comes again
)

func newVirtiofsGuest(l *link.ParentEnd) (*virtiofsGuest, error) {
	g := &virtiofsGuest{ParentEnd: l, mem: shm.NewMemory(), started: make(chan link.Status, 1), ended: make(chan struct{}, 1), gone: make(chan struct{})}
	g.woken = sync.NewCond(&g.mu)
	var err [2]error
	g.bell, err[0] = sys.NewEvent()
	g.ram, err[1] = unix.MemfdCreate("causeway-test-vm", unix.MFD_CLOEXEC)
	return g, errors.Join(err[0], err[1], unix.Ftruncate(g.ram, virtiofsPages<<12))
}

func (g *virtiofsGuest) connect() (*remotetest.Guest, error) {
	vm := link.BackedMemory{MemoryRegion: link.MemoryRegion{GPA: virtiofsGPA, Size: virtiofsPages << 12}, File: g.ram}
	if err := g.Send(link.AddMemory{Memory: []link.BackedMemory{vm}}); err != nil {
		return nil, err
	}
	mem, _, err := g.AddRegion(0, int(remote.Region0Size))
	if err != nil {
		return nil, err
	}
	guest := remotetest.New(mem, g)
	g.wg.Go(func() {
		g.follow()
		close(g.gone)
		guest.WakeAll()
		g.wake()
	})
	remotetest.Prepare(mem)
	if err := g.Send(link.Start{Doorbell: link.FileOf(g.bell)}); err != nil {
		return nil, err
	}
	s, ok := g.answer()
	if !ok {
		return nil, errors.Join(remotetest.ErrGone, g.Close())
	}
	if s.Errno != 0 {
		return nil, errors.Join(fmt.Errorf("%w: %s (%w)", remotetest.ErrRefused, s.Text, s.Errno), g.Close())
	}
	return guest, nil
}

// answer is what the worker says of the session's start, also where it has ended since; false: it
// ended without a word.
func (g *virtiofsGuest) answer() (s link.Status, ok bool) {
	select {
	case s = <-g.started:
		return s, true
	case <-g.gone:
	}
	select { // what follow has taken before the end
	case s = <-g.started:
		return s, true
	default:
		return s, false
	}
}

// follow reads what the worker says.
func (g *virtiofsGuest) follow() {
	for {
		r, err := g.Receive()
		if err != nil {
			return
		}
		switch m := r.Message().(type) {
		case link.Started:
			g.started <- m.Status
		case link.RegionEnded:
			g.ended <- struct{}{}
		case link.Wake:
			g.wake()
		default:
			_ = r.Refuse()
			return
		}
	}
}

func (g *virtiofsGuest) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.woken.Broadcast()
}

// Ring implements remotetest.Carrier.
func (g *virtiofsGuest) Ring() { sys.Signal(g.bell) }

// Sleep implements remotetest.Carrier.
func (g *virtiofsGuest) Sleep(_ uint32, word *atomic.Uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for word.Load() == 1 {
		g.woken.Wait()
	}
}

// Gone implements remotetest.Carrier.
func (g *virtiofsGuest) Gone() <-chan struct{} { return g.gone }

// AddRegion implements remotetest.Carrier.
func (g *virtiofsGuest) AddRegion(id uint32, size int) ([]byte, uint64, error) {
	const piece = 64 // pages of one message
	n := uint64(size+4095) >> 12
	if g.pages+n > virtiofsPages {
		return nil, 0, unix.ENOMEM
	}
	runs, ranges := make([]shm.Run, n), make([]link.Range, n)
	for i := range runs {
		at := (g.pages + uint64(i)) * virtiofsStride % virtiofsPages << 12
		runs[i] = shm.Run{FD: g.ram, Offset: int64(at), Size: 4096}
		ranges[i] = link.Range{GPA: virtiofsGPA + at, Size: 4096}
	}
	g.pages += n
	if err := errors.Join(g.mem.Declare(id, remote.Declared{Size: n << 12}, nil), g.mem.SetRuns(id, runs)); err != nil {
		return nil, 0, err
	}
	mem, err := g.mem.Map(id, 0)
	if err != nil {
		return nil, 0, err
	}
	va := remotetest.Address(mem)
	err = g.Send(link.AddRegion{Region: id, VA: va, Size: n << 12})
	for at := uint64(0); at < n && err == nil; at += piece {
		end := min(at+piece, n)
		err = g.Send(link.AddPages{Region: id, At: at << 12, Ranges: ranges[at:end], Last: end == n})
	}
	return mem[:size], va, err
}

// EndRegion implements remotetest.Carrier.
func (g *virtiofsGuest) EndRegion(id uint32) error {
	if err := g.Send(link.EndRegion{Region: id}); err != nil {
		return err
	}
	select {
	case <-g.ended:
	case <-g.gone:
		return remotetest.ErrGone
	}
	return errors.Join(g.mem.Unmap(id), g.mem.End(id))
}

// Close implements remotetest.Carrier: with the process the device process gives its worker up.
func (g *virtiofsGuest) Close() error {
	err := g.ParentEnd.Close()
	g.wg.Wait()
	return errors.Join(err, g.mem.Close(), unix.Close(g.bell), unix.Close(g.ram))
}
