package exec

import "math/bits"

// The carry flag CC.CF lives in a predicate of its own per frame: the last one.

// lowerCarry lowers the instructions that read or write the carry flag.
func lowerCarry(l *lowerer) error {
	t := l.typ()
	if !isInt(t) || t.Bits() < 32 {
		return l.unsupported("%s", l.in)
	}
	k := carryKind{bits: t.Bits(), in: l.in.Op[len(l.in.Op)-1] == 'c', out: l.has("cc"), sub: l.in.Op[0] == 's'}
	x := &opExtra{carry: k}
	cf := int32(l.as.preds + tempPreds)
	l.c.preds = l.as.preds + tempPreds + 1
	if l.in.Op[0] != 'm' {
		if err := l.need(3); err != nil {
			return err
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
		l.emit(op{fn: opCarry, d: d, a: a, b: b, p: cf, x: x})
		return err
	}
	mul := func(a, b uint64) uint64 { return a * b }
	if l.has("hi") {
		mul = mulHi(t)
	}
	x.f2 = mul
	return l.emit3(t, t, t, op{fn: opCarryMad, p: cf, x: x})
}

type carryKind struct {
	bits         int
	in, out, sub bool
}

// step adds or subtracts with carry. Subtraction uses the flag as borrow.
func (k carryKind) step(a, b, cf uint64) (uint64, uint64) {
	if !k.in {
		cf = 0
	}
	if k.bits == 32 {
		a, b = uint64(uint32(a)), uint64(uint32(b))
		if k.sub {
			v := a - b - cf
			return v, v >> 63
		}
		v := a + b + cf
		return v, v >> 32
	}
	if k.sub {
		return bits.Sub64(a, b, cf)
	}
	return bits.Add64(a, b, cf)
}

func opCarry(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	cf, out := w.p[o.p], uint32(0)
	for _, l := range w.act {
		i := l & 31
		v, c := o.x.carry.step(a[i], b[i], uint64(cf>>i&1))
		d[i] = v
		out |= uint32(c&1) << i
	}
	if o.x.carry.out {
		w.setPred(o.p, out)
	}
}

func opCarryMad(w *warp, o *op) {
	d, a, b, c := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c]
	cf, out := w.p[o.p], uint32(0)
	for _, l := range w.act {
		i := l & 31
		v, carry := o.x.carry.step(o.x.f2(a[i], b[i]), c[i], uint64(cf>>i&1))
		d[i] = v
		out |= uint32(carry&1) << i
	}
	if o.x.carry.out {
		w.setPred(o.p, out)
	}
}
