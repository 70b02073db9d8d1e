package cuda

import (
	"sync"

	"causeway/cuda"
)

const (
	fenceCount = 256
	bounceSize = 4096 // bytes of pinned memory that go with each fence, for small copies to the guest
)

// fence is a word of pinned memory that the GPU writes, with some pinned bytes beside it. One wait owns it at a time.
type fence struct {
	index  int
	word   word
	dev    uint64 // the word's device address
	value  uint32 // what the GPU will write
	bounce uint64 // address, the same for CPU and GPU
}

// fencePool lends fences. take and put may be called from any goroutine.
type fencePool struct {
	mu     sync.Mutex
	ctx    uint32 // the guest's context that it was made in
	base   uint64
	free_  []int
	values [fenceCount]uint32
}

// newFencePool allocates in the current context.
func newFencePool(f *entryPoints) (*fencePool, cuda.Result) {
	const portable, deviceMap = 1, 2
	out := newBuffer(8)
	defer out.free()
	if res := f.cuMemHostAlloc.call(out.addr(), fenceCount*(bounceSize+4), portable|deviceMap); res != cuda.Success {
		return nil, res
	}
	p := &fencePool{base: *out.u64(0)}
	for i := range fenceCount {
		p.free_ = append(p.free_, i)
		p.at(i).word.store(0)
	}
	return p, cuda.Success
}

func (p *fencePool) at(i int) fence {
	addr := p.base + fenceCount*bounceSize + uint64(4*i)
	return fence{index: i, word: word(addr), dev: addr, value: p.values[i], bounce: p.base + uint64(i)*bounceSize}
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

func (p *fencePool) free(f *entryPoints) { f.cuMemFreeHost.call(p.base) }
