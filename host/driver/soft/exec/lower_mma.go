package exec

import "causeway/host/driver/soft/ptx"

// lowerMma lowers mma.sync with the layouts of the ISA, section "Warp Level
// Matrix Instructions": register r of an operand holds consecutive elements
// along k, and eight rows lie over four lanes each.
func lowerMma(l *lowerer) error {
	m, n, k, types, err := l.matrixMods()
	if err != nil {
		return err
	}
	if n != 8 || m != 8 && m != 16 || l.hasAny("sp", "sp::ordered_metadata", "block_scale", "kind::mxf8f6f4") != "" || len(types) != 4 || m == 8 && k == 4 && types[1].bits != 64 {
		return l.unsupported("%s", l.in)
	}
	p := &product{m: m, n: n, k: k, saturate: l.has("satfinite")}
	numD, numA, numB, numC := types[0], types[1], types[2], types[3]
	slots := make([][]int32, 4)
	for i, num := range []*number{numD, numA, numB, numC} {
		if slots[i], err = l.registers(i, num, i == 0); err != nil {
			return err
		}
		rows, cols := m, n
		switch i {
		case 1:
			cols = k
		case 2:
			rows = k
		}
		if len(slots[i])*32*num.perRegister() != rows*cols {
			return l.unsupported("%s with %d registers", l.in, len(slots[i]))
		}
	}
	half := m / 8
	across := func(num *number) func(r, lane, e int) (int, int) { // c and d: pairs along the row
		return func(r, lane, e int) (int, int) {
			i := r*num.perRegister() + e
			return lane/4 + i/2*8, lane%4*2 + i%2
		}
	}
	p.d = newTile(numD, slots[0], m, n, across(numD))
	p.c = newTile(numC, slots[3], m, n, across(numC))
	per := numA.perRegister()
	p.a = newTile(numA, slots[1], m, k, func(r, lane, e int) (int, int) {
		return lane/4 + r%half*8, r/half*4*per + lane%4*per + e
	})
	p.b = newTile(numB, slots[2], k, n, func(r, lane, e int) (int, int) {
		return r*4*per + lane%4*per + e, lane / 4
	})
	return l.emitProduct(p)
}

// emitProduct checks that the types go together.
func (l *lowerer) emitProduct(p *product) error {
	float := p.d.num.float
	if p.a.num.float != float || p.b.num.float != float || p.c.num.float != float || p.a.num.bits != p.b.num.bits || float && p.d.num.write == nil || !float && p.d.num.bits != 32 {
		return l.unsupported("%s", l.in)
	}
	l.emit(op{fn: opProduct, x: &opExtra{product: p}})
	return nil
}

// lowerWmma lowers wmma.load, wmma.store and wmma.mma. Where the elements of a
// fragment lie is the implementation's business: here they are dealt out in
// row-major order, and fragments with room for more repeat them.
func lowerWmma(l *lowerer) error {
	m, n, k, types, err := l.matrixMods()
	if err != nil || len(l.in.Mods) == 0 {
		return l.unsupported("%s", l.in)
	}
	switch l.in.Mods[0] {
	case "mma":
		return l.wmmaProduct(m, n, k, types)
	case "load", "store":
		if len(types) == 1 && len(l.in.Mods) > 1 {
			return l.wmmaMemory(m, n, k, types[0])
		}
	}
	return l.unsupported("%s", l.in)
}

// fragment is the tile of operand i.
func (l *lowerer) fragment(i int, num *number, rows, cols int, dst bool) (*tile, error) {
	slots, err := l.registers(i, num, dst)
	if err != nil {
		return nil, err
	}
	per := num.perRegister()
	if total := len(slots) * 32 * per; total < rows*cols || total%(rows*cols) != 0 {
		return nil, l.unsupported("%s with %d registers", l.in, len(slots))
	}
	return newTile(num, slots, rows, cols, func(r, lane, e int) (int, int) {
		at := ((lane*len(slots)+r)*per + e) % (rows * cols)
		return at / cols, at % cols
	}), nil
}

func (l *lowerer) wmmaProduct(m, n, k int, types []*number) error {
	var numA, numB *number
	switch {
	case len(types) == 2:
		numA, numB = numbers["f16"], numbers["f16"]
	case len(types) == 4:
		numA, numB = types[1], types[2]
	default:
		return l.unsupported("%s", l.in)
	}
	p := &product{m: m, n: n, k: k, saturate: l.has("satfinite")}
	var err error
	if p.d, err = l.fragment(0, types[0], m, n, true); err != nil {
		return err
	}
	if p.a, err = l.fragment(1, numA, m, k, false); err != nil {
		return err
	}
	if p.b, err = l.fragment(2, numB, k, n, false); err != nil {
		return err
	}
	if p.c, err = l.fragment(3, types[len(types)-1], m, n, false); err != nil {
		return err
	}
	return l.emitProduct(p)
}

// wmmaMemory lowers load and store: [address] and registers, and the distance
// between rows or columns in elements.
func (l *lowerer) wmmaMemory(m, n, k int, num *number) error {
	space, err := l.space()
	if err != nil {
		return err
	}
	which, load := l.in.Mods[1], l.in.Mods[0] == "load"
	rows, cols := m, n
	switch which {
	case "a":
		cols = k
	case "b":
		rows = k
	case "c", "d":
	default:
		return l.unsupported("%s", l.in)
	}
	regs, mem := 0, 1
	if !load {
		regs, mem = 1, 0
	}
	t, err := l.fragment(regs, num, rows, cols, load)
	if err != nil {
		return err
	}
	a, err := l.addr(mem, space)
	if err != nil {
		return err
	}
	f := &fragmentAccess{tile: t, cols: cols, column: l.has("col")}
	o := op{fn: opStFragment, a: a.base, imm: a.off, x: &opExtra{space: a.space, fragment: f}}
	if load {
		o.fn = opLdFragment
	}
	step := cols
	if f.column {
		step = rows
	}
	o.b = l.constant(uint64(step))
	if len(l.in.Operands) > 2 {
		if o.b, err = l.src(2, ptx.U32); err != nil {
			return err
		}
	}
	l.emit(o)
	return nil
}

// lowerMatrix lowers ldmatrix and stmatrix: 8x8 tiles of 16 bits in shared
// memory, whose rows' addresses are in the lanes.
func lowerMatrix(l *lowerer) error {
	space, err := l.space()
	if err != nil {
		return err
	}
	if !l.has("m8n8") || !l.has("b16") {
		return l.unsupported("%s", l.in)
	}
	count := map[string]int{"x1": 1, "x2": 2, "x4": 4}[l.hasAny("x1", "x2", "x4")]
	load := l.in.Op == "ldmatrix"
	regs, mem := 0, 1
	if !load {
		regs, mem = 1, 0
	}
	slots, err := l.registers(regs, numbers["s32"], load)
	if err != nil {
		return err
	}
	if len(slots) != count {
		return l.unsupported("%s with %d registers", l.in, len(slots))
	}
	a, err := l.addr(mem, space)
	if err != nil {
		return err
	}
	o := op{fn: opStMatrix, a: a.base, imm: a.off, x: &opExtra{space: a.space, vec: slots}}
	if load {
		o.fn = opLdMatrix
	}
	if l.has("trans") {
		o.b = 1
	}
	l.emit(o)
	return nil
}

// lowerMovmatrix transposes an 8x8 tile in registers.
func lowerMovmatrix(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	if !l.has("trans") || !l.has("m8n8") || !l.has("b16") {
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, ptx.B32)
	l.emit(op{fn: opMovmatrix, d: d, a: a})
	return err
}

func opMovmatrix(w *warp, o *op) {
	src := w.r[o.a]
	d := &w.r[o.d]
	at := func(row, col int) uint64 { return src[row*4+col/2] >> (col % 2 * 16) & 0xffff }
	for _, l := range w.act {
		row, col := int(l/4), int(l%4)*2
		d[l&31] = at(col, row) | at(col+1, row)<<16
	}
}
