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
)

// fence is a word of pinned memory that the GPU writes, with some pinned bytes beside it. One wait
// owns it at a time.
type fence struct {
	index  int
	word   word
	dev    bind.Mem // the word as the GPU reaches it
	value  uint32   // what the GPU will write
	bounce bind.Host
}

// fencePool lends fences. take and put may be called from any goroutine.
type fencePool struct {
	mu     sync.Mutex
	ctx    uint32 // the guest's context that it was made in
	mem    bind.Registered
	free_  []int
	values [fenceCount]uint32
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
	n := len(p.free_)
	if n == 0 {
		return fence{}, false
	}
	i := p.free_[n-1]
	p.free_ = p.free_[:n-1]
	p.values[i]++
	return p.at(i), true
}

func (p *fencePool) put(f fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free_ = append(p.free_, f.index)
}

func (p *fencePool) free(d *bind.Driver) { d.FreeHost(p.mem) }
