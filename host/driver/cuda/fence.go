package cuda

import (
	"sync"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

const (
	fenceCount = 256
	// Bytes of pinned memory that go with each fence, for small copies to the guest.
	bounceSize = 4096
	// Pinned memory for copies through a carrier that the GPU makes while the consumer goes on: so
	// many at a time, of at most so many bytes each, which is a guest's largest piece.
	padCount = 4
	padSize  = 1 << 20
)

// fence is a word of pinned memory that the GPU writes, with some pinned bytes beside it. One wait
// owns it at a time.
type fence struct {
	index  int
	word   word
	dev    bind.Mem // the word as the GPU reaches it
	value  uint32   // what the GPU will write
	bounce bind.Host
	pad    int // which of the pool's pads it has, from 1 on; 0: none
}

// fencePool lends fences. take and put may be called from any goroutine.
type fencePool struct {
	mu       sync.Mutex
	ctx      uint32 // the guest's context that it was made in
	mem      bind.Registered
	free_    []int
	values   [fenceCount]uint32
	pads     bind.Registered // none until a session needs them
	bare     bool            // there was no memory for them
	landings bind.Registered // driver.StagedHolder's, likewise
	padded   []int           // pads that are free
}

// newFencePool allocates in the current context.
func newFencePool(d *bind.Driver) (*fencePool, cuda.Result) {
	mem, res := d.AllocHost(fenceCount * (bounceSize + 4))
	if res != cuda.Success {
		return nil, res
	}
	p := &fencePool{mem: mem}
	for i := range fenceCount {
		p.free_ = append(p.free_, i)
		p.at(i).word.store(0)
	}
	return p, cuda.Success
}

func (p *fencePool) at(i int) fence {
	offset := uint64(fenceCount*bounceSize + 4*i)
	dev, _ := p.mem.Mem().Slice(offset, 4)
	bounce, _ := p.mem.Host().Slice(uint64(i*bounceSize), bounceSize)
	return fence{index: i, word: wordOf(p.mem.Word(offset)), dev: dev, value: p.values[i], bounce: bounce}
}

func (p *fencePool) take() (fence, bool) {
	if p == nil {
		return fence{}, false // there was no memory for them when the context was made
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeLocked()
}

func (p *fencePool) takeLocked() (fence, bool) {
	n := len(p.free_)
	if n == 0 {
		return fence{}, false
	}
	i := p.free_[n-1]
	p.free_ = p.free_[:n-1]
	p.values[i]++
	return p.at(i), true
}

// takePad is take with a pad for that many bytes in the place of the fence's few, if one is free.
func (p *fencePool) takePad(size uint64) (fence, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.padded)
	if n == 0 || size > padSize {
		return fence{}, false
	}
	f, ok := p.takeLocked()
	if !ok {
		return f, false
	}
	f.pad, p.padded = p.padded[n-1], p.padded[:n-1]
	f.bounce, _ = p.pads.Host().Slice(uint64(f.pad-1)*padSize, size)
	return f, true
}

func (p *fencePool) put(f fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free_ = append(p.free_, f.index)
	if f.pad != 0 {
		p.padded = append(p.padded, f.pad)
	}
}

// havePads has the pool have pads, if there is memory for them, and pins landings of the carrier's,
// which may be none. The pool's context is current.
func (p *fencePool) havePads(d *bind.Driver, landings []byte) {
	if host, ok := bind.Mapped(landings, 0, uint64(len(landings))); ok {
		p.landings, _ = d.Register(host)
	}
	mem, res := d.AllocHost(padCount * padSize)
	if p.bare = res != cuda.Success; p.bare {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pads = mem
	for i := range padCount {
		p.padded = append(p.padded, i+1)
	}
}

func (p *fencePool) free(d *bind.Driver) {
	d.FreeHost(p.mem)
	if !p.pads.IsZero() {
		d.FreeHost(p.pads)
	}
	if !p.landings.IsZero() {
		d.Unregister(p.landings)
	}
}
