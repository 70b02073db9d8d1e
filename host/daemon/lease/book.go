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
)

// Entry is a lease in a server's book.
type Entry struct {
	ID    remote.LeaseID
	Host  string
	VGPU  string // of the server's: HOST/VM:NAME
	Epoch uint64 // the highest that has renewed it
	// Until is when it ends unless it is renewed. It is read from a clock that a change of the time of day does not move.
	Until time.Time
}

// Book is the leases of a server. Its methods may be called from any goroutine.
type Book struct {
	Term time.Duration
	Now  func() time.Time

	mu   sync.Mutex
	byID map[remote.LeaseID]Entry
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
	b.byID[id] = Entry{id, host, vgpu, epoch, b.Now().Add(b.Term)}
	return nil
}

// Renew has a host's lease hold for a term from now. One that is overdue is not renewed: it is about to be ended.
func (b *Book) Renew(id remote.LeaseID, host string, epoch uint64) (Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.byID[id]
	now := b.Now()
	switch {
	case !ok || e.Host != host || !now.Before(e.Until):
		return Entry{}, ErrUnknown
	case epoch < e.Epoch:
		return Entry{}, fmt.Errorf("%w: epoch %d, this is %d", ErrEpoch, e.Epoch, epoch)
	}
	e.Epoch, e.Until = epoch, now.Add(b.Term)
	b.byID[id] = e
	return e, nil
}

// Find is a lease that holds.
func (b *Book) Find(id remote.LeaseID) (Entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.byID[id]
	return e, ok && b.Now().Before(e.Until)
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
