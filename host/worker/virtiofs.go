package worker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// virtiofs is the carrier of a guest process in a VM: its regions are pages of guest RAM that it
// has lent, listed by the device process over the link. The link's goroutine feeds it.
type virtiofs struct {
	link *link.WorkerEnd
	mem  *shm.Memory
	ring *shm.Ring
	bell *shm.Bell

	mu     sync.Mutex
	guest  []link.BackedMemory
	pieces map[uint32]map[uint64][]link.Range

	ended sync.Once
	done  chan struct{}
}

var _ remote.Carrier = (*virtiofs)(nil)

func newVirtiofs(l *link.WorkerEnd) *virtiofs {
	return &virtiofs{link: l, mem: shm.NewMemory(), pieces: map[uint32]map[uint64][]link.Range{}, done: make(chan struct{})}
}

// handle follows one message of the device process. Files are taken over.
func (l *virtiofs) handle(r link.Received[link.ToWorker]) error {
	switch m := r.Message().(type) {
	case link.AddMemory:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.guest = append(l.guest, m.Memory...)
		return nil
	case link.RemoveMemory:
		return l.memoryGone(m.GPA)
	case link.AddRegion:
		return l.mem.Declare(m.Region, remote.Declared{VA: m.VA, Size: m.Size}, nil)
	case link.AddPages:
		return l.addPages(m)
	case link.EndRegion:
		l.mu.Lock()
		delete(l.pieces, m.Region)
		l.mu.Unlock()
		if err := l.mem.End(m.Region); err != nil {
			// The guest process exits without letting go first: that is the end, and in order.
			return fmt.Errorf("%w: %w", errEnded, err)
		}
		return l.link.Send(link.RegionEnded{Region: m.Region})
	}
	return r.Refuse()
}

func (l *virtiofs) memoryGone(gpa uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guest = slices.DeleteFunc(l.guest, func(g link.BackedMemory) bool {
		if g.GPA == gpa {
			_ = unix.Close(g.File)
			return true
		}
		return false
	})
	return nil
}

// addPages adds pages to a region; with the last of them the region can be reached.
func (l *virtiofs) addPages(m link.AddPages) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	ps := l.pieces[m.Region]
	if ps == nil {
		ps = map[uint64][]link.Range{}
		l.pieces[m.Region] = ps
	}
	ps[m.At] = m.Ranges
	if !m.Last {
		return nil
	}
	runs, err := l.runs(m.Region)
	if err != nil {
		return err
	}
	return l.mem.SetRuns(m.Region, runs)
}

// runs lists a region's pages as parts of files.
func (l *virtiofs) runs(id uint32) ([]shm.Run, error) {
	var runs []shm.Run
	ps := l.pieces[id]
	for _, off := range slices.Sorted(maps.Keys(ps)) {
		for _, e := range ps[off] {
			r, err := l.locate(e)
			if err != nil {
				return nil, err
			}
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// locate finds guest-physical memory in the files that back it.
func (l *virtiofs) locate(e link.Range) (shm.Run, error) {
	for _, g := range l.guest {
		if e.GPA >= g.GPA && e.GPA-g.GPA < g.Size && e.Size <= g.Size-(e.GPA-g.GPA) {
			return shm.Run{FD: g.File, Offset: int64(g.Offset + (e.GPA - g.GPA)), Size: e.Size}, nil
		}
	}
	return shm.Run{}, fmt.Errorf("guest-physical range %#x+%#x is not guest memory", e.GPA, e.Size)
}

// start maps region 0. bell is taken over.
func (l *virtiofs) start(bell int, head uint64, fresh bool) error {
	mem, err := l.mem.Map(0, 0)
	if err == nil && fresh {
		err = shm.CheckControl(mem)
	}
	if err == nil {
		l.ring, err = shm.NewRing(mem, head)
	}
	if err == nil {
		l.bell, err = shm.NewBell(bell, func(slot uint32) {
			// An error means that the device process is gone; the link's goroutine sees it as well.
			_ = l.link.Send(link.Wake{Slot: slot})
		})
	}
	if err != nil {
		_ = unix.Close(bell)
	}
	return err
}

// end says that the guest process, or the device process, is gone.
func (l *virtiofs) end() { l.ended.Do(func() { close(l.done) }) }

// Ring implements remote.Carrier.
func (l *virtiofs) Ring() remote.Ring { return l.ring }

// Memory implements remote.Carrier.
func (l *virtiofs) Memory() remote.GuestMemory { return l.mem }

// Doorbell implements remote.Carrier.
func (l *virtiofs) Doorbell() remote.Doorbell { return l.bell }

// Welcome implements remote.Carrier.
func (l *virtiofs) Welcome(status uint32, text string) error {
	return l.link.Send(link.Started{Status: link.Status{Errno: unix.Errno(status), Text: text}})
}

// Done implements remote.Carrier.
func (l *virtiofs) Done() <-chan struct{} { return l.done }

// Err implements remote.Carrier: the device process, which watches over loans, ends sessions for a
// reason of its own.
func (l *virtiofs) Err() error { return nil }

// Close implements remote.Carrier.
func (l *virtiofs) Close() error {
	err := l.mem.Close()
	if l.bell != nil {
		err = errors.Join(err, l.bell.Close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.guest {
		_ = unix.Close(g.File)
	}
	l.guest = nil
	return err
}

// virtiofsState is a virtiofs carrier that moves to another process. Descriptors: the doorbell,
// then the guest's memory.
type virtiofsState struct {
	Head    uint64
	Guest   []link.MemoryRegion
	Regions []shm.RegionState
	Pieces  map[uint32]map[uint64][]link.Range
}

// Freeze implements mover. The device process sends nothing while a session moves.
func (l *virtiofs) Freeze() error { return nil }

// Thaw implements mover.
func (l *virtiofs) Thaw() {}

func (l *virtiofs) describe(s *snapshot) ([]int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Virtiofs = &virtiofsState{Head: l.ring.Head(), Regions: l.mem.Regions(), Pieces: l.pieces}
	files := []int{l.bell.FD()}
	for _, g := range l.guest {
		s.Virtiofs.Guest = append(s.Virtiofs.Guest, g.MemoryRegion)
		files = append(files, g.File)
	}
	return files, nil
}

// adoptVirtiofs takes over a carrier that another process described. Files are taken over.
func adoptVirtiofs(c *link.WorkerEnd, s *virtiofsState, files []int) (*virtiofs, error) {
	if len(files) != 1+len(s.Guest) {
		sys.CloseAll(files)
		return nil, fmt.Errorf("state of %d memory regions with %d descriptors", len(s.Guest), len(files))
	}
	l := newVirtiofs(c)
	for i, g := range s.Guest {
		l.guest = append(l.guest, link.BackedMemory{MemoryRegion: g, File: files[1+i]})
	}
	if s.Pieces != nil {
		l.pieces = s.Pieces
	}
	for _, r := range s.Regions {
		if err := l.adoptRegion(r); err != nil {
			return nil, errors.Join(err, unix.Close(files[0]), l.Close())
		}
	}
	if err := l.start(files[0], s.Head, false); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *virtiofs) adoptRegion(r shm.RegionState) error {
	if err := l.mem.Declare(r.ID, remote.Declared{VA: r.VA, Size: r.Size}, nil); err != nil {
		return err
	}
	runs, err := l.runs(r.ID)
	if err != nil {
		return err
	}
	return l.mem.SetRuns(r.ID, runs)
}
