package exec

import (
	"math"

	"causeway/host/driver/soft/ptx"
)

// Matrices in the registers of a warp (mma.sync, wmma). Each product and sum of
// floating type is computed in float64 and rounded once; hardware keeps fewer
// bits on the way, so results agree where every partial sum is exact.

// number is the type of a matrix's elements.
type number struct {
	name   string
	bits   int // in a register
	signed bool
	float  bool
	read   func(v uint64) float64 // floating types
	write  func(v float64) uint64 // types of results
}

var numbers = map[string]*number{
	"f16":  {name: "f16", bits: 16, float: true, read: func(v uint64) float64 { return fromHalf(uint16(v)) }, write: func(v float64) uint64 { return uint64(toHalf(v)) }},
	"bf16": {name: "bf16", bits: 16, float: true, read: func(v uint64) float64 { return fromBfloat(uint16(v)) }},
	"tf32": {name: "tf32", bits: 32, float: true, read: func(v uint64) float64 { return float64(f32(v &^ 0x1fff)) }},
	"f32":  {name: "f32", bits: 32, float: true, read: func(v uint64) float64 { return float64(f32(v)) }, write: func(v float64) uint64 { return canon32(float32(v)) }},
	"f64":  {name: "f64", bits: 64, float: true, read: f64, write: bits64},
	"e4m3": {name: "e4m3", bits: 8, float: true, read: func(v uint64) float64 { return e4m3.read(v, false) }},
	"e5m2": {name: "e5m2", bits: 8, float: true, read: func(v uint64) float64 { return e5m2.read(v, false) }},
	"s32":  {name: "s32", bits: 32, signed: true},
	"s8":   {name: "s8", bits: 8, signed: true},
	"u8":   {name: "u8", bits: 8},
	"s4":   {name: "s4", bits: 4, signed: true},
	"u4":   {name: "u4", bits: 4},
}

// integer reads an element of integral type.
func (n *number) integer(v uint64) int64 {
	shift := 64 - n.bits
	if n.signed {
		return int64(v<<shift) >> shift
	}
	return int64(v << shift >> shift)
}

// perRegister is how many elements a register holds.
func (n *number) perRegister() int { return max(32/n.bits, 1) }

// tile is a matrix in registers: element e of register r in lane l is element
// at[(r*32+l)*per+e] of the matrix in row-major order.
type tile struct {
	num   *number
	slots []int32
	size  int
	at    []int16
}

// newTile places elements by where, which gives row and column.
func newTile(num *number, slots []int32, rows, cols int, where func(r, lane, e int) (row, col int)) *tile {
	per := num.perRegister()
	t := &tile{num: num, slots: slots, size: rows * cols, at: make([]int16, len(slots)*32*per)}
	for r := range slots {
		for lane := range 32 {
			for e := range per {
				row, col := where(r, lane, e)
				t.at[(r*32+lane)*per+e] = int16(row*cols + col)
			}
		}
	}
	return t
}

// each calls f for every element with its place and bits.
func (t *tile) each(w *warp, f func(at int16, v uint64)) {
	per, bits := t.num.perRegister(), t.num.bits
	i := 0
	for _, s := range t.slots {
		reg := &w.r[s]
		for lane := range reg {
			v := reg[lane]
			for range per {
				f(t.at[i], v)
				v >>= bits & 63
				i++
			}
		}
	}
}

// set writes every element from what f says of its place.
func (t *tile) set(w *warp, f func(at int16) uint64) {
	per, bits := t.num.perRegister(), t.num.bits
	mask := ^uint64(0) >> (64 - bits)
	i := 0
	for _, s := range t.slots {
		reg := &w.r[s]
		for lane := range reg {
			var v uint64
			for e := range per {
				v |= f(t.at[i]) & mask << (e * bits)
				i++
			}
			reg[lane] = v
		}
	}
}

// product is d = a·b + c.
type product struct {
	m, n, k    int
	a, b, c, d *tile
	saturate   bool
}

// tiles is a warp's room for products.
type tiles struct {
	a, b, c []float64
	x, y, z []int64
}

func (w *warp) room(p *product) *tiles {
	if w.tiles == nil {
		w.tiles = &tiles{}
	}
	t := w.tiles
	if p.d.num.float {
		t.a, t.b, t.c = enough(t.a, p.a.size), enough(t.b, p.b.size), enough(t.c, p.c.size)
	} else {
		t.x, t.y, t.z = enough(t.x, p.a.size), enough(t.y, p.b.size), enough(t.z, p.c.size)
	}
	return t
}

func enough[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// opProduct computes a matrix product for the whole warp.
func opProduct(w *warp, o *op) {
	p := o.x.product
	t := w.room(p)
	if !p.d.num.float {
		p.integers(w, t)
		return
	}
	p.a.each(w, func(at int16, v uint64) { t.a[at] = p.a.num.read(v) })
	p.b.each(w, func(at int16, v uint64) { t.b[at] = p.b.num.read(v) })
	p.c.each(w, func(at int16, v uint64) { t.c[at] = p.c.num.read(v) })
	double := p.a.num.bits == 64
	for i := range p.m {
		a := t.a[i*p.k : (i+1)*p.k]
		for j := range p.n {
			sum := t.c[i*p.n+j]
			for k, v := range a {
				if double {
					sum = math.FMA(v, t.b[k*p.n+j], sum)
				} else {
					sum += v * t.b[k*p.n+j]
				}
			}
			t.c[i*p.n+j] = sum
		}
	}
	p.d.set(w, func(at int16) uint64 { return p.d.num.write(t.c[at]) })
}

func (p *product) integers(w *warp, t *tiles) {
	p.a.each(w, func(at int16, v uint64) { t.x[at] = p.a.num.integer(v) })
	p.b.each(w, func(at int16, v uint64) { t.y[at] = p.b.num.integer(v) })
	p.c.each(w, func(at int16, v uint64) { t.z[at] = p.c.num.integer(v) })
	for i := range p.m {
		a := t.x[i*p.k : (i+1)*p.k]
		for j := range p.n {
			sum := t.z[i*p.n+j]
			for k, v := range a {
				sum += v * t.y[k*p.n+j]
			}
			if p.saturate {
				sum = min(max(sum, math.MinInt32), math.MaxInt32)
			}
			t.z[i*p.n+j] = sum
		}
	}
	p.d.set(w, func(at int16) uint64 { return uint64(t.z[at]) })
}

// shapeOf parses "m16n8k16".
func shapeOf(mod string) (m, n, k int, ok bool) {
	for i, c := range [...]byte{'m', 'n', 'k'} {
		if len(mod) == 0 || mod[0] != c {
			return 0, 0, 0, false
		}
		v := 0
		for mod = mod[1:]; len(mod) > 0 && mod[0] >= '0' && mod[0] <= '9' && v < 1000; mod = mod[1:] {
			v = v*10 + int(mod[0]-'0')
		}
		switch i {
		case 0:
			m = v
		case 1:
			n = v
		default:
			k = v
		}
	}
	return m, n, k, mod == "" && m > 0 && n > 0 && k > 0 && m*n <= 512 && m*k <= 2048 && n*k <= 2048
}

// matrixMods are the shape and the element types among the modifiers.
func (l *lowerer) matrixMods() (m, n, k int, types []*number, err error) {
	found := false
	for _, mod := range l.in.Mods {
		if x, y, z, ok := shapeOf(mod); ok {
			m, n, k, found = x, y, z, true
		}
		if num := numbers[mod]; num != nil {
			types = append(types, num)
		}
	}
	if !found {
		err = l.unsupported("%s", l.in)
	}
	return m, n, k, types, err
}

// registers are the slots of operand i, which is a vector or a single register.
func (l *lowerer) registers(i int, num *number, dst bool) ([]int32, error) {
	if i >= len(l.in.Operands) {
		return nil, l.unsupported("%s with %d operands", l.in, len(l.in.Operands))
	}
	o := &l.in.Operands[i]
	t := ptx.B32
	switch num.name {
	case "f32":
		t = ptx.F32
	case "f64":
		t = ptx.F64
	}
	list := []int32{0}
	var err error
	switch {
	case o.Kind == ptx.OpVector:
		list, err = l.vector(o, t, dst)
	case dst:
		list[0], err = l.dstOf(o)
	default:
		list[0], err = l.value(o, t)
	}
	for j := range list {
		if list[j] < 0 && err == nil {
			list[j], err = l.temp()
		}
	}
	return list, err
}
