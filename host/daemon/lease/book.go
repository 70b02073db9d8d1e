package lease

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"causeway/remote"
)

// Most leases of one host, and of all together.
const (
	MostPerHost = 64
	MostLeases  = 256
)

// Errors of a Book.
var (
	ErrMost    = errors.New("too many leases")
	ErrUnknown = errors.New("there is no such lease")
	ErrEpoch   = errors.New("a newer causewayd of that host has the lease")
	ErrMoved   = errors.New("the lease has moved with its VM")
	ErrEnded   = errors.New("the lease was ended at the server")
)

// Entry is a lease in a server's book.
type Entry struct {
	ID    remote.LeaseID
	Host  string
	VGPU  string // of the server's: HOST/VM:NAME
	Epoch uint64 // the highest that has renewed it
	// Heir is the host that may take the lease over, to which its VM is about to move, and Before
	// the one that had it before Host. Empty: none.
	Heir, Before string
	// Until is when it ends unless it is renewed. It is read from a clock that a change of the time
	// of day does not move.
	Until time.Time
}

// Book is the leases of a server. Its methods may be called from any goroutine.
type Book struct {
	Term time.Duration
	Now  func() time.Time

	mu   sync.Mutex
	byID map[remote.LeaseID]Entry
	// denied are the last that somebody at the server ended: their hosts are not to have others in
	// their place.
	denied []remote.LeaseID
}

// Add begins a lease, whose vGPU may still be in the making: it is counted from now on.
func (b *Book) Add(id remote.LeaseID, host, vgpu string, epoch uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byID == nil {
		b.byID = map[remote.LeaseID]Entry{}
	}
	of := 0
	for _, e := range b.byID {
		if e.Host == host {
			of++
		}
	}
	switch {
	case of >= MostPerHost:
		return fmt.Errorf("%w: %s has %d", ErrMost, host, of)
	case len(b.byID) >= MostLeases:
		return fmt.Errorf("%w: hosts have %d of this server", ErrMost, len(b.byID))
	}
	b.byID[id] = Entry{ID: id, Host: host, VGPU: vgpu, Epoch: epoch, Until: b.Now().Add(b.Term)}
	return nil
}

// For is a lease for a host that has it, or may take it over.
func (b *Book) For(id remote.LeaseID, host string) (Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.forLocked(id, host)
}

func (b *Book) forLocked(id remote.LeaseID, host string) (Entry, error) {
	e, ok := b.byID[id]
	switch {
	case slices.Contains(b.denied, id):
		return Entry{}, ErrEnded
	case ok && host != "" && e.Before == host:
		return Entry{}, fmt.Errorf("%w: the host %s has it", ErrMoved, e.Host)
	case !ok || host == "" || e.Host != host && e.Heir != host || !b.Now().Before(e.Until):
		return Entry{}, ErrUnknown
	}
	return e, nil
}

// Renew has a host's lease hold for a term from now. One that is overdue is not renewed: it is
// about to be ended. take: the VM is at that host, which takes the lease over if it may; the one
// that had it renews it no more.
func (b *Book) Renew(id remote.LeaseID, host string, epoch uint64, take bool) (now Entry, took bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, err := b.forLocked(id, host)
	switch {
	case err != nil:
		return Entry{}, false, err
	case e.Host == host && epoch < e.Epoch:
		return Entry{}, false, fmt.Errorf("%w: epoch %d, this is %d", ErrEpoch, e.Epoch, epoch)
	case e.Host == host:
		e.Epoch = epoch
	case take:
		e.pass(epoch)
		took = true
	}
	e.Until = b.Now().Add(b.Term)
	b.byID[id] = e
	return e, took, nil
}

// pass gives the lease to its heir.
func (e *Entry) pass(epoch uint64) { e.Before, e.Host, e.Heir, e.Epoch = e.Host, e.Heir, "", epoch }

// Allow says which host may take a lease over; empty: none. before is the one that had it, as far
// as that is known.
func (b *Book) Allow(id remote.LeaseID, heir, before string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.byID[id]; ok && e.Host != heir {
		e.Heir = heir
		if e.Before = before; before == heir { // which has it back soon
			e.Before = ""
		}
		b.byID[id] = e
	}
}

// Leave is the last that a host says of a lease. An heir's word ends its right to it; where there
// is an heir the lease is the heir's from now on, and where there is none it ends.
func (b *Book) Leave(id remote.LeaseID, host string) (e Entry, over bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, err = b.forLocked(id, host)
	switch {
	case err != nil:
		return e, false, err
	case e.Host != host:
		e.Heir = ""
	case e.Heir == "":
		return e, true, nil
	default:
		e.pass(e.Epoch)
	}
	b.byID[id] = e
	return e, false, nil
}

// Find is a lease that holds.
func (b *Book) Find(id remote.LeaseID) (Entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.byID[id]
	return e, ok && b.Now().Before(e.Until)
}

// At is the lease of a vGPU, if it holds.
func (b *Book) At(vgpu string) (Entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.byID {
		if e.VGPU == vgpu && b.Now().Before(e.Until) {
			return e, true
		}
	}
	return Entry{}, false
}

// Remove ends the lease of a vGPU.
func (b *Book) Remove(vgpu string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, e := range b.byID {
		if e.VGPU == vgpu {
			delete(b.byID, id)
		}
	}
}

// Deny says that somebody at the server ends the lease of a vGPU, which is to be removed next. Of
// the oldest it forgets that.
func (b *Book) Deny(vgpu string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, e := range b.byID {
		if e.VGPU == vgpu {
			b.denied = append(b.denied, id)
		}
	}
	b.denied = slices.Delete(b.denied, 0, max(0, len(b.denied)-MostLeases))
}

// Overdue are the leases that were not renewed in time.
func (b *Book) Overdue() []Entry {
	now := b.Now()
	return b.list(func(e *Entry) bool { return !now.Before(e.Until) })
}

// Of are a host's.
func (b *Book) Of(host string) []Entry {
	return b.list(func(e *Entry) bool { return e.Host == host })
}

func (b *Book) list(which func(*Entry) bool) (list []Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.byID {
		if which(&e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(x, y Entry) int { return strings.Compare(x.VGPU, y.VGPU) })
	return list
}
