package exec

import "causeway/host/driver/soft/ptx"

// lowerAtom lowers atom and red.
func lowerAtom(l *lowerer) error {
	space, err := l.space()
	if err != nil {
		return err
	}
	n, t := l.width()
	at := 1
	o := op{d: -1, b: -1, c: -1}
	if l.in.Op == "red" {
		at = 0
	}
	if n > 1 {
		return l.atomVector(space, at, n, t)
	}
	if at > 0 && len(l.in.Operands) > 0 && l.in.Operands[0].Kind != ptx.OpSink {
		if o.d, err = l.dst(0); err != nil {
			return err
		}
	}
	if t.Size() > 8 || t.Size() < 2 || l.has("async") || l.has("multimem") {
		return l.unsupported("%s", l.in)
	}
	a, err := l.addr(at, space)
	if err != nil {
		return err
	}
	o.a, o.imm, o.x = a.base, a.off, &opExtra{space: a.space, size: t.Size()}
	if o.b, err = l.src(at+1, t); err != nil {
		return err
	}
	name := l.hasAny("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
	if name == "cas" {
		if o.c, err = l.src(at+2, t); err != nil {
			return err
		}
	}
	integerAdd := name == "add" && !t.Float()
	switch {
	case integerAdd && t.Size() == 4:
		o.fn = opAtomAdd32
	case integerAdd && t.Size() == 8:
		o.fn = opAtomAdd64
	default:
		o.fn, o.x.f3 = opAtom, atomFunc(name, t)
		if o.x.f3 == nil {
			return l.unsupported("%s", l.in)
		}
	}
	if l.hasAny("acquire", "release", "acq_rel") != "" {
		defer l.emit(op{fn: opFence})
	}
	l.emit(o)
	return nil
}

// atomFunc computes the new value from the old one and the operands.
func atomFunc(name string, t ptx.Type) func(old, b, c uint64) uint64 {
	two := func(f func(a, b uint64) uint64) func(old, b, c uint64) uint64 {
		if f == nil {
			return nil
		}
		return func(old, b, _ uint64) uint64 { return f(old, b) }
	}
	switch name {
	case "exch":
		return func(_, b, _ uint64) uint64 { return b }
	case "cas":
		mask := ^uint64(0) >> (64 - t.Bits())
		return func(old, b, c uint64) uint64 {
			if old == b&mask {
				return c
			}
			return old
		}
	case "and":
		return func(old, b, _ uint64) uint64 { return old & b }
	case "or":
		return func(old, b, _ uint64) uint64 { return old | b }
	case "xor":
		return func(old, b, _ uint64) uint64 { return old ^ b }
	case "inc":
		return func(old, b, _ uint64) uint64 {
			if uint32(old) >= uint32(b) {
				return 0
			}
			return old + 1
		}
	case "dec":
		return func(old, b, _ uint64) uint64 {
			if uint32(old) == 0 || uint32(old) > uint32(b) {
				return b
			}
			return old - 1
		}
	case "min", "max":
		return two(minMaxFunc(name, t, false, false))
	case "add":
		if isInt(t) {
			return func(old, b, _ uint64) uint64 { return old + b }
		}
		return two(floatBin("add", t, roundNearest))
	}
	return nil
}

// atomVector lowers atom and red on vectors: each element is atomic by itself.
// Old values go through temporaries, since a destination may hold the address.
func (l *lowerer) atomVector(space ptx.Space, at, n int, t ptx.Type) error {
	f := atomFunc(l.hasAny("add", "min", "max"), t)
	if f == nil || t.Size() < 2 || t.Size() > 4 || !t.Float() {
		return l.unsupported("%s", l.in)
	}
	a, err := l.addr(at, space)
	if err != nil {
		return err
	}
	if len(l.in.Operands) <= at+1 {
		return l.unsupported("%s with %d operands", l.in, len(l.in.Operands))
	}
	values, err := l.elems(at+1, n, t, false)
	if err != nil {
		return err
	}
	olds := make([]int32, n)
	for i := range olds {
		o := op{fn: opAtom, d: -1, a: a.base, b: values[i], c: -1, imm: a.off + uint64(i)*t.Size(), x: &opExtra{space: a.space, size: t.Size(), f3: f}}
		if at > 0 {
			if olds[i], err = l.temp(); err != nil {
				return err
			}
			o.d = olds[i]
		}
		l.emit(o)
	}
	if at == 0 || l.in.Operands[0].Kind == ptx.OpSink {
		return nil
	}
	results, err := l.elems(0, n, t, true)
	if err != nil {
		return err
	}
	for i, d := range results {
		if d >= 0 {
			l.emit(op{fn: opMov, d: d, a: olds[i]})
		}
	}
	return nil
}
