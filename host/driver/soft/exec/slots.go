package exec

import (
	"container/heap"
	"sort"

	"causeway/host/driver/soft/ptx"
)

// assignment maps a function's virtual registers to slots: predicates to one
// file, everything else to another. Compilers emit a new register for each
// value, so without sharing a warp's registers would not fit a cache.
type assignment struct {
	slot     []int32 // per register; predicates have their own numbering
	slots    int
	preds    int
	pressure int // most 32-bit registers alive at one point
}

// unassigned marks a register that nothing reads or writes.
const unassigned = -1

type interval struct {
	reg        int
	start, end int
}

// assignSlots runs a linear scan over the blocks in their final order. No
// register starts at the instruction where another ends, so operations may
// write their results in any order.
func assignSlots(f *ptx.Func, g *graph) *assignment {
	a := &assignment{slot: make([]int32, len(f.Regs))}
	for i := range a.slot {
		a.slot[i] = unassigned
	}
	in, ok := liveIn(g, len(f.Regs))
	if !ok {
		a.identity(f)
		return a
	}
	list := intervals(f, g, in)
	sort.Slice(list, func(i, j int) bool { return list[i].start < list[j].start })
	var active ends
	var free slotHeap
	width := 0
	for _, iv := range list {
		if f.Regs[iv.reg].Type == ptx.Pred {
			a.slot[iv.reg] = int32(a.preds)
			a.preds++
			continue
		}
		for len(active) > 0 && active[0].end < iv.start {
			e := heap.Pop(&active).(interval)
			heap.Push(&free, a.slot[e.reg])
			width -= regWidth(f, e.reg)
		}
		if len(free) > 0 {
			a.slot[iv.reg] = heap.Pop(&free).(int32)
		} else {
			a.slot[iv.reg] = int32(a.slots)
			a.slots++
		}
		width += regWidth(f, iv.reg)
		a.pressure = max(a.pressure, width)
		heap.Push(&active, iv)
	}
	return a
}

func regWidth(f *ptx.Func, reg int) int { return (f.Regs[reg].Type.Bits() + 31) / 32 }

func (a *assignment) identity(f *ptx.Func) {
	for i, r := range f.Regs {
		if r.Type == ptx.Pred {
			a.slot[i] = int32(a.preds)
			a.preds++
		} else {
			a.slot[i] = int32(a.slots)
			a.slots++
		}
	}
	a.pressure = 255
}

// intervals covers, for each register, every position where it is alive.
func intervals(f *ptx.Func, g *graph, in []bitset) []interval {
	list := make([]interval, len(f.Regs))
	for i := range list {
		list[i] = interval{i, -1, -1}
	}
	pos := 0
	touch := func(r int) {
		if list[r].start < 0 {
			list[r].start = pos
		}
		list[r].start = min(list[r].start, pos)
		list[r].end = max(list[r].end, pos)
	}
	starts := make([]int, len(g.nodes)+1)
	for i := range g.nodes {
		starts[i] = pos
		in[i].each(touch)
		for k := range g.nodes[i].ins {
			pos++
			effects(&g.nodes[i].ins[k], touch, touch)
		}
		pos++
		nodeEffects(&g.nodes[i], touch, touch)
		pos++
	}
	for i := range g.nodes { // alive at the end of a block: alive in a successor
		pos = starts[i] + len(g.nodes[i].ins) + 1
		g.nodes[i].succs(func(s int) { in[s].each(touch) })
	}
	var used []interval
	for _, iv := range list {
		if iv.start >= 0 {
			used = append(used, iv)
		}
	}
	return used
}

type ends []interval

func (h ends) Len() int           { return len(h) }
func (h ends) Less(i, j int) bool { return h[i].end < h[j].end }
func (h ends) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *ends) Push(x any)        { *h = append(*h, x.(interval)) }
func (h *ends) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

type slotHeap []int32

func (h slotHeap) Len() int           { return len(h) }
func (h slotHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h slotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slotHeap) Push(x any)        { *h = append(*h, x.(int32)) }
func (h *slotHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
