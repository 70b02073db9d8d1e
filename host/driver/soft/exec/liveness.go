package exec

import (
	"math/bits"

	"causeway/host/driver/soft/ptx"
)

// Liveness is computed per thread, as if there were no warps: lanes own their
// columns of the register file, so two registers that no thread needs at the
// same time may share a slot even when diverged lanes hold both.

// maxLiveBits bounds the live-in sets of a function; beyond it every register
// keeps a slot of its own.
const maxLiveBits = 1 << 28

type bitset []uint64

func (s bitset) add(i int)  { s[i/64] |= 1 << (i % 64) }
func (s bitset) drop(i int) { s[i/64] &^= 1 << (i % 64) }

// noResult are the opcodes without a destination; their operands are all read.
func noResult(in *ptx.Instr) bool {
	switch in.Op {
	case "st", "red", "bra", "brx", "membar", "fence", "prefetch", "prefetchu", "ret", "exit", "trap",
		"nanosleep", "cp", "discard", "applypriority", "griddepcontrol", "brkpt", "pmevent", "setmaxnreg", "sust", "stmatrix":
		return true
	case "bar", "barrier":
		for _, m := range in.Mods {
			if m == "red" {
				return false
			}
		}
		return true
	case "mbarrier", "wmma":
		return len(in.Operands) > 0 && in.Operands[0].Kind == ptx.OpAddr
	}
	return false
}

// effects calls use and def for the registers an instruction reads and writes.
// A guarded write also reads, since the other lanes keep their value.
func effects(in *ptx.Instr, use, def func(reg int)) {
	if in.Guard >= 0 {
		use(in.Guard)
	}
	first := 0
	if in.Op == "call" {
		if len(in.Operands) > 1 && in.Operands[0].Kind == ptx.OpList {
			eachReg(&in.Operands[0], use, def)
			first = 1
		}
	} else if !noResult(in) && len(in.Operands) > 0 {
		write := def
		if in.Guard >= 0 {
			write = func(r int) { use(r); def(r) }
		}
		eachReg(&in.Operands[0], use, write)
		first = 1
	}
	for i := first; i < len(in.Operands); i++ {
		eachReg(&in.Operands[i], use, use)
	}
}

// eachReg walks an operand; registers inside of an address are always read.
func eachReg(o *ptx.Operand, use, f func(reg int)) {
	switch o.Kind {
	case ptx.OpReg:
		f(o.Reg)
	case ptx.OpAddr:
		for i := range o.Elems {
			eachReg(&o.Elems[i], use, use)
		}
	default:
		for i := range o.Elems {
			eachReg(&o.Elems[i], use, f)
		}
	}
}

// nodeEffects is effects for the terminator of a block.
func nodeEffects(n *node, use, def func(reg int)) {
	if n.term == termBranch {
		use(n.guard)
		return
	}
	for _, r := range n.uses {
		use(r)
	}
	if n.instr == nil {
		return
	}
	if n.term == termSync {
		if m := maskOperand(n.instr); m >= 0 && m != wholeWarp {
			eachReg(&n.instr.Operands[m], use, use)
		}
		return
	}
	effects(n.instr, use, def)
}

// liveIn computes the registers alive at the start of each block, or ok false
// when the function is too large.
func liveIn(g *graph, regs int) (in []bitset, ok bool) {
	words := (regs + 63) / 64
	if len(g.nodes)*words*64 > maxLiveBits {
		return nil, false
	}
	in = make([]bitset, len(g.nodes))
	preds := make([][]int, len(g.nodes))
	for i := range g.nodes {
		in[i] = make(bitset, words)
		g.nodes[i].succs(func(s int) { preds[s] = append(preds[s], i) })
	}
	queued := make([]bool, len(g.nodes))
	var work []int
	for i := range g.nodes {
		work, queued[i] = append(work, i), true
	}
	live := make(bitset, words)
	for rounds := 64*len(g.nodes) + 1024; len(work) > 0; rounds-- {
		if rounds == 0 {
			return nil, false
		}
		i := work[len(work)-1]
		work, queued[i] = work[:len(work)-1], false
		clear(live)
		g.nodes[i].succs(func(s int) {
			for k, v := range in[s] {
				live[k] |= v
			}
		})
		transfer(&g.nodes[i], live)
		changed := false
		for k, v := range live {
			if in[i][k] != v {
				in[i][k], changed = v, true
			}
		}
		if !changed {
			continue
		}
		for _, p := range preds[i] {
			if !queued[p] {
				work, queued[p] = append(work, p), true
			}
		}
	}
	return in, true
}

// transfer turns live-out into live-in.
func transfer(n *node, live bitset) {
	nodeEffects(n, func(int) {}, live.drop)
	nodeEffects(n, live.add, func(int) {})
	for i := len(n.ins) - 1; i >= 0; i-- {
		effects(&n.ins[i], func(int) {}, live.drop)
		effects(&n.ins[i], live.add, func(int) {})
	}
}

func (s bitset) each(f func(int)) {
	for k, v := range s {
		for ; v != 0; v &= v - 1 {
			f(k*64 + bits.TrailingZeros64(v))
		}
	}
}
