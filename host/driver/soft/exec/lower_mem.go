package exec

import (
	"math"

	"causeway/host/driver/soft/ptx"
)

// access is a decoded address operand: slot, offset and space.
type access struct {
	base  int32
	off   uint64
	space ptx.Space
}

// addr lowers the address operand at i.
func (l *lowerer) addr(i int, space ptx.Space) (access, error) {
	a := access{space: space}
	if i >= len(l.in.Operands) || l.in.Operands[i].Kind != ptx.OpAddr || len(l.in.Operands[i].Elems) != 1 {
		return a, l.unsupported("%s with such an address", l.in)
	}
	o := &l.in.Operands[i]
	base := &o.Elems[0]
	a.off = o.Imm
	var err error
	switch base.Kind {
	case ptx.OpReg:
		a.base, err = l.value(base, ptx.U64)
		if err == nil && space != ptx.Shared && space != ptx.LocalSpace && l.f.Regs[base.Reg].Type.Bits() == 32 {
			var t int32
			if t, err = l.temp(); err == nil {
				l.emit(op{fn: opExtend[uint32], d: t, a: a.base})
				a.base = t
			}
		}
	case ptx.OpImm:
		a.base, a.off = l.constant(0), a.off+base.Imm
	case ptx.OpSymbol:
		if space == ptx.Generic && base.Var != nil && l.window(base.Var.Space) != 0 {
			a.space = base.Var.Space
		}
		a.base, err = l.value(base, ptx.U64)
	default:
		err = l.unsupported("%s with such an address", l.in)
	}
	if a.space == ptx.Param && !l.f.Kernel {
		a.space = ptx.LocalSpace
	}
	if a.space == ptx.Param && base.Kind == ptx.OpSymbol && base.Var != nil {
		if _, own := l.local[base.Var]; own { // argument of a call
			a.space = ptx.LocalSpace
		}
	}
	return a, err
}

// width finds the vector length and element type.
func (l *lowerer) width() (n int, t ptx.Type) {
	n = 1
	for _, m := range l.in.Mods {
		switch m {
		case "v2":
			n = 2
		case "v4":
			n = 4
		case "v8":
			n = 8
		}
	}
	return n, l.typ()
}

// ordered reports whether the access must be atomic and ordered.
func (l *lowerer) ordered() bool {
	return l.hasAny("volatile", "relaxed", "acquire", "release", "mmio") != ""
}

func lowerLd(l *lowerer) error {
	space, err := l.space()
	if err != nil {
		return err
	}
	n, t := l.width()
	if t == ptx.NoType || t == ptx.B128 || len(l.in.Operands) < 2 {
		return l.unsupported("%s", l.in)
	}
	a, err := l.addr(1, space)
	if err != nil {
		return err
	}
	if a.space == ptx.Param {
		return l.loadParam(a, n, t)
	}
	o := op{a: a.base, imm: a.off, x: &opExtra{space: a.space}}
	if n > 1 {
		if o.x.vec, err = l.elems(0, n, t, true); err != nil {
			return err
		}
		o.fn = bySize(t, opLdVec[uint8], opLdVec[int8], opLdVec[uint16], opLdVec[int16], opLdVec[uint32], opLdVec[int32], opLdVec[uint64])
		l.emit(o)
		return nil
	}
	if o.d, err = l.dst(0); err != nil {
		return err
	}
	switch {
	case a.space == ptx.LocalSpace:
		o.fn = bySize(t, opLdLocal[uint8], opLdLocal[int8], opLdLocal[uint16], opLdLocal[int16], opLdLocal[uint32], opLdLocal[int32], opLdLocal[uint64])
	case l.ordered():
		o.fn = bySize(t, opLdAny[uint8], opLdAny[int8], opLdAny[uint16], opLdAny[int16], opLdAny[uint32], opLdAny[int32], opLdAny[uint64])
	case a.space == ptx.Shared:
		o.fn = bySize(t, opLdShared[uint8], opLdShared[int8], opLdShared[uint16], opLdShared[int16], opLdShared[uint32], opLdShared[int32], opLdShared[uint64])
	default:
		o.fn = bySize(t, opLdGlobal[uint8], opLdGlobal[int8], opLdGlobal[uint16], opLdGlobal[int16], opLdGlobal[uint32], opLdGlobal[int32], opLdGlobal[uint64])
	}
	l.emit(o)
	return nil
}

// bySize picks by a type's size and sign.
func bySize(t ptx.Type, u8, s8, u16, s16, u32, s32, u64 opFn) opFn {
	signed := t.Signed()
	switch t.Size() {
	case 1:
		if signed {
			return s8
		}
		return u8
	case 2:
		if signed {
			return s16
		}
		return u16
	case 4:
		if signed {
			return s32
		}
		return u32
	}
	return u64
}

func (l *lowerer) elems(i, n int, t ptx.Type, dst bool) ([]int32, error) {
	o := &l.in.Operands[i]
	if o.Kind != ptx.OpVector || len(o.Elems) != n {
		return nil, l.unsupported("%s with such a vector", l.in)
	}
	return l.vector(o, t, dst)
}

// loadParam reads kernel parameters, which are the same for all lanes when
// the address is a constant.
func (l *lowerer) loadParam(a access, n int, t ptx.Type) error {
	var vec []int32
	var err error
	if n > 1 {
		vec, err = l.elems(0, n, t, true)
	} else {
		var d int32
		d, err = l.dst(0)
		vec = []int32{d}
	}
	if err != nil {
		return err
	}
	base := &l.in.Operands[1].Elems[0]
	if _, kernelParam := l.param[base.Var]; base.Kind == ptx.OpSymbol && !kernelParam {
		return l.unsupported("%s of %s, which is no parameter", l.in, base.Name)
	}
	if base.Kind == ptx.OpReg {
		if n > 1 {
			return l.unsupported("%s through a register", l.in)
		}
		fn := bySize(t, opLdGlobal[uint8], opLdGlobal[int8], opLdGlobal[uint16], opLdGlobal[int16], opLdGlobal[uint32], opLdGlobal[int32], opLdGlobal[uint64])
		l.emit(op{fn: fn, d: vec[0], a: a.base, imm: a.off + paramWindow, x: &opExtra{space: ptx.Param}})
		return nil
	}
	at := l.c.consts[a.base-int32(l.as.slots)-tempSlots] + a.off
	_, total := paramLayout(l.f.Params)
	for k, d := range vec {
		from := at + uint64(k)*t.Size()
		if from > total || total-from < t.Size() {
			return l.unsupported("%s beyond the parameters", l.in)
		}
		if d >= 0 {
			l.emit(op{fn: opLdParam, d: d, imm: from, x: &opExtra{size: t.Size(), signed: t.Signed()}})
		}
	}
	return nil
}

func opLdParam(w *warp, o *op) {
	v := getBytes(w.blk.launch.config.Params[o.imm : o.imm+o.x.size])
	if o.x.signed {
		shift := 64 - 8*o.x.size
		v = uint64(int64(v<<shift) >> shift)
	}
	d := &w.r[o.d]
	for _, l := range w.act {
		d[l&31] = v
	}
}

func lowerSt(l *lowerer) error {
	space, err := l.space()
	if err != nil {
		return err
	}
	n, t := l.width()
	if t == ptx.NoType || t == ptx.B128 || len(l.in.Operands) < 2 {
		return l.unsupported("%s", l.in)
	}
	a, err := l.addr(0, space)
	if err != nil {
		return err
	}
	if a.space == ptx.Param || a.space == ptx.Const {
		return l.unsupported("%s", l.in)
	}
	o := op{a: a.base, imm: a.off, x: &opExtra{space: a.space}}
	if n > 1 {
		if o.x.vec, err = l.elems(1, n, t, false); err != nil {
			return err
		}
		o.fn = bySize(t, opStVec[uint8], opStVec[uint8], opStVec[uint16], opStVec[uint16], opStVec[uint32], opStVec[uint32], opStVec[uint64])
		l.emit(o)
		return nil
	}
	if o.b, err = l.src(1, t); err != nil {
		return err
	}
	switch {
	case a.space == ptx.LocalSpace:
		o.fn = bySize(t, opStLocal[uint8], opStLocal[uint8], opStLocal[uint16], opStLocal[uint16], opStLocal[uint32], opStLocal[uint32], opStLocal[uint64])
	case l.ordered():
		o.fn = bySize(t, opStAny[uint8], opStAny[uint8], opStAny[uint16], opStAny[uint16], opStAny[uint32], opStAny[uint32], opStAny[uint64])
	case a.space == ptx.Shared:
		o.fn = bySize(t, opStShared[uint8], opStShared[uint8], opStShared[uint16], opStShared[uint16], opStShared[uint32], opStShared[uint32], opStShared[uint64])
	default:
		o.fn = bySize(t, opStGlobal[uint8], opStGlobal[uint8], opStGlobal[uint16], opStGlobal[uint16], opStGlobal[uint32], opStGlobal[uint32], opStGlobal[uint64])
	}
	l.emit(o)
	return nil
}

// lowerCp lowers cp.async as a copy that is complete at once; the group and
// wait forms have nothing left to do.
func lowerCp(l *lowerer) error {
	if !l.has("async") {
		return l.unsupported("%s", l.in)
	}
	if l.has("bulk") {
		return l.lowerBulk()
	}
	if l.has("mbarrier") {
		if l.has("noinc") {
			return l.mbarUpdate(0, false, mbarArrive)
		}
		return nil // it would raise the count and arrive at once
	}
	if l.hasAny("commit_group", "wait_group", "wait_all") != "" {
		return nil
	}
	if len(l.in.Operands) < 3 || l.in.Operands[2].Kind != ptx.OpImm {
		return l.unsupported("%s", l.in)
	}
	size := l.in.Operands[2].Imm
	if size != 4 && size != 8 && size != 16 {
		return l.unsupported("%s of %d bytes", l.in, size)
	}
	to, err := l.addr(0, ptx.Shared)
	if err != nil {
		return err
	}
	from, err := l.addr(1, ptx.Global)
	if err != nil {
		return err
	}
	o := op{fn: opCopy, a: to.base, imm: to.off, b: from.base, c: -1, x: &opExtra{space: ptx.Shared, size: size, srcOff: from.off}}
	if len(l.in.Operands) > 3 && !l.has("L2::cache_hint") {
		if l.isPred(&l.in.Operands[3]) {
			return l.unsupported("%s with ignore-src", l.in)
		}
		if o.c, err = l.src(3, ptx.U32); err != nil {
			return err
		}
	}
	l.emit(o)
	return nil
}

func lowerFence(l *lowerer) error {
	l.emit(op{fn: opFence})
	return nil
}

// lowerNothing is for hints.
func lowerNothing(*lowerer) error { return nil }

// lowerPolicy makes a cache policy, which nothing looks at.
func lowerPolicy(l *lowerer) error {
	d, err := l.dst(0)
	l.emit(op{fn: opMov, d: d, a: l.constant(0)})
	return err
}

func f32(v uint64) float32 { return math.Float32frombits(uint32(v)) }
func f64(v uint64) float64 { return math.Float64frombits(v) }

func bits32(v float32) uint64 { return uint64(math.Float32bits(v)) }
func bits64(v float64) uint64 { return math.Float64bits(v) }
