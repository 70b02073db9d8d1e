package exec

import (
	"strings"

	"causeway/host/driver/soft/ptx"
)

// imageOp is what a texture or surface instruction does beyond its operands.
type imageOp struct {
	dims    int     // of a position: 1, 2, 3
	layered bool    // the first coordinate is a layer
	coords  []int32 // slots: layer, position; surfaces: x in bytes
	integer bool    // coordinates are .s32
	level   int32   // slot of the level of detail, -1
	dx, dy  []int32 // slots of gradients, nil
	part    int     // tld4: channel
	values  []int32 // results, or what is stored; -1 for a sink
	query   string  // txq, suq
	unit    int     // surfaces: bytes of a value
	beyond  string  // surfaces: trap, clamp, zero
	half    bool    // results are f16x2
}

// geometry reads the shape of an image from the modifiers.
func (l *lowerer) geometry(i *imageOp) error {
	switch g := l.hasAny("1d", "2d", "3d", "a1d", "a2d"); g {
	case "1d", "2d", "3d":
		i.dims = int(g[0] - '0')
	case "a1d", "a2d":
		i.dims, i.layered = int(g[1]-'0'), true
	default: // cube, acube, 2dms, a2dms
		return l.unsupported("%s: images of this shape", l.in)
	}
	return nil
}

// image lowers the operand [object, {coordinates}] at index at.
func (l *lowerer) image(at int, i *imageOp, t ptx.Type) (int32, error) {
	if at >= len(l.in.Operands) || l.in.Operands[at].Kind != ptx.OpAddr {
		return 0, l.unsupported("%s with such an address", l.in)
	}
	o := &l.in.Operands[at]
	if len(o.Elems) > 2 {
		return 0, l.unsupported("%s with a sampler of its own", l.in)
	}
	if o.Elems[0].Kind != ptx.OpReg || o.Imm != 0 {
		return 0, l.unsupported("%s through a texture reference", l.in)
	}
	object, err := l.value(&o.Elems[0], ptx.U64)
	if err != nil || len(o.Elems) < 2 {
		return object, err
	}
	i.coords, err = l.list(&o.Elems[1], t)
	if err == nil && len(i.coords) < i.dims+btoi(i.layered) {
		err = l.unsupported("%s with %d coordinates", l.in, len(i.coords))
	}
	return object, err
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// list lowers a vector, or a single value, to be read.
func (l *lowerer) list(o *ptx.Operand, t ptx.Type) ([]int32, error) {
	if o.Kind == ptx.OpVector {
		return l.vector(o, t, false)
	}
	v, err := l.value(o, t)
	return []int32{v}, err
}

// results lowers the destinations of a fetch. A predicate beside them says that
// the memory was there: always.
func (l *lowerer) results(i *imageOp, t ptx.Type, n int) error {
	o := &l.in.Operands[0]
	if o.Kind == ptx.OpPair {
		return l.unsupported("%s with a residency predicate", l.in)
	}
	if o.Kind != ptx.OpVector {
		d, err := l.dstOf(o)
		i.values = []int32{d}
		return err
	}
	var err error
	i.values, err = l.vector(o, t, true)
	if err == nil && len(i.values) != n {
		err = l.unsupported("%s with %d results", l.in, len(i.values))
	}
	return err
}

// lowerTex lowers tex and tld4.
func lowerTex(l *lowerer) error {
	i := &imageOp{level: -1}
	if err := l.geometry(i); err != nil {
		return err
	}
	mods := l.in.Mods
	coordinate := mods[len(mods)-1]
	i.half = l.has("f16x2") || l.has("f16")
	if l.has("f16") || coordinate != "f32" && coordinate != "s32" || len(l.in.Operands) < 2 {
		return l.unsupported("%s", l.in)
	}
	i.integer = coordinate == "s32"
	n := 4
	if l.has("v2") {
		n = 2
	}
	if err := l.results(i, ptx.B32, n); err != nil {
		return err
	}
	t := ptx.F32
	if i.integer {
		t = ptx.S32
	}
	object, err := l.image(1, i, t)
	if err != nil {
		return err
	}
	fn := opFn(opTex)
	switch next := 2; {
	case l.in.Op == "tld4":
		fn = opTld4
		i.part = strings.Index("rgba", l.hasAny("r", "g", "b", "a"))
		if i.part < 0 || i.dims != 2 {
			return l.unsupported("%s", l.in)
		}
	case l.has("level"):
		if i.level, err = l.src(next, t); err != nil {
			return err
		}
	case l.has("grad"):
		if len(l.in.Operands) < next+2 {
			return l.unsupported("%s without gradients", l.in)
		}
		if i.dx, err = l.list(&l.in.Operands[next], ptx.F32); err != nil {
			return err
		}
		if i.dy, err = l.list(&l.in.Operands[next+1], ptx.F32); err != nil {
			return err
		}
		if len(i.dx) < i.dims || len(i.dy) < i.dims {
			return l.unsupported("%s with short gradients", l.in)
		}
	case len(l.in.Operands) > next:
		return l.unsupported("%s with an offset or a reference value", l.in)
	}
	l.emit(op{fn: fn, a: object, x: &opExtra{image: i}})
	return nil
}

// lowerTxq lowers txq and suq.
func lowerTxq(l *lowerer) error {
	if len(l.in.Operands) != 2 || l.has("level") {
		return l.unsupported("%s", l.in)
	}
	i := &imageOp{query: l.hasAny("width", "height", "depth", "array_size", "num_mipmap_levels", "channel_data_type",
		"channel_order", "normalized_coords")}
	switch i.query {
	case "width", "height", "depth", "array_size", "num_mipmap_levels", "normalized_coords":
	default:
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	object, err := l.image(1, i, ptx.U64)
	if err != nil {
		return err
	}
	fn := opFn(opTxq)
	if l.in.Op == "suq" {
		fn = opSuq
	}
	l.emit(op{fn: fn, d: d, a: object, x: &opExtra{image: i}})
	return nil
}

// surface reads what suld and sust have in common.
func (l *lowerer) surface() (*imageOp, ptx.Type, int, error) {
	i := &imageOp{beyond: l.hasAny("trap", "clamp", "zero")}
	if !l.has("b") {
		return nil, 0, 0, l.unsupported("%s: formatted surface access", l.in)
	}
	if err := l.geometry(i); err != nil {
		return nil, 0, 0, err
	}
	n, t := l.width()
	if t == ptx.NoType || t.Size() > 8 || i.beyond == "" {
		return nil, 0, 0, l.unsupported("%s", l.in)
	}
	i.unit = int(t.Size())
	return i, t, n, nil
}

// lowerSuld lowers suld.b.
func lowerSuld(l *lowerer) error {
	i, t, n, err := l.surface()
	if err != nil {
		return err
	}
	if err := l.results(i, t, n); err != nil {
		return err
	}
	object, err := l.image(1, i, ptx.S32)
	if err != nil {
		return err
	}
	l.emit(op{fn: opSuld, a: object, x: &opExtra{image: i}})
	return nil
}

// lowerSust lowers sust.b.
func lowerSust(l *lowerer) error {
	i, t, n, err := l.surface()
	if err != nil {
		return err
	}
	object, err := l.image(0, i, ptx.S32)
	if err != nil {
		return err
	}
	if len(l.in.Operands) != 2 {
		return l.unsupported("%s", l.in)
	}
	i.values, err = l.list(&l.in.Operands[1], t)
	if err == nil && len(i.values) != n {
		err = l.unsupported("%s of %d values", l.in, len(i.values))
	}
	if err != nil {
		return err
	}
	l.emit(op{fn: opSust, a: object, x: &opExtra{image: i}})
	return nil
}
