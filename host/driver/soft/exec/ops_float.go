package exec

import (
	"math"

	"causeway/host/driver/soft/ptx"
)

// plainFloat returns the loop for round-to-nearest arithmetic, or nil.
func plainFloat(name string, t ptx.Type, ftz bool) opFn {
	switch t {
	case ptx.F32:
		switch {
		case name == "add" && ftz:
			return opAddFtzF32
		case name == "mul" && ftz:
			return opMulFtzF32
		case name == "sub" && ftz:
			return opSubFtzF32
		case ftz:
			return nil
		case name == "add":
			return opAddF32
		case name == "sub":
			return opSubF32
		case name == "mul":
			return opMulF32
		case name == "div":
			return opDivF32
		}
	case ptx.F64:
		switch name {
		case "add":
			return opAddF64
		case "sub":
			return opSubF64
		case "mul":
			return opMulF64
		case "div":
			return opDivF64
		}
	}
	return nil
}

func opAddF32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = canon32(f32(a[l&31]) + f32(b[l&31]))
	}
}

func opSubF32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = canon32(f32(a[l&31]) - f32(b[l&31]))
	}
}

func opMulF32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = canon32(f32(a[l&31]) * f32(b[l&31]))
	}
}

func opDivF32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = canon32(f32(a[l&31]) / f32(b[l&31]))
	}
}

func opFmaF32(w *warp, o *op) {
	d, a, b, c := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c]
	for _, l := range w.act {
		s := float64(f32(a[l&31]))*float64(f32(b[l&31])) + float64(f32(c[l&31]))
		v := math.Float64bits(s)
		if v&0x1fffffff == 0x10000000 || v>>52&0x7ff-1 < 1023-126-1 { // zero wraps: it is exact
			d[l&31] = bits32(float32(fmaOdd32(f32(a[l&31]), f32(b[l&31]), f32(c[l&31]))))
			continue
		}
		d[l&31] = canon32(float32(s))
	}
}

func opAddFtzF32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = canon32(flush32(flush32(f32(a[l&31])) + flush32(f32(b[l&31]))))
	}
}

func opSubFtzF32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = canon32(flush32(flush32(f32(a[l&31])) - flush32(f32(b[l&31]))))
	}
}

func opMulFtzF32(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		d[l&31] = canon32(flush32(flush32(f32(a[l&31])) * flush32(f32(b[l&31]))))
	}
}

func opFmaFtzF32(w *warp, o *op) {
	d, a, b, c := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c]
	for _, l := range w.act {
		d[l&31] = canon32(flush32(fma32(flush32(f32(a[l&31])), flush32(f32(b[l&31])), flush32(f32(c[l&31])))))
	}
}

func opAddF64(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		x, y := a[l&31], b[l&31]
		v := f64(x) + f64(y)
		if v != v {
			d[l&31] = quiet64(v, x, y, 0)
			continue
		}
		d[l&31] = bits64(v)
	}
}

func opSubF64(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		x, y := a[l&31], b[l&31]
		v := f64(x) - f64(y)
		if v != v {
			d[l&31] = quiet64(v, x, y, 0)
			continue
		}
		d[l&31] = bits64(v)
	}
}

func opMulF64(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		x, y := a[l&31], b[l&31]
		v := f64(x) * f64(y)
		if v != v {
			d[l&31] = quiet64(v, x, y, 0)
			continue
		}
		d[l&31] = bits64(v)
	}
}

func opDivF64(w *warp, o *op) {
	d, a, b := &w.r[o.d], &w.r[o.a], &w.r[o.b]
	for _, l := range w.act {
		x, y := a[l&31], b[l&31]
		v := f64(x) / f64(y)
		if v != v {
			d[l&31] = quiet64(v, y, x, 0) // the dividend's NaN first
			continue
		}
		d[l&31] = bits64(v)
	}
}

func opFmaF64(w *warp, o *op) {
	d, a, b, c := &w.r[o.d], &w.r[o.a], &w.r[o.b], &w.r[o.c]
	for _, l := range w.act {
		x, y, z := a[l&31], b[l&31], c[l&31]
		v := math.FMA(f64(x), f64(y), f64(z))
		if v != v {
			d[l&31] = quiet64(v, x, y, z)
			continue
		}
		d[l&31] = bits64(v)
	}
}
