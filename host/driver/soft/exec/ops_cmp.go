package exec

// finish stores the result of a comparison.
func (w *warp) finish(o *op, m uint32) {
	k := &o.x.compare
	if k.invert {
		m = ^m
	}
	if k.combine == boolNone && k.second < 0 {
		w.p[o.p] = w.p[o.p]&^w.mask | m&w.mask
		return
	}
	n := ^m
	if k.combine != boolNone {
		c := w.p[k.pred]
		switch k.combine {
		case boolAnd:
			m, n = m&c, n&c
		case boolOr:
			m, n = m|c, n|c
		case boolXor:
			m, n = m^c, n^c
		}
	}
	w.setPred(o.p, m)
	if k.second >= 0 {
		w.setPred(k.second, n)
	}
}

func bit(b bool, l uint8) uint32 {
	var v uint32
	if b {
		v = 1
	}
	return v << (l & 31)
}

func opSetp[T integer](w *warp, o *op) {
	a, b := &w.r[o.a], &w.r[o.b]
	var m uint32
	switch o.x.compare.c {
	case cmpEq:
		for _, l := range w.act {
			m |= bit(T(a[l&31]) == T(b[l&31]), l)
		}
	case cmpNe:
		for _, l := range w.act {
			m |= bit(T(a[l&31]) != T(b[l&31]), l)
		}
	case cmpLt:
		for _, l := range w.act {
			m |= bit(T(a[l&31]) < T(b[l&31]), l)
		}
	case cmpLe:
		for _, l := range w.act {
			m |= bit(T(a[l&31]) <= T(b[l&31]), l)
		}
	case cmpGt:
		for _, l := range w.act {
			m |= bit(T(a[l&31]) > T(b[l&31]), l)
		}
	default:
		for _, l := range w.act {
			m |= bit(T(a[l&31]) >= T(b[l&31]), l)
		}
	}
	w.finish(o, m)
}

// relate is one ordered comparison.
func relate(c comparison, x, y float64) bool {
	switch c {
	case cmpEq:
		return x == y
	case cmpNe:
		return x < y || x > y
	case cmpLt:
		return x < y
	case cmpLe:
		return x <= y
	case cmpGt:
		return x > y
	case cmpGe:
		return x >= y
	}
	return x == x && y == y
}

func opSetpF32(w *warp, o *op) {
	a, b := &w.r[o.a], &w.r[o.b]
	var m uint32
	switch c := o.x.compare.c; c {
	case cmpEq:
		for _, l := range w.act {
			m |= bit(f32(a[l&31]) == f32(b[l&31]), l)
		}
	case cmpLt:
		for _, l := range w.act {
			m |= bit(f32(a[l&31]) < f32(b[l&31]), l)
		}
	case cmpLe:
		for _, l := range w.act {
			m |= bit(f32(a[l&31]) <= f32(b[l&31]), l)
		}
	case cmpGt:
		for _, l := range w.act {
			m |= bit(f32(a[l&31]) > f32(b[l&31]), l)
		}
	case cmpGe:
		for _, l := range w.act {
			m |= bit(f32(a[l&31]) >= f32(b[l&31]), l)
		}
	default:
		for _, l := range w.act {
			m |= bit(relate(c, float64(f32(a[l&31])), float64(f32(b[l&31]))), l)
		}
	}
	w.finish(o, m)
}

func opSetpF64(w *warp, o *op) {
	a, b := &w.r[o.a], &w.r[o.b]
	var m uint32
	for _, l := range w.act {
		m |= bit(relate(o.x.compare.c, f64(a[l&31]), f64(b[l&31])), l)
	}
	w.finish(o, m)
}

// opSetpFloat compares values that read widens.
func opSetpFloat(read func(uint64) float64) opFn {
	return func(w *warp, o *op) {
		a, b := &w.r[o.a], &w.r[o.b]
		var m uint32
		for _, l := range w.act {
			m |= bit(relate(o.x.compare.c, read(a[l&31]), read(b[l&31])), l)
		}
		w.finish(o, m)
	}
}
