package driver

import "sync"

// Budget is the device memory that a session may use, which it may share with others. Sizes are in
// bytes. Methods may be called from any goroutine.
type Budget interface {
	// Reserve books n bytes if the limit allows. False: it does not, and nothing has changed.
	Reserve(n uint64) bool
	// Book books what is taken already, whatever the limit.
	Book(n uint64)
	// Release gives back what was reserved or booked.
	Release(n uint64)
	// Enter books what a context takes beside allocations, as far as anybody knows, before it is
	// made. Leave is its end.
	Enter() bool
	Leave()
	// Limit is the limit of now; 0: none. Used is what all who share the budget use, contexts
	// included.
	Limit() uint64
	Used() uint64
}

// Memory is the session's budget: Budget, or one of its own with MemoryLimit.
func (o Options) Memory() Budget {
	if o.Budget != nil {
		return o.Budget
	}
	return &ownBudget{limit: o.MemoryLimit}
}

// ownBudget is shared with nobody. Contexts count for nothing.
type ownBudget struct {
	limit uint64
	mu    sync.Mutex
	used  uint64
}

func (b *ownBudget) Reserve(n uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit != 0 && (n > b.limit || b.used > b.limit-n) {
		return false
	}
	b.used += n
	return true
}

func (b *ownBudget) Book(n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
}

func (b *ownBudget) Release(n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= min(b.used, n)
}

func (b *ownBudget) Enter() bool   { return true }
func (b *ownBudget) Leave()        {}
func (b *ownBudget) Limit() uint64 { return b.limit }

func (b *ownBudget) Used() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Loader is a Session that knows how much of the host's memory it keeps for an image while that is
// loaded, in bytes. Of others it is taken to be what they get out of the image. The answer comes
// from the image's headers: nothing is unpacked. Worker goroutine.
type Loader interface {
	ImageBytes(image []byte) uint64
}
