package exec

import (
	"slices"
	"strings"

	"causeway/host/driver/soft/ptx"
)

// bulkCopy is cp.async.bulk or cp.reduce.async.bulk. The destination is the
// operation's own address.
type bulkCopy struct {
	src     access
	size    int32  // slot
	bar     access // barrier that the bytes are counted at, if barrier
	barrier bool
	mask    int32 // slot of the blocks to copy to, or -1
	reduce  func(a, b uint64) uint64
	element uint64 // bytes of an element of a reduction
}

// bulkSpaces finds the destination's and the source's spaces, which come first
// among the modifiers.
func (l *lowerer) bulkSpaces() (dst, src ptx.Space, ok bool) {
	var list []ptx.Space
	for _, m := range l.in.Mods {
		switch m {
		case "global":
			list = append(list, ptx.Global)
		case "shared::cta", "shared::cluster":
			list = append(list, ptx.Shared)
		}
	}
	if len(list) != 2 {
		return 0, 0, false
	}
	return list[0], list[1], true
}

// lowerBulk lowers bulk copies, which are complete at once: only barriers learn
// of them.
func (l *lowerer) lowerBulk() error {
	if l.hasAny("commit_group", "wait_group", "prefetch") != "" {
		return nil
	}
	dst, src, ok := l.bulkSpaces()
	if !ok || l.hasAny("tensor", "cp_mask") != "" || slices.ContainsFunc(l.in.Mods, func(m string) bool { return strings.HasPrefix(m, "ignore_oob") }) {
		return l.unsupported("%s", l.in)
	}
	b := &bulkCopy{mask: -1}
	to, err := l.addr(0, dst)
	if err != nil {
		return err
	}
	if b.src, err = l.addr(1, src); err != nil {
		return err
	}
	if b.size, err = l.src(2, ptx.U32); err != nil {
		return err
	}
	if b.barrier = l.has("mbarrier::complete_tx::bytes"); b.barrier {
		if b.bar, err = l.addr(3, ptx.Shared); err != nil {
			return err
		}
	}
	if l.has("multicast::cluster") {
		if b.mask, err = l.src(4, ptx.U16); err != nil {
			return err
		}
	}
	if l.in.Mods[0] == "reduce" {
		t := l.typ()
		name := l.hasAny("add", "min", "max", "inc", "dec", "and", "or", "xor")
		f := atomFunc(name, t)
		if f == nil {
			return l.unsupported("%s", l.in)
		}
		b.element, b.reduce = t.Size(), func(a, b uint64) uint64 { return f(a, b, 0) }
	}
	l.emit(op{fn: opBulk, a: to.base, imm: to.off, x: &opExtra{space: dst, bulk: b}})
	return nil
}
