package verbs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// GPUAdapter is implemented by an Adapter that may be told of a GPU's memory. What it registers is
// for its own work requests alone: no peer has a key of it.
type GPUAdapter interface {
	Adapter
	// RegisterFile registers size bytes of a dma-buf, from off on, which work requests name from an
	// address on.
	RegisterFile(f *os.File, off, size, address uint64) (Memory, error)
	// RegisterAddress registers memory by the addresses that the GPU's driver has for it, which a
	// module of the kernel's knows (nvidia-peermem).
	RegisterAddress(address, size uint64) (Memory, error)
}

// ErrNoWay says that memory of a kind is not registered here, whichever it is.
var ErrNoWay = errors.New("not here")

// GPUMemory is memory of a GPU that a session has: all of one allocation, or whole pages of it.
type GPUMemory struct {
	Address, Size uint64
	// Serial is that of the allocation: no other that was or will be at this address has it.
	Serial uint64
	// Export makes a dma-buf of it, from the offset on. The caller closes it.
	Export func() (f *os.File, off uint64, err error)
}

// Bounds of what is registered of a session's: GPUs have so much of their memory shown to adapters
// (BAR1), and adapters keep tables.
const (
	mostGPU    = 64
	givenUp    = 3 // failures in a row after which a way is not tried any more
	maxRefusal = 200
)

// gpuWay is one way of registering.
type gpuWay struct {
	name     string
	register func(g *GPUMemory) (Memory, error)
	failed   int
	why      error // of the last failure
	off      bool
}

// GPURegions are a session's registrations of GPU memory: as few as there is use for, the longest
// unused of which give way. Any goroutine.
type GPURegions struct {
	told func(string)

	mu     sync.Mutex
	left   sync.Cond // of mu: a transfer has ended
	ways   []*gpuWay // the best first
	known  []*gpuRegion
	said   string
	closed bool
}

// gpuRegion is a registration, or that there is none.
type gpuRegion struct {
	GPUMemory
	mem   Memory // nil: it was refused
	users int
	gone  bool // it is to end
}

// NewGPURegions has told called with what String says, whenever that changes.
func NewGPURegions(a Adapter, told func(string)) *GPURegions {
	r := &GPURegions{told: told}
	r.left.L = &r.mu
	g, ok := a.(GPUAdapter)
	if !ok {
		err := errors.New("this adapter takes no GPU's memory")
		r.ways = []*gpuWay{{name: "dma-buf", off: true, why: err}, {name: "address", off: true, why: err}}
		return r
	}
	r.ways = []*gpuWay{
		{name: "dma-buf", register: func(m *GPUMemory) (Memory, error) {
			f, off, err := m.Export()
			if err != nil {
				return nil, err
			}
			defer f.Close()
			return g.RegisterFile(f, off, m.Size, m.Address)
		}},
		{name: "address", register: func(m *GPUMemory) (Memory, error) { return g.RegisterAddress(m.Address, m.Size) }},
	}
	return r
}

// String says how the adapter reaches GPU memory, and why not in a better way. Empty: it was not
// tried.
func (r *GPURegions) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said
}

// Off reports whether there is no way.
func (r *GPURegions) Off() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.offLocked()
}

func (r *GPURegions) offLocked() bool { return r.closed || r.ways[0].off && r.ways[1].off }

// Refuse has no memory registered any more.
func (r *GPURegions) Refuse(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuseLocked(why)
}

func (r *GPURegions) refuseLocked(why error) {
	for _, w := range r.ways {
		w.off, w.why = true, why
	}
	r.sayLocked("")
}

// Use registers memory, if it is not, and has it stay so until done is called. false: it is not
// registered, and bytes go through this process's memory.
func (r *GPURegions) Use(g GPUMemory) (m Memory, done func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.findLocked(g.Address)
	if x != nil && (x.Serial != g.Serial || x.Size != g.Size) {
		r.endLocked(x) // another allocation lies where it did
		x = nil
	}
	switch {
	case x != nil && x.mem == nil:
		return nil, nil, false
	case x != nil:
	case r.offLocked() || !r.roomLocked():
		return nil, nil, false
	default:
		x = &gpuRegion{GPUMemory: g, mem: r.registerLocked(&g)}
		r.known = append(r.known, x)
		if x.mem == nil {
			return nil, nil, false
		}
	}
	i := slices.Index(r.known, x)
	r.known = append(slices.Delete(r.known, i, i+1), x) // the newest last
	x.users++
	return x.mem, func() { r.leave(x) }, true
}

func (r *GPURegions) leave(x *gpuRegion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.users--; x.users == 0 {
		r.left.Broadcast()
	}
}

func (r *GPURegions) findLocked(address uint64) *gpuRegion {
	i := slices.IndexFunc(r.known, func(x *gpuRegion) bool { return x.Address == address && !x.gone })
	if i < 0 {
		return nil
	}
	return r.known[i]
}

// roomLocked makes room for one more, if what is registered is not all in use.
func (r *GPURegions) roomLocked() bool {
	if len(r.known) < mostGPU {
		return true
	}
	for _, x := range r.known {
		if x.users == 0 && !x.gone {
			r.endLocked(x)
			return true
		}
	}
	return false
}

// endLocked ends a registration when nothing of it is under way any more.
func (r *GPURegions) endLocked(x *gpuRegion) {
	x.gone = true
	for x.users > 0 {
		r.left.Wait()
	}
	i := slices.Index(r.known, x)
	if i < 0 {
		return
	}
	r.known = slices.Delete(r.known, i, i+1)
	if x.mem == nil {
		return
	}
	if err := x.mem.Close(); err != nil {
		// The kernel keeps its pages, whoever frees them; there are no more of it.
		r.refuseLocked(fmt.Errorf("a registration does not end: %w", err))
	}
}

// registerLocked tries the ways in their order. nil: none of them.
func (r *GPURegions) registerLocked(g *GPUMemory) Memory {
	for _, w := range r.ways {
		if w.off {
			continue
		}
		m, err := w.register(g)
		if err == nil {
			w.failed = 0
			r.sayLocked(w.name)
			return m
		}
		w.why = err
		if w.failed++; w.failed == givenUp || errors.Is(err, ErrNoWay) {
			w.off = true
		}
	}
	if r.said == "" || r.offLocked() {
		r.sayLocked("")
	}
	return nil
}

// sayLocked tells which way it is, if that is news.
func (r *GPURegions) sayLocked(way string) {
	var text string
	switch way {
	case "dma-buf":
		text = "GPU memory by dma-buf"
	case "address":
		text = "GPU memory by its addresses; no dma-buf: " + refusal(r.ways[0].why)
	default:
		text = "GPU memory through the server's; no dma-buf: " + refusal(r.ways[0].why) + "; not by its addresses: " + refusal(r.ways[1].why)
	}
	if text != r.said {
		r.said = text
		r.told(text)
	}
}

func refusal(err error) string {
	text := fmt.Sprint(err)
	return text[:min(len(text), maxRefusal)]
}

// Forget ends what is registered of an allocation that begins at an address, or in which one
// begins, ahead of its end. Nothing reaches it when this returns.
func (r *GPURegions) Forget(address, size uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range slices.Clone(r.known) {
		if x.Address-address < size {
			r.endLocked(x)
		}
	}
}

// Close ends all of it.
func (r *GPURegions) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, x := range slices.Clone(r.known) {
		r.endLocked(x)
	}
}

// Count is how much is registered.
func (r *GPURegions) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, x := range r.known {
		if x.mem != nil {
			n++
		}
	}
	return n
}
