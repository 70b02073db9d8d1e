package workertest

import (
	"encoding/binary"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
)

// OpenCallbacks gives a slot to callbacks, as the guest library does at the first host function.
// Callbacks are then taken by TakeCallback, from one goroutine.
func (g *Guest) OpenCallbacks(slot uint32) (*Callbacks, error) {
	seq, err := g.Begin(slot, &wire.CallbackOpenArgs{})
	if err != nil {
		return nil, err
	}
	if res, err := g.Finish(slot, seq, nil); err != nil || res != cuda.Success {
		return nil, errorOf(res, err)
	}
	return &Callbacks{g: g, slot: slot, base: seq}, nil
}

func errorOf(res cuda.Result, err error) error {
	if err != nil {
		return err
	}
	return res
}

// Callbacks is the guest's end of host functions.
type Callbacks struct {
	g                 *Guest
	slot, base, taken uint32
}

func (c *Callbacks) at(off uint64) uintptr {
	return uintptr(remote.SlotsOffset + uint64(c.slot)*uint64(remote.SlotSize) + off)
}

// Take returns the next callback, within Limit, and what to call when it has run.
func (c *Callbacks) Take() (id uint64, status cuda.Result, done func(), err error) {
	const header = 64
	for end := time.Now().Add(Limit); c.g.Word32(c.at(0)).Load() == c.base+c.taken; time.Sleep(20 * time.Microsecond) {
		if time.Now().After(end) {
			return 0, 0, nil, ErrSilent
		}
	}
	i := c.taken % wire.CallbackCount
	c.taken++
	number := c.taken
	var e [16]byte
	c.g.Held(func() { copy(e[:], c.g.Mem[c.at(header+16*uint64(i)):]) })
	word := c.g.Word32(c.at(header + uint64(wire.CallbackDoneOffset) + 4*uint64(i)))
	return binary.LittleEndian.Uint64(e[:]), cuda.Result(binary.LittleEndian.Uint32(e[8:])), func() {
		c.g.Held(func() { word.Store(number) })
	}, nil
}
