package virtio

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// InFlightSize is how many bytes an InFlight takes.
const InFlightSize = 4 * (inFlightHeads + 32768/32)

// Words of an InFlight: whether the queue ran, the next entry to take, and the completion under
// way: its head plus one above the used index that it leads to. The heads in flight follow, a bit
// each.
const (
	inFlightRan = iota
	inFlightNext
	inFlightLast
	inFlightHeads
)

// InFlight is what a device has taken from a queue and not completed, in memory that outlives its
// process: whoever takes the queue over completes it. One process writes it at a time. A nil
// InFlight keeps nothing.
type InFlight struct{ words []uint32 }

// NewInFlight keeps it in mem, which is of InFlightSize bytes, aligned to words and outside Go's
// heap, or pinned by the caller.
func NewInFlight(mem []byte) (*InFlight, error) {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if len(mem) != InFlightSize || uintptr(p)%4 != 0 {
		return nil, fmt.Errorf("%d bytes at %p, not %d aligned ones", len(mem), p, InFlightSize)
	}
	return &InFlight{unsafe.Slice((*uint32)(p), InFlightSize/4)}, nil
}

func (f *InFlight) set(word int, v uint32) {
	if f != nil {
		atomic.StoreUint32(&f.words[word], v)
	}
}

// begin says that the queue runs from an entry on, with nothing in flight.
func (f *InFlight) begin(next uint16) {
	if f == nil {
		return
	}
	for i := range f.words[inFlightHeads:] {
		f.set(inFlightHeads+i, 0)
	}
	f.set(inFlightNext, uint32(next))
	f.set(inFlightLast, 0)
	f.set(inFlightRan, 1)
}

// take notes a head, advance that its entry has been taken.
func (f *InFlight) take(head uint16) {
	if f != nil {
		atomic.OrUint32(&f.words[inFlightHeads+int(head)/32], 1<<(head%32))
	}
}

func (f *InFlight) advance(next uint16) { f.set(inFlightNext, uint32(next)) }

// finish comes before the used index is published that says so, drop after it.
func (f *InFlight) finish(head, used uint16) { f.set(inFlightLast, uint32(head+1)<<16|uint32(used)) }

func (f *InFlight) drop(head uint16) {
	if f != nil {
		atomic.AndUint32(&f.words[inFlightHeads+int(head)/32], ^uint32(1<<(head%32)))
		f.set(inFlightLast, 0)
	}
}

func (f *InFlight) has(head uint16) bool {
	return atomic.LoadUint32(&f.words[inFlightHeads+int(head)/32])>>(head%32)&1 != 0
}

// left is where the queue stood and what was in flight, when its used index is used; ok is false if
// it never ran.
func (f *InFlight) left(used uint16) (next uint16, heads []uint16, ok bool) {
	if f == nil || atomic.LoadUint32(&f.words[inFlightRan]) == 0 {
		return 0, nil, false
	}
	if last := atomic.LoadUint32(&f.words[inFlightLast]); uint16(last) == used && last>>16 != 0 && last>>16 <= 32768 {
		f.drop(uint16(last>>16) - 1) // published, and the process died before it said so here
	}
	for head := range uint16(32768) {
		if f.has(head) {
			heads = append(heads, head)
		}
	}
	return uint16(atomic.LoadUint32(&f.words[inFlightNext])), heads, true
}
