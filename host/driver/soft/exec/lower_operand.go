package exec

import (
	"math"
	"slices"
	"strings"

	"causeway/host/driver/soft/ptx"
)

func (l *lowerer) isPred(o *ptx.Operand) bool {
	return o.Kind == ptx.OpReg && l.f.Regs[o.Reg].Type == ptx.Pred
}

// src returns the slot that holds operand i, read as type t.
func (l *lowerer) src(i int, t ptx.Type) (int32, error) {
	if i >= len(l.in.Operands) {
		return 0, l.unsupported("%s with %d operands", l.in, len(l.in.Operands))
	}
	return l.value(&l.in.Operands[i], t)
}

func (l *lowerer) value(o *ptx.Operand, t ptx.Type) (int32, error) {
	switch o.Kind {
	case ptx.OpReg:
		if l.isPred(o) {
			return 0, l.unsupported("%s with a predicate operand", l.in)
		}
		if o.Not {
			return 0, l.unsupported("%s with a negated register", l.in)
		}
		return l.as.slot[o.Reg], nil
	case ptx.OpImm:
		if t.Float() && t != ptx.F16x2 && t != ptx.BF16x2 {
			return l.constant(floatImm(float64(int64(o.Imm)), t)), nil
		}
		return l.constant(o.Imm), nil
	case ptx.OpFloat:
		return l.constant(floatImm(math.Float64frombits(o.Imm), t)), nil
	case ptx.OpFloat32:
		if t.Bits() == 64 || t == ptx.F16 || t == ptx.BF16 {
			return l.constant(floatImm(float64(math.Float32frombits(uint32(o.Imm))), t)), nil
		}
		return l.constant(o.Imm), nil
	case ptx.OpSpecial:
		d, err := l.temp()
		if err != nil {
			return 0, err
		}
		return d, l.special(o.Name, d)
	case ptx.OpSymbol:
		return l.symbol(o)
	}
	return 0, l.unsupported("%s with such an operand", l.in)
}

// symbol returns a slot with the address of a variable or function in its own
// space.
func (l *lowerer) symbol(o *ptx.Operand) (int32, error) {
	if v := o.Var; v != nil {
		if off, ok := l.param[v]; ok {
			return l.constant(off + o.Imm), nil
		}
		if off, ok := l.local[v]; ok {
			d, err := l.temp()
			l.emit(op{fn: opLocalAddr, d: d, imm: off + o.Imm})
			return d, err
		}
		s := l.sh[v]
		if s == nil && v.Space == ptx.Shared {
			s = l.m.shared[v.Name]
		}
		if s != nil {
			l.useShared(s)
			d, err := l.temp()
			l.emit(op{fn: opSharedAddr, d: d, a: int32(s.index), imm: o.Imm})
			return d, err
		}
	}
	if c := l.m.funcOf[o.Name]; c != nil {
		l.m.take(c)
		return l.constant(c.address() + o.Imm), nil
	}
	if a, ok := l.m.addr[o.Name]; ok {
		return l.constant(a + o.Imm), nil
	}
	return 0, l.unsupported("%s: unresolved symbol %s", l.in, o.Name)
}

func (l *lowerer) useShared(s *sharedVar) {
	if !slices.Contains(l.c.shared, s) {
		l.c.shared = append(l.c.shared, s)
	}
}

func opLocalAddr(w *warp, o *op) {
	v := w.fr.base + o.imm
	d := &w.r[o.d]
	for _, l := range w.act {
		d[l&31] = v
	}
}

func opSharedAddr(w *warp, o *op) {
	v := w.blk.launch.kernel.sharedAt[o.a] + o.imm
	d := &w.r[o.d]
	for _, l := range w.act {
		d[l&31] = v
	}
}

// dst returns the slot to write operand i to; a sink gets a temporary.
func (l *lowerer) dst(i int) (int32, error) {
	if i >= len(l.in.Operands) {
		return 0, l.unsupported("%s with %d operands", l.in, len(l.in.Operands))
	}
	return l.dstOf(&l.in.Operands[i])
}

func (l *lowerer) dstOf(o *ptx.Operand) (int32, error) {
	switch {
	case o.Kind == ptx.OpSink:
		return l.temp()
	case o.Kind == ptx.OpReg && !l.isPred(o):
		return l.as.slot[o.Reg], nil
	}
	return 0, l.unsupported("%s with such a destination", l.in)
}

// pred returns the predicate of a source operand, complemented if need be.
func (l *lowerer) pred(o *ptx.Operand) (int32, error) {
	switch {
	case l.isPred(o) && !o.Not:
		return l.as.slot[o.Reg], nil
	case l.isPred(o):
		d, err := l.predTemp()
		l.emit(op{fn: opPredNot, p: d, q: l.as.slot[o.Reg]})
		return d, err
	case o.Kind == ptx.OpImm:
		d, err := l.predTemp()
		l.emit(op{fn: opPredSet, p: d, imm: (o.Imm & 1) * fullMask})
		return d, err
	}
	return 0, l.unsupported("%s with a predicate that is none", l.in)
}

func (l *lowerer) predDst(o *ptx.Operand) (int32, error) {
	if o.Kind == ptx.OpSink {
		return l.predTemp()
	}
	if !l.isPred(o) {
		return 0, l.unsupported("%s with a destination that is no predicate", l.in)
	}
	return l.as.slot[o.Reg], nil
}

// space finds the state space among the modifiers.
func (l *lowerer) space() (ptx.Space, error) {
	for _, m := range l.in.Mods {
		switch m {
		case "global":
			return ptx.Global, nil
		case "shared", "shared::cta", "shared::cluster":
			return ptx.Shared, nil
		case "local":
			return ptx.LocalSpace, nil
		case "const":
			return ptx.Const, nil
		case "param", "param::entry", "param::func":
			return ptx.Param, nil
		}
		if strings.HasPrefix(m, "tex") {
			return 0, l.unsupported("%s", l.in)
		}
	}
	return ptx.Generic, nil
}
