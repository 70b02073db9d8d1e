package exec

import (
	"math/bits"

	"causeway/host/driver/soft/ptx"
)

// Faults travel as a panic of *Fault from the operation to the worker that
// runs the block (launch.go), and no further.

// fault raises a fault of the operation in progress, for the first active lane.
func (w *warp) fault(kind FaultKind, msg string) {
	line := int32(0)
	if w.at != nil {
		line = w.at.line
	}
	w.faultLine(line, kind, msg)
}

func (w *warp) faultLine(line int32, kind FaultKind, msg string) {
	f := w.newFault(kind, bits.TrailingZeros32(w.mask)&31)
	f.Line, f.Msg = int(line), msg
	panic(f)
}

// faultAddress raises an address fault for one lane.
func (w *warp) faultAddress(kind FaultKind, o *op, lane int, space ptx.Space, addr, size uint64, write bool) {
	f := w.newFault(kind, lane)
	f.Line, f.Space, f.Address, f.Size, f.Write = int(o.line), space, addr, size, write
	panic(f)
}

func (w *warp) newFault(kind FaultKind, lane int) *Fault {
	f := &Fault{Kind: kind, Block: w.blk.ctaid, Thread: w.thread(lane)}
	if w.fr != nil {
		f.Function = w.fr.code.name
	}
	return f
}

// thread returns %tid of a lane.
func (w *warp) thread(lane int) [3]uint32 {
	b := &w.blk.launch.config.Block
	n := uint32(w.index*32 + lane)
	return [3]uint32{n % b[0], n / b[0] % b[1], n / b[0] / b[1]}
}
