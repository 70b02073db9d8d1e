package lease

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"causeway/host/api"
)

/*
What a GPU server keeps for its fleet: for each device of a claim a reservation, which says which
host may have which lease, and that there is room for it. Of controllers the newest is heard: each
has an epoch, and who has a lower one than another before it is refused.
*/

// Bounds of reservations.
const (
	MostReserved = 2 * MostLeases
	mostFleet    = 4 << 20 // bytes of a heartbeat
	// MostEpoch leaves a controller room above what a server has heard.
	MostEpoch = 1 << 62
)

// Errors of Reserved.
var (
	ErrController = errors.New("a newer controller looks after the fleet")
	ErrReserved   = errors.New("too many reservations")
	ErrChanged    = errors.New("the reservation has changed meanwhile")
)

// DecodeReservation reads what a controller has reserved.
func DecodeReservation(r io.Reader) (api.Reservation, error) {
	var v api.Reservation
	err := decode(r, &v, true)
	if err == nil {
		if err = v.Check(); err != nil {
			err = fmt.Errorf("%w: %w", ErrMessage, err)
		}
	}
	return v, err
}

// DecodeFleet reads a GPU server's heartbeat.
func DecodeFleet(r io.Reader) (api.FleetState, error) {
	var s api.FleetState
	if err := decodeUpTo(r, &s, false, mostFleet); err != nil {
		return api.FleetState{}, err
	}
	if err := checkFleet(&s); err != nil {
		return api.FleetState{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return s, nil
}

func checkFleet(s *api.FleetState) error {
	if len(s.GPUs) > mostGPUs || len(s.Reserved) > MostReserved || !text(s.Version) || s.Epoch > MostEpoch {
		return fmt.Errorf("%d GPUs and %d reservations of version %.50q", len(s.GPUs), len(s.Reserved), s.Version)
	}
	var ids, keys []string
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if err := checkGPU(&g.GPU); err != nil {
			return err
		}
		if g.Claimable > g.Memory {
			return fmt.Errorf("the GPU %s has %d bytes for claims, of %d", g.ID, g.Claimable, g.Memory)
		}
		ids = append(ids, strings.ToLower(g.ID))
	}
	for i := range s.Reserved {
		if err := s.Reserved[i].Check(); err != nil {
			return err
		}
		keys = append(keys, s.Reserved[i].Key())
	}
	for _, list := range [][]string{ids, keys} {
		slices.Sort(list)
		if len(slices.Compact(list)) != len(list) {
			return errors.New("one of its GPUs or reservations twice")
		}
	}
	return nil
}

// Reserved is a GPU server's reservations. Its methods may be called from any goroutine. What is
// written down is what File says.
type Reserved struct {
	mu   sync.Mutex
	file ReservedFile
	save func(ReservedFile) error
}

// ReservedFile is what is kept over a restart of causewayd.
type ReservedFile struct {
	Epoch uint64          `json:"epoch"`
	By    map[string]Kept `json:"reservations"` // by Key
}

// Kept is a reservation, and which vGPU is its lease.
type Kept struct {
	api.Reservation
	// VGPU is the vGPU's name here if that is another host's, from which the lease has moved.
	VGPU string `json:"vgpu,omitempty"`
}

// Lease is the vGPU here that is the reservation's: HOST/VM:NAME.
func (k *Kept) Lease() string { return cmp.Or(k.VGPU, k.Reservation.Lease()) }

// NewReserved takes up what was written down; save writes it down.
func NewReserved(f ReservedFile, save func(ReservedFile) error) (*Reserved, error) {
	if f.By == nil {
		f.By = map[string]Kept{}
	}
	for key, r := range f.By {
		if err := r.Check(); err != nil {
			return nil, err
		}
		if r.Key() != key {
			return nil, fmt.Errorf("%w: a reservation %s under %.100q", ErrMessage, r.Key(), key)
		}
	}
	return &Reserved{file: f, save: save}, nil
}

// Heartbeat judges a controller's epoch, which is the newest from now on unless it is refused.
func (b *Reserved) Heartbeat(epoch uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch > MostEpoch {
		return fmt.Errorf("%w: a controller of the epoch %d", ErrMessage, epoch)
	}
	if epoch < b.file.Epoch {
		return fmt.Errorf("%w: epoch %d, this is %d", ErrController, b.file.Epoch, epoch)
	}
	if epoch == b.file.Epoch {
		return nil
	}
	next := ReservedFile{Epoch: epoch, By: b.file.By}
	if err := b.save(next); err != nil {
		return err
	}
	b.file = next
	return nil
}

// Epoch is the newest controller's.
func (b *Reserved) Epoch() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.file.Epoch
}

// Put has a reservation in place of another of its Key. That there is room for it the caller knows.
func (b *Reserved) Put(r Kept) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, is := b.file.By[r.Key()]; !is && len(b.file.By) >= MostReserved {
		return fmt.Errorf("%w: %d", ErrReserved, len(b.file.By))
	}
	return b.setLocked(r.Key(), &r)
}

// Remove removes one; "" of id is any.
func (b *Reserved) Remove(key, id string) (r Kept, was bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, was = b.file.By[key]
	if !was || id != "" && r.ID != id {
		return r, false, nil
	}
	return r, true, b.setLocked(key, nil)
}

// Swap has a reservation in place of one that is as it was.
func (b *Reserved) Swap(was, r Kept) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now, is := b.file.By[r.Key()]; !is || now != was {
		return fmt.Errorf("%w: the claim %s", ErrChanged, r.Of)
	}
	return b.setLocked(r.Key(), &r)
}

// Follow has the reservation of a lease be its heir's when the book says that the heir has it,
// which the VM has reached. It is nobody's to take over then, until the fleet's controller says so
// again. It says what is so now.
func (b *Reserved) Follow(lease string, book *Book) (r Kept, is bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, r := range b.file.By {
		if r.Lease() != lease {
			continue
		}
		e, has := book.At(lease) // of now: several hosts may speak of it at once
		if !has || e.Host != r.Heir {
			return r, true, nil
		}
		r.Host, r.Heir, r.Moved, r.VGPU = e.Host, "", r.Moved+1, lease
		return r, true, b.setLocked(key, &r)
	}
	return Kept{}, false, nil
}

func (b *Reserved) setLocked(key string, r *Kept) error {
	next := ReservedFile{Epoch: b.file.Epoch, By: map[string]Kept{}}
	for k, v := range b.file.By {
		next.By[k] = v
	}
	if r == nil {
		delete(next.By, key)
	} else {
		next.By[key] = *r
	}
	if err := b.save(next); err != nil {
		return err
	}
	b.file = next
	return nil
}

// Find is the reservation of a vGPU at a host: VM/NAME.
func (b *Reserved) Find(key string) (Kept, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.file.By[key]
	return r, ok
}

// Of is the reservation that a lease is of, by the vGPU here: HOST/VM:NAME.
func (b *Reserved) Of(lease string) (Kept, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.file.By {
		if r.Lease() == lease {
			return r, true
		}
	}
	return Kept{}, false
}

// All are all, by Key.
func (b *Reserved) All() []Kept {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]Kept, 0, len(b.file.By))
	for _, r := range b.file.By {
		list = append(list, r)
	}
	slices.SortFunc(list, func(x, y Kept) int { return strings.Compare(x.Key(), y.Key()) })
	return list
}
