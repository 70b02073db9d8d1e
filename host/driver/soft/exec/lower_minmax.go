package exec

import "causeway/host/driver/soft/ptx"

// lowerMinMax lowers min and max of any type.
func lowerMinMax(l *lowerer) error {
	t := l.typ()
	name := l.in.Op
	if p := l.packed16(); p != "" {
		t = ptx.U16
		if p == "s16x2" {
			t = ptx.S16
		}
		f := minMaxFunc(name, t, false, false)
		if l.has("relu") {
			f = reluOf(f, t)
		}
		return l.map2(ptx.B32, ptx.B32, halves(f))
	}
	if t.Float() {
		return l.floatMinMax(t)
	}
	if l.has("relu") {
		return l.map2(t, t, reluOf(minMaxFunc(name, t, false, false), t))
	}
	if name == "min" {
		return l.emit2(t, byInt(t, opMin[uint16], opMin[int16], opMin[uint32], opMin[int32], opMin[uint64], opMin[int64]))
	}
	return l.emit2(t, byInt(t, opMax[uint16], opMax[int16], opMax[uint32], opMax[int32], opMax[uint64], opMax[int64]))
}

func minOf[T integer](a, b uint64) uint64 { return uint64(min(T(a), T(b))) }
func maxOf[T integer](a, b uint64) uint64 { return uint64(max(T(a), T(b))) }

// reluOf replaces what f gives below zero by zero.
func reluOf(f func(a, b uint64) uint64, t ptx.Type) func(a, b uint64) uint64 {
	if f == nil || !t.Signed() {
		return nil
	}
	return func(a, b uint64) uint64 {
		if v := f(a, b); int64(extend(v, t)) > 0 {
			return v
		}
		return 0
	}
}

// minMaxFunc is min or max on values; nan lets a NaN through.
func minMaxFunc(name string, t ptx.Type, nan, ftz bool) func(a, b uint64) uint64 {
	if t.Float() {
		return floatMinMaxFunc(name, t, nan, ftz, false)
	}
	if name == "min" {
		return byInt(t, minOf[uint16], minOf[int16], minOf[uint32], minOf[int32], minOf[uint64], minOf[int64])
	}
	return byInt(t, maxOf[uint16], maxOf[int16], maxOf[uint32], maxOf[int32], maxOf[uint64], maxOf[int64])
}
