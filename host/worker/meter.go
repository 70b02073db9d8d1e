package worker

import (
	"encoding/binary"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/meter"
)

// counting is what the consumer counts with.
type counting struct {
	to     *meter.Writer // nil: nobody reads
	pinned []span        // regions of the guest that kernels and copies reach by address
}

type span struct {
	id     uint32
	lo, hi uint64
}

// count notes a request that was executed, and reports whether its arguments say more. A graph's
// launch is one, however many kernels it has.
func (n *counting) count(as wire.Counts, res cuda.Result) bool {
	n.to.Call()
	switch {
	case as == wire.CountsNothing || res != cuda.Success:
		return false
	case as == wire.CountsLaunch:
		n.to.Launch()
		return false
	}
	return true
}

// more counts bytes: what moves within the device, or within the guest, is no byte in or out. Bytes
// that kernels read and write in the guest's pinned memory pass uncounted.
func (n *counting) more(args wire.Args) {
	switch a := args.(type) {
	case *wire.MemcpyArgs:
		n.copied(n.guests(a.Src), n.guests(a.Dst), a.Size)
	case *wire.MemcpyWaitArgs:
		n.copied(n.guests(a.Src), n.guests(a.Dst), a.Size)
	case *wire.MemcpyBatchArgs:
		for p := a.Pieces; len(p) >= wire.MemcpyBatchPiece; p = p[wire.MemcpyBatchPiece:] {
			n.copied(n.guests(binary.LittleEndian.Uint64(p[8:])), n.guests(binary.LittleEndian.Uint64(p)), binary.LittleEndian.Uint64(p[16:]))
		}
	case *wire.MemcpyHtoDArgs:
		n.to.In(uint64(len(a.Src)))
	case *wire.MemcpyDtoHArgs:
		n.to.Out(uint64(a.Size))
	case *wire.MemcpyStagedArgs:
		n.copied(a.Direction == 0, a.Direction == 1, a.Size)
	case *wire.Memcpy3DArgs:
		from := a.SrcKind == wire.OperandStaging || a.SrcKind != wire.OperandArray && n.guests(a.Src)
		to := a.DstKind == wire.OperandStaging || a.DstKind != wire.OperandArray && n.guests(a.Dst)
		n.copied(from, to, a.Width*max(a.Height, 1)*max(a.Depth, 1))
	case *wire.SessionInitArgs:
		g := guestOf(a)
		n.to.Guest(g.pid, g.program)
	case *wire.RegionAddArgs:
		if a.Kind == wire.RegionPinned {
			n.pinned = append(n.pinned, span{a.Region, a.Va, a.Va + a.Size})
		}
	case *wire.RegionDropArgs:
		n.pinned = slices.DeleteFunc(n.pinned, func(s span) bool { return s.id == a.Region })
	}
}

// copied counts a copy; from and to say which end is the guest's memory.
func (n *counting) copied(from, to bool, size uint64) {
	switch {
	case from && !to:
		n.to.In(size)
	case to && !from:
		n.to.Out(size)
	}
}

// guests reports whether an address is in the guest's own memory.
func (n *counting) guests(addr uint64) bool {
	for i := range n.pinned {
		if addr >= n.pinned[i].lo && addr < n.pinned[i].hi {
			return true
		}
	}
	return false
}

// failed counts an error that the guest is told of. Any goroutine.
func (n *counting) failed(res cuda.Result) {
	if n.to != nil && res != cuda.Success && res != cuda.ErrorNotReady {
		n.to.Failed(res == cuda.ErrorOutOfMemory)
	}
}

// hostRefused counts a request that the budget of host memory refused. Any goroutine.
func (n *counting) hostRefused() {
	if n.to != nil {
		n.to.HostRefused()
	}
}
