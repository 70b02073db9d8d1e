// Package softtest has the software GPU as tests of what lies above want it.
package softtest

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/soft"
)

// DifferentGPU names Different where workers of tests open a GPU.
const DifferentGPU = "different"

// Wanders is the size of memory that never comes out where it was on a Different GPU.
const Wanders = 3 << 20

// Different is the software GPU, on which memory of one size, Wanders, never comes out where it
// was.
type Different struct{}

// Name implements driver.Driver.
func (Different) Name() string { return "soft" }

// Devices implements driver.Driver.
func (Different) Devices() ([]driver.DeviceSummary, error) { return soft.New().Devices() }

// Open implements driver.Driver.
func (Different) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	s, err := soft.New().Open(h, o)
	if err != nil {
		return nil, err
	}
	return differentSession{s, s.(driver.Precopier)}, nil
}

type differentSession struct {
	driver.Session
	driver.Precopier
}

func (s differentSession) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	if c.Replay && a.Size == Wanders {
		c.Because("the memory comes out beside where it was")
		return cuda.ErrorNotSupported
	}
	return s.Session.MemAlloc(c, a, r)
}
