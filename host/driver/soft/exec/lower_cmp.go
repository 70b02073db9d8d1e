package exec

import (
	"causeway/host/driver/soft/ptx"
)

// comparison is a base relation and whether its result is inverted: the
// unordered forms are the complement of the opposite ordered one.
type comparison uint8

const (
	cmpEq comparison = iota
	cmpNe            // for floats: ordered and unequal
	cmpLt
	cmpLe
	cmpGt
	cmpGe
	cmpNum
)

func comparisonOf(name string, float bool) (c comparison, invert, ok bool) {
	switch name {
	case "eq":
		return cmpEq, false, true
	case "ne":
		return cmpNe, false, true
	case "lt", "lo":
		return cmpLt, false, true
	case "le", "ls":
		return cmpLe, false, true
	case "gt", "hi":
		return cmpGt, false, true
	case "ge", "hs":
		return cmpGe, false, true
	}
	if !float {
		return 0, false, false
	}
	switch name {
	case "equ":
		return cmpNe, true, true
	case "neu":
		return cmpEq, true, true
	case "ltu":
		return cmpGe, true, true
	case "leu":
		return cmpGt, true, true
	case "gtu":
		return cmpLe, true, true
	case "geu":
		return cmpLt, true, true
	case "num":
		return cmpNum, false, true
	case "nan":
		return cmpNum, true, true
	}
	return 0, false, false
}

var compareNames = []string{"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}

// compare holds a decoded setp or set.
type compare struct {
	c       comparison
	invert  bool
	combine boolOp
	pred    int32 // slot, if combine
	second  int32 // of setp, or -1
}

// comparing decodes the parts that setp and set share: operands a, b and the
// optional predicate start at operand 1.
func (l *lowerer) comparing(t ptx.Type) (o op, err error) {
	k := compare{second: -1}
	name := l.hasAny(compareNames...)
	if (name == "lo" || name == "hi") && t.Signed() {
		return o, l.unsupported("%s", l.in)
	}
	var ok bool
	if k.c, k.invert, ok = comparisonOf(name, t.Float()); !ok {
		return o, l.unsupported("%s", l.in)
	}
	switch l.hasAny("and", "or", "xor") {
	case "and":
		k.combine = boolAnd
	case "or":
		k.combine = boolOr
	case "xor":
		k.combine = boolXor
	}
	want := 3
	if k.combine != boolNone {
		want = 4
	}
	if err := l.need(want); err != nil {
		return o, err
	}
	if o.a, err = l.src(1, t); err != nil {
		return o, err
	}
	if o.b, err = l.src(2, t); err != nil {
		return o, err
	}
	if k.combine != boolNone {
		if k.pred, err = l.pred(&l.in.Operands[3]); err != nil {
			return o, err
		}
	}
	o.fn = compareFn(t, l.has("ftz"))
	if o.fn == nil {
		return o, l.unsupported("%s", l.in)
	}
	o.x = &opExtra{compare: k}
	return o, nil
}

func compareFn(t ptx.Type, ftz bool) opFn {
	switch t {
	case ptx.F32:
		if ftz {
			return opSetpFloat(func(v uint64) float64 { return float64(flush32(f32(v))) })
		}
		return opSetpF32
	case ptx.F64:
		return opSetpF64
	case ptx.F16:
		if ftz {
			return opSetpFloat(func(v uint64) float64 { return flush16(fromHalf(uint16(v))) })
		}
		return opSetpFloat(func(v uint64) float64 { return fromHalf(uint16(v)) })
	case ptx.BF16:
		return opSetpFloat(func(v uint64) float64 { return fromBfloat(uint16(v)) })
	}
	return byInt[opFn](t, opSetp[uint16], opSetp[int16], opSetp[uint32], opSetp[int32], opSetp[uint64], opSetp[int64])
}

func lowerSetp(l *lowerer) error {
	if len(l.in.Operands) == 0 {
		return l.unsupported("%s without operands", l.in)
	}
	t := l.typ()
	if t == ptx.F16x2 || t == ptx.BF16x2 {
		return l.setpPair(t)
	}
	o, err := l.comparing(t)
	if err != nil {
		return err
	}
	d := l.in.Operands[0]
	if d.Kind == ptx.OpPair {
		if o.x.compare.second, err = l.predDst(&d.Elems[1]); err != nil {
			return err
		}
		d = d.Elems[0]
	}
	o.p, err = l.predDst(&d)
	l.emit(o)
	return err
}

// setpPair compares both halves of packed operands into p|q.
func (l *lowerer) setpPair(t ptx.Type) error {
	e, _ := unpacked(t)
	d := l.in.Operands[0]
	if d.Kind != ptx.OpPair || l.hasAny("and", "or", "xor") != "" {
		return l.unsupported("%s", l.in)
	}
	o, err := l.comparing(e)
	if err != nil {
		return err
	}
	if o.p, err = l.predDst(&d.Elems[0]); err != nil {
		return err
	}
	l.emit(o)
	hi := o
	shift := l.constant(16)
	if hi.a, err = l.temp(); err != nil {
		return err
	}
	if hi.b, err = l.temp(); err != nil {
		return err
	}
	l.emit(op{fn: opShr[uint32], d: hi.a, a: o.a, b: shift})
	l.emit(op{fn: opShr[uint32], d: hi.b, a: o.b, b: shift})
	hi.p, err = l.predDst(&d.Elems[1])
	l.emit(hi)
	return err
}

// lowerSet writes all ones or 1.0 where the comparison holds.
func lowerSet(l *lowerer) error {
	ts := l.types()
	if len(ts) != 2 {
		return l.unsupported("%s", l.in)
	}
	if e, pair := unpacked(ts[1]); pair {
		return l.setPair(ts[0], e)
	}
	o, err := l.comparing(ts[1])
	if err != nil {
		return err
	}
	if o.p, err = l.predTemp(); err != nil {
		return err
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	yes := ^uint64(0)
	if ts[0].Float() {
		yes = floatImm(1, ts[0])
	}
	l.emit(o)
	l.emit(op{fn: opSelp, d: d, a: l.constant(yes), b: l.constant(0), p: o.p})
	return nil
}

// setPair compares halves: 1.0 or all ones in each.
func (l *lowerer) setPair(dt, e ptx.Type) error {
	c, invert, ok := comparisonOf(l.hasAny(compareNames...), true)
	if !ok || l.hasAny("and", "or", "xor") != "" {
		return l.unsupported("%s", l.in)
	}
	yes := uint64(0xffff)
	if one, pair := unpacked(dt); pair {
		yes = floatImm(1, one)
	}
	read, ftz := readFloat(e, false), l.has("ftz") && e == ptx.F16
	return l.map2(ptx.B32, ptx.B32, halves(func(a, b uint64) uint64 {
		x, y := read(a), read(b)
		if ftz {
			x, y = flush16(x), flush16(y)
		}
		if relate(c, x, y) != invert {
			return yes
		}
		return 0
	}))
}
