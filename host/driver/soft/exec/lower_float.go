package exec

import (
	"math"

	"causeway/host/driver/soft/ptx"
)

// flush32 replaces a subnormal by a zero of its sign.
func flush32(v float32) float32 {
	if b := math.Float32bits(v); b&0x7f800000 == 0 {
		return math.Float32frombits(b & 0x80000000)
	}
	return v
}

// saturate clamps to [0, 1]; NaN becomes 0.
func saturate(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, 1)
}

// rounding finds the rounding modifier of arithmetic.
func (l *lowerer) rounding() rounding {
	switch l.hasAny("rn", "rz", "rm", "rp") {
	case "rz":
		return roundZero
	case "rm":
		return roundDown
	case "rp":
		return roundUp
	}
	return roundNearest
}

// canonical returns the NaN that hardware gives, and v otherwise.
func canon32(v float32) uint64 {
	if v != v {
		return 0x7fffffff
	}
	return bits32(v)
}

// format tells how to widen and round one floating type.
type format struct {
	read  func(v uint64) float64
	write func(v float64) uint64 // v exact or rounded to odd
}

// formatOf returns the format of t with the modifiers applied. f64 has none,
// since float64 cannot hold its intermediate results.
func formatOf(t ptx.Type, r rounding, ftz, sat bool) (format, bool) {
	var f format
	switch t {
	case ptx.F32:
		f.read = func(v uint64) float64 { return float64(f32(v)) }
		f.write = func(v float64) uint64 { return canon32(round32(v, r)) }
		if ftz {
			f.read = func(v uint64) float64 { return float64(flush32(f32(v))) }
			f.write = func(v float64) uint64 { return canon32(flush32(round32(v, r))) }
		}
	case ptx.F16:
		f.read = func(v uint64) float64 { return fromHalf(uint16(v)) }
		f.write = func(v float64) uint64 { return uint64(roundSmall(v, 10, 5, r)) }
		if ftz {
			f.read = func(v uint64) float64 { return flush16(fromHalf(uint16(v))) }
			f.write = func(v float64) uint64 { return flushBits(uint64(toHalf(v)), ptx.F16) }
		}
	case ptx.BF16:
		f.read = func(v uint64) float64 { return fromBfloat(uint16(v)) }
		f.write = func(v float64) uint64 { return uint64(roundSmall(v, 7, 8, r)) }
	default:
		return f, false
	}
	if sat {
		write := f.write
		f.write = func(v float64) uint64 { return write(saturate(v)) }
	}
	return f, true
}

func flush16(v float64) float64 {
	if math.Abs(v) < 1.0/16384 {
		return math.Copysign(0, v)
	}
	return v
}

// unpacked is the element type of a packed pair.
func unpacked(t ptx.Type) (ptx.Type, bool) {
	switch t {
	case ptx.F16x2:
		return ptx.F16, true
	case ptx.BF16x2:
		return ptx.BF16, true
	}
	return t, false
}

// floatBinFunc is the operation on bits, for elements.
func floatBinFunc(name string, t ptx.Type, r rounding, ftz, sat bool) func(a, b uint64) uint64 {
	if t == ptx.F64 {
		switch name {
		case "add":
			return func(a, b uint64) uint64 { return quiet64(sum64(f64(a), f64(b), r), a, b, 0) }
		case "sub":
			return func(a, b uint64) uint64 { return quiet64(sum64(f64(a), -f64(b), r), a, b, 0) }
		case "mul":
			return func(a, b uint64) uint64 {
				p := f64(a) * f64(b)
				return quiet64(exact64(f64(a), f64(b), math.Copysign(0, p), r), a, b, 0)
			}
		case "div":
			return func(a, b uint64) uint64 { return quiet64(div64(f64(a), f64(b), r), b, a, 0) }
		}
		return nil
	}
	f, ok := formatOf(t, r, ftz, sat)
	if !ok {
		return nil
	}
	var do func(a, b float64) float64
	switch name {
	case "add":
		do = addOdd
	case "sub":
		do = func(a, b float64) float64 { return addOdd(a, -b) }
	case "mul":
		do = func(a, b float64) float64 { return a * b }
	case "div":
		do = divOdd
	default:
		return nil
	}
	if r == roundDown && (name == "add" || name == "sub") {
		sum := do
		do = func(a, b float64) float64 { // x - x is -0 towards minus infinity
			v := sum(a, b)
			if v == 0 && (a != 0 || math.Signbit(a) != math.Signbit(b) == (name == "add")) {
				return math.Copysign(0, -1)
			}
			return v
		}
	}
	return func(a, b uint64) uint64 { return f.write(do(f.read(a), f.read(b))) }
}

// floatBin is floatBinFunc for pairs too.
func floatBin(name string, t ptx.Type, r rounding) func(a, b uint64) uint64 {
	return pairwise(name, t, r, false, false)
}

func pairwise(name string, t ptx.Type, r rounding, ftz, sat bool) func(a, b uint64) uint64 {
	e, pair := unpacked(t)
	f := floatBinFunc(name, e, r, ftz, sat)
	if f == nil || !pair {
		return f
	}
	return halves(f)
}

// floatBin2 lowers add, sub, mul and div.
func (l *lowerer) floatBin2(name string, t ptx.Type) error {
	r, ftz, sat := l.rounding(), l.has("ftz"), l.has("sat")
	if name != "div" && t == ptx.F64 && l.orderFactors() && name == "sub" {
		return l.map2(t, t, func(b, a uint64) uint64 { return quiet64(sum64(f64(a), -f64(b), r), b, a, 0) })
	}
	if r == roundNearest && !sat {
		if fn := plainFloat(name, t, ftz); fn != nil {
			return l.emit2(t, fn)
		}
	}
	return l.map2(t, t, pairwise(name, t, r, ftz, sat))
}

// orderFactors puts the registers of a product or sum in the order in which the
// assembler has them, which decides between two NaNs. It reports whether that
// is the reverse of what the text says.
func (l *lowerer) orderFactors() bool {
	ops := l.in.Operands
	if len(ops) < 3 || ops[1].Kind != ptx.OpReg || ops[2].Kind != ptx.OpReg || ops[1].Reg <= ops[2].Reg {
		return false
	}
	ops[1], ops[2] = ops[2], ops[1]
	return true
}

func lowerFma(l *lowerer) error {
	t, r, ftz, sat := l.typ(), l.rounding(), l.has("ftz"), l.has("sat")
	relu := l.has("relu")
	l.orderFactors()
	if r == roundNearest && !sat && !relu {
		switch {
		case t == ptx.F32 && !ftz:
			return l.emit3(t, t, t, op{fn: opFmaF32})
		case t == ptx.F32:
			return l.emit3(t, t, t, op{fn: opFmaFtzF32})
		case t == ptx.F64:
			return l.emit3(t, t, t, op{fn: opFmaF64})
		}
	}
	if t == ptx.F64 {
		return l.map3(t, t, t, func(a, b, c uint64) uint64 { return quiet64(exact64(f64(a), f64(b), f64(c), r), a, b, c) })
	}
	e, pair := unpacked(t)
	f, ok := formatOf(e, r, ftz, sat)
	if !ok {
		return l.unsupported("%s", l.in)
	}
	one := func(a, b, c uint64) uint64 {
		x, z := f.read(a)*f.read(b), f.read(c)
		v := addOdd(x, z)
		if r == roundDown && v == 0 && (x != 0 || math.Signbit(x) != math.Signbit(z)) {
			v = math.Copysign(0, -1) // x - x
		}
		if relu && !(v > 0) && v == v {
			v = 0
		}
		return f.write(v)
	}
	if !pair {
		return l.map3(t, t, t, one)
	}
	return l.map3(t, t, t, func(a, b, c uint64) uint64 {
		return one(a&0xffff, b&0xffff, c&0xffff)&0xffff | one(a>>16&0xffff, b>>16&0xffff, c>>16&0xffff)&0xffff<<16
	})
}

// floatMinMax lowers min and max: a NaN loses, unless .NaN lets it win; -0 is
// less than +0.
func (l *lowerer) floatMinMax(t ptx.Type) error {
	return l.minMaxN(t, floatMinMaxFunc(l.in.Op, t, l.has("NaN"), l.has("ftz"), l.has("xorsign")))
}

func (l *lowerer) minMaxN(t ptx.Type, f func(a, b uint64) uint64) error {
	if f == nil {
		return l.unsupported("%s", l.in)
	}
	if len(l.in.Operands) == 4 {
		return l.map3(t, t, t, func(a, b, c uint64) uint64 { return f(f(a, b), c) })
	}
	if a, b := l.in.Operands[1], l.in.Operands[2]; a.Kind == ptx.OpReg && b.Kind == ptx.OpReg && a.Reg == b.Reg && len(l.in.Mods) == 1 && (t == ptx.F16 || t == ptx.F32 || t == ptx.F64) {
		l.in.Operands = l.in.Operands[:2] // the assembler makes a move of it, which keeps any NaN
		return l.map1(t, func(a uint64) uint64 { return a })
	}
	return l.map2(t, t, f)
}

func floatMinMaxFunc(name string, t ptx.Type, nan, ftz, xorsign bool) func(a, b uint64) uint64 {
	e, pair := unpacked(t)
	read := f64
	nanBits := uint64(0x7fff)
	switch e {
	case ptx.F32:
		read = func(v uint64) float64 { return float64(f32(v)) }
		nanBits = 0x7fffffff
	case ptx.F16:
		read = func(v uint64) float64 { return fromHalf(uint16(v)) }
	case ptx.BF16:
		read = func(v uint64) float64 { return fromBfloat(uint16(v)) }
	}
	signBit := uint64(1) << (e.Bits() - 1)
	lessWins := name == "min"
	one := func(a, b uint64) uint64 {
		s := (a ^ b) & signBit
		if ftz {
			a, b = flushBits(a, e), flushBits(b, e)
		}
		if xorsign {
			a, b = a&^signBit, b&^signBit
		}
		x, y := read(a), read(b)
		var v uint64
		switch {
		case x != x && y != y && e == ptx.F64:
			return a | quiet
		case x != x && y != y, nan && (x != x || y != y):
			return nanBits
		case x != x:
			v = b
		case y != y:
			v = a
		case x == y: // only zeros differ
			if v = a | b; !lessWins {
				v = a & b
			}
			if x != 0 {
				v = a
			}
		case x < y == lessWins:
			v = a
		default:
			v = b
		}
		if xorsign {
			v = v&^signBit | s
		}
		return v
	}
	if pair {
		return halves(one)
	}
	return one
}

// lowerFloat1 lowers the functions of one operand. The approximate ones are
// computed in float64 and rounded, within any bound the ISA states.
func lowerFloat1(l *lowerer) error {
	t := l.typ()
	r, ftz := l.rounding(), l.has("ftz")
	name := l.in.Op
	if t == ptx.F64 {
		return l.map1(t, double1(name, r))
	}
	do := map[string]func(float64) float64{
		"rcp": func(v float64) float64 { return divOdd(1, v) }, "sqrt": sqrtOdd,
		"rsqrt": func(v float64) float64 { return 1 / math.Sqrt(v) },
		"sin":   math.Sin, "cos": math.Cos, "lg2": math.Log2, "ex2": math.Exp2, "tanh": math.Tanh,
	}[name]
	e, pair := unpacked(t)
	f, ok := formatOf(e, r, ftz, l.has("sat"))
	if !ok || do == nil {
		return l.unsupported("%s", l.in)
	}
	one := func(a uint64) uint64 { return f.write(do(f.read(a))) }
	if !pair {
		return l.map1(t, one)
	}
	return l.map1(t, func(a uint64) uint64 { return one(a&0xffff)&0xffff | one(a>>16&0xffff)&0xffff<<16 })
}

func double1(name string, r rounding) func(a uint64) uint64 {
	switch name {
	case "rcp":
		return func(a uint64) uint64 { return bits64(div64(1, f64(a), r)) }
	case "sqrt":
		return func(a uint64) uint64 { return bits64(sqrt64(f64(a), r)) }
	case "rsqrt":
		return func(a uint64) uint64 { return bits64(1 / math.Sqrt(f64(a))) }
	}
	return nil
}
