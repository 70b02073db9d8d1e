package exec

import "math/bits"

// codeWindow is where function addresses lie. They are handles, not memory:
// codeWindow plus 16 times the function's index.
const codeWindow = 0xffff_0004_0000_0000

func (w *warp) call(b *block) {
	s := b.call
	if s.target == nil {
		w.callIndirect(b)
		return
	}
	if s.target.builtin != nil {
		s.target.builtin(w, s)
		w.pc = b.next
		return
	}
	w.enter(s.target, s, b.next)
}

// enter moves the running lanes into a new frame of c.
func (w *warp) enter(c *code, s *callSite, next int32) {
	if c.err != nil {
		panic(c.err)
	}
	if !c.defined {
		w.faultLine(s.line, InvalidPC, "call of "+c.name+", which has no body")
	}
	if len(s.args) != len(c.params) || len(s.rets) > len(c.rets) {
		w.faultLine(s.line, InvalidPC, "call of "+c.name+" with wrong parameters")
	}
	from := w.fr
	base := (from.base + max(from.code.frame, minFrame) + 15) &^ 15
	if base+c.frame > w.blk.launch.stack {
		w.faultLine(s.line, StackOverflow, "")
	}
	f := w.newFrame(c)
	f.parent, f.depth, f.ret, f.site = from, from.depth+1, next, s
	f.live, f.base = w.mask, base
	w.reserveLocal(base + c.frame)
	for i := range s.args {
		a, p := &s.args[i], &c.params[i]
		w.moveArg(from, a.off, a.reg, f, p.off, p.reg, min(a.size, p.size))
	}
	w.setFrame(f)
	w.pc = 0
}

// moveArg copies one argument for the active lanes between frames; a register
// of -1 means memory.
func (w *warp) moveArg(from *frame, foff uint64, freg int32, to *frame, toff uint64, treg int32, size uint64) {
	for _, l := range w.act {
		lane := uint64(l) * w.localCap
		src, dst := lane+from.base+foff, lane+to.base+toff
		switch {
		case freg < 0 && treg < 0:
			copy(w.local[dst:dst+size], w.local[src:src+size])
		case freg < 0:
			to.r[treg][l&31] = getBytes(w.local[src : src+size])
		case treg < 0:
			putBytes(w.local[dst:dst+size], from.r[freg][l&31])
		default:
			to.r[treg][l&31] = from.r[freg][l&31]
		}
	}
}

func getBytes(b []byte) uint64 {
	var v uint64
	for i := min(len(b), 8) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

func putBytes(b []byte, v uint64) {
	for i := range b {
		b[i] = byte(v)
		v >>= 8
	}
}

// callIndirect groups the lanes by target and lets each group enter its own.
func (w *warp) callIndirect(b *block) {
	s := b.call
	regs := &w.r[s.reg]
	all, home := w.mask, w.fr
	for rest := all; rest != 0; {
		addr := regs[bits.TrailingZeros32(rest)&31]
		var m uint32
		for l := rest; l != 0; l &= l - 1 {
			if i := bits.TrailingZeros32(l); regs[i&31] == addr {
				m |= 1 << i
			}
		}
		rest &^= m
		c := w.blk.launch.kernel.module.codeAt(addr)
		if c == nil {
			w.faultLine(s.line, InvalidPC, "call through a pointer to no function")
		}
		w.setFrame(home)
		w.setMask(m)
		if c.builtin != nil {
			c.builtin(w, s)
			w.park(split{fr: home, pc: b.next, mask: m})
			continue
		}
		w.enter(c, s, b.next)
		if m == all {
			return
		}
		w.park(split{fr: w.fr, pc: 0, mask: m})
	}
	w.mask = 0
}

// ret returns the running lanes to the caller, or ends them.
func (w *warp) ret() {
	f := w.fr
	if f.parent == nil {
		w.exit(w.mask)
		return
	}
	for i := range f.site.rets {
		a, p := &f.site.rets[i], &f.code.rets[i]
		w.moveArg(f, p.off, p.reg, f.parent, a.off, a.reg, min(a.size, p.size))
	}
	next := f.ret
	w.setFrame(f.parent)
	f.live &^= w.mask
	if f.live == 0 {
		w.freeFrame(f)
	}
	w.pc = next
	if len(w.splits) > 0 {
		w.unsettle()
	}
}
