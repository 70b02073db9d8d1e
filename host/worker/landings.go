package worker

import (
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"
)

// The memory of landings: pieces of a small copy fill one each, a large copy's four.
const (
	landingSize  = 256 << 10
	landingCount = 16
)

// landings is memory to which bytes of copies to the GPU come, and which a driver pins, so that
// they are copied from there at once. It lies outside of Go's heap and stays until the process
// ends, as bytes may be under way to it whenever a session does. Any goroutine.
type landings struct {
	mem []byte

	mu    sync.Mutex
	taken uint32 // a bit for each
}

func newLandings() *landings {
	mem, err := unix.Mmap(-1, 0, landingCount*landingSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil
	}
	return &landings{mem: mem}
}

// landing is some of it in a row, for so many bytes.
type landing struct {
	of       *landings
	at, size uint64
}

// mask is a bit for each that it has.
func (r landing) mask() uint32 {
	return (1<<((r.size+landingSize-1)/landingSize) - 1) << (r.at / landingSize)
}

func (r landing) bytes() []byte { return r.of.mem[r.at : r.at+r.size] }

// take is some for size bytes, which are not 0; false: there is none.
func (o *landings) take(size uint64) (landing, bool) {
	if o == nil || size > landingCount*landingSize {
		return landing{}, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := (landing{of: o, size: size}); r.at+size <= landingCount*landingSize; {
		in := o.taken & r.mask()
		if in == 0 {
			o.taken |= r.mask()
			return r, true
		}
		r.at = uint64(bits.Len32(in)) * landingSize // behind the last that is taken
	}
	return landing{}, false
}

// put gives it back.
func (r landing) put() {
	r.of.mu.Lock()
	r.of.taken &^= r.mask()
	r.of.mu.Unlock()
}
