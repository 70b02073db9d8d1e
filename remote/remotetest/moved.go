package remotetest

import (
	"sync"

	"causeway/remote"
	"causeway/remote/shm"
)

// movedGuest is a guest that moves: its program stands meanwhile, and what it does with regions,
// or its end, is heard of where it goes on. It is the watcher of its regions.
type movedGuest struct {
	*shm.Unix
	done chan struct{}

	mu       sync.Mutex
	watcher  remote.Watcher // nil: nobody
	moves    bool
	there    map[uint32]remote.Declared
	meantime []func()
}

func newMovedGuest(u *shm.Unix) *movedGuest {
	g := &movedGuest{Unix: u, done: make(chan struct{}), there: map[uint32]remote.Declared{}}
	go func() {
		<-u.Done()
		g.hear(func() { close(g.done) })
	}()
	return g
}

// Done implements remote.Carrier.
func (g *movedGuest) Done() <-chan struct{} { return g.done }

// Memory implements remote.Carrier.
func (g *movedGuest) Memory() remote.GuestMemory {
	return movedMemory{g.Unix.Memory().(*shm.Memory), g}
}

// movedMemory is that of a guest that moves.
type movedMemory struct {
	*shm.Memory
	g *movedGuest
}

// Watch implements remote.Watchable: on a host that is new all regions become reachable again.
func (m movedMemory) Watch(w remote.Watcher) {
	g := m.g
	g.mu.Lock()
	begun := g.watcher != nil
	g.watcher = w
	for id, d := range g.there {
		w.Declared(id, d)
	}
	g.mu.Unlock()
	if !begun {
		m.Memory.Watch(g)
	}
}

func (g *movedGuest) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moves = true
}

func (g *movedGuest) goOn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moves = false
	for _, f := range g.meantime {
		f()
	}
	g.meantime = nil
}

func (g *movedGuest) hear(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.moves {
		g.meantime = append(g.meantime, f)
	} else {
		f()
	}
}

// Declared implements remote.Watcher.
func (g *movedGuest) Declared(id uint32, d remote.Declared) {
	g.hear(func() {
		g.there[id] = d
		g.watcher.Declared(id, d)
	})
}

// Dropped implements remote.Watcher.
func (g *movedGuest) Dropped(id uint32) {
	g.hear(func() {
		delete(g.there, id)
		g.watcher.Dropped(id)
	})
}
