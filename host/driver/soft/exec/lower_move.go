package exec

import (
	"math/bits"

	"causeway/host/driver/soft/ptx"
)

func lowerMov(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	t := l.typ()
	d, s := &l.in.Operands[0], &l.in.Operands[1]
	switch {
	case t == ptx.Pred:
		p, err := l.predDst(d)
		if err != nil {
			return err
		}
		q, err := l.pred(s)
		l.emit(op{fn: opPredMov, p: p, q: q})
		return err
	case d.Kind == ptx.OpVector && s.Kind == ptx.OpVector:
		return l.unsupported("%s between vectors", l.in)
	case d.Kind == ptx.OpVector:
		return l.unpack(d, t)
	case s.Kind == ptx.OpVector:
		return l.pack(s, t)
	case t == ptx.B128:
		return l.unsupported("%s", l.in)
	}
	dst, err := l.dst(0)
	if err != nil {
		return err
	}
	if s.Kind == ptx.OpSpecial {
		return l.special(s.Name, dst)
	}
	first := len(l.ops)
	a, err := l.src(1, t)
	if err != nil {
		return err
	}
	if len(l.ops) > first { // the address went to a temporary: send it to dst instead
		l.ops[len(l.ops)-1].d = dst
		return nil
	}
	l.emit(op{fn: opMov, d: dst, a: a})
	return nil
}

func (l *lowerer) vector(o *ptx.Operand, t ptx.Type, dst bool) ([]int32, error) {
	var list []int32
	for i := range o.Elems {
		e := &o.Elems[i]
		if dst && e.Kind == ptx.OpSink {
			list = append(list, -1)
			continue
		}
		var s int32
		var err error
		if dst {
			s, err = l.dstOf(e)
		} else {
			s, err = l.value(e, t)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// elemType is the type of n elements that make up t.
func elemType(t ptx.Type, n int) (ptx.Type, bool) {
	if n == 0 || t.Bits()%n != 0 {
		return 0, false
	}
	switch t.Bits() / n {
	case 8:
		return ptx.B8, true
	case 16:
		return ptx.B16, true
	case 32:
		return ptx.B32, true
	}
	return 0, false
}

func (l *lowerer) unpack(d *ptx.Operand, t ptx.Type) error {
	e, ok := elemType(t, len(d.Elems))
	if !ok || t.Bits() > 64 {
		return l.unsupported("%s with %d elements", l.in, len(d.Elems))
	}
	a, err := l.src(1, t)
	if err != nil {
		return err
	}
	vec, err := l.vector(d, e, true)
	l.emit(op{fn: opUnpack, a: a, imm: uint64(e.Bits()), x: &opExtra{vec: vec}})
	return err
}

func (l *lowerer) pack(s *ptx.Operand, t ptx.Type) error {
	e, ok := elemType(t, len(s.Elems))
	if !ok || t.Bits() > 64 {
		return l.unsupported("%s with %d elements", l.in, len(s.Elems))
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	vec, err := l.vector(s, e, false)
	l.emit(op{fn: opPack, d: d, imm: uint64(e.Bits()), x: &opExtra{vec: vec}})
	return err
}

// window is where a space lies in generic addresses; 0 when both agree.
func (l *lowerer) window(s ptx.Space) uint64 {
	switch s {
	case ptx.Shared:
		return sharedWindow
	case ptx.LocalSpace:
		return localWindow
	case ptx.Param:
		if l.f.Kernel {
			return paramWindow
		}
		return localWindow
	}
	return 0
}

func lowerCvta(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	space, err := l.space()
	if err != nil {
		return err
	}
	base := l.window(space)
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, ptx.U64)
	if err != nil {
		return err
	}
	switch {
	case base == 0:
		l.emit(op{fn: opMov, d: d, a: a})
	case l.has("to"):
		l.emit(op{fn: opSub, d: d, a: a, b: l.constant(base)})
	default:
		l.emit(op{fn: opAdd, d: d, a: a, b: l.constant(base)})
	}
	return nil
}

func lowerIsspacep(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	space, err := l.space()
	if err != nil {
		return err
	}
	p, err := l.predDst(&l.in.Operands[0])
	if err != nil {
		return err
	}
	a, err := l.src(1, ptx.U64)
	if err != nil {
		return err
	}
	base := l.window(space)
	test := func(a, _ uint64) bool { return a-base < windowSize }
	if l.hasAny("shared", "shared::cta") != "" {
		test = func(a, _ uint64) bool { return a-base < ownShared }
	}
	if base == 0 { // constants live in device memory like everything global
		test = func(a, _ uint64) bool { return space == ptx.Global && a < sharedWindow }
	}
	l.emit(op{fn: opTest, p: p, a: a, b: a, x: &opExtra{cmp: test}})
	return nil
}

func lowerSelp(l *lowerer) error {
	if err := l.need(4); err != nil {
		return err
	}
	t := l.typ()
	if t == ptx.Pred {
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, t)
	if err != nil {
		return err
	}
	b, err := l.src(2, t)
	if err != nil {
		return err
	}
	p, err := l.pred(&l.in.Operands[3])
	l.emit(op{fn: opSelp, d: d, a: a, b: b, p: p})
	return err
}

func lowerSlct(l *lowerer) error {
	ts := l.types()
	if len(ts) != 2 || len(l.in.Operands) != 4 {
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, ts[0])
	if err != nil {
		return err
	}
	b, err := l.src(2, ts[0])
	if err != nil {
		return err
	}
	c, err := l.src(3, ts[1])
	f := func(a, b, c uint64) uint64 {
		if int32(c) >= 0 {
			return a
		}
		return b
	}
	if ts[1] == ptx.F32 {
		ftz := l.has("ftz")
		f = func(a, b, c uint64) uint64 {
			if x := f32(c); x >= 0 || ftz && flush32(x) == 0 {
				return a
			}
			return b
		}
	}
	l.emit(op{fn: opMap3, d: d, a: a, b: b, c: c, x: &opExtra{f3: f}})
	return err
}

// lowerPrmt picks bytes; the default mode by a selector, the others by rules.
func lowerPrmt(l *lowerer) error {
	f := permute
	switch m := l.hasAny("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"); m {
	case "":
	default:
		f = func(a, b, c uint64) uint64 { return permute(a, b, permuteModes[m][c&3]) }
	}
	return l.map3(ptx.B32, ptx.B32, ptx.B32, f)
}

var permuteModes = map[string][4]uint64{
	"f4e": {0x3210, 0x4321, 0x5432, 0x6543}, "b4e": {0x5670, 0x6701, 0x7012, 0x0123},
	"rc8": {0x0000, 0x1111, 0x2222, 0x3333}, "ecl": {0x3210, 0x3211, 0x3222, 0x3333},
	"ecr": {0x0000, 0x1110, 0x2210, 0x3210}, "rc16": {0x1010, 0x3232, 0x1010, 0x3232},
}

func permute(a, b, c uint64) uint64 {
	v := uint64(uint32(a)) | b<<32
	var out uint64
	for i := range uint(4) {
		sel := c >> (4 * i)
		by := v >> (8 * (sel & 7)) & 0xff
		if sel&8 != 0 {
			by = uint64(uint8(int8(by) >> 7))
		}
		out |= by << (8 * i)
	}
	return out
}

func lowerActivemask(l *lowerer) error {
	d, err := l.dst(0)
	l.emit(op{fn: opActivemask, d: d})
	return err
}

func opActivemask(w *warp, o *op) {
	for _, l := range w.act {
		w.r[o.d][l&31] = uint64(w.mask)
	}
}

// special lowers the read of a special register into slot d.
func (l *lowerer) special(name string, d int32) error {
	kind, ok := specials[name]
	if !ok {
		return l.unsupported("special register %s", name)
	}
	if kind == srReserved || kind == srReservedEnd {
		l.c.reserved = true
	}
	l.emit(op{fn: opSpecial, d: d, imm: uint64(kind)})
	return nil
}

func opSpecial(w *warp, o *op) {
	d := &w.r[o.d]
	kind := specialKind(o.imm)
	if kind < perLane {
		v := w.specialUniform(kind)
		for _, l := range w.act {
			d[l&31] = v
		}
		return
	}
	b := &w.blk.launch.config.Block
	first := uint32(w.index * 32)
	for _, l := range w.act {
		i := l & 31
		n := first + uint32(i)
		switch kind {
		case srTidX:
			d[i] = uint64(n % b[0])
		case srTidY:
			d[i] = uint64(n / b[0] % b[1])
		case srTidZ:
			d[i] = uint64(n / b[0] / b[1])
		case srLaneid:
			d[i] = uint64(i)
		case srMaskEq:
			d[i] = 1 << i
		case srMaskLt:
			d[i] = 1<<i - 1
		case srMaskLe:
			d[i] = 2<<i - 1
		case srMaskGt:
			d[i] = uint64(^uint32(2<<i - 1))
		case srMaskGe:
			d[i] = uint64(^uint32(1<<i - 1))
		}
	}
}

func reverse(v uint64, width int) uint64 { return bits.Reverse64(v) >> (64 - width) }
