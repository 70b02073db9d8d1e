package exec

import (
	"causeway/host/driver/soft/ptx"
)

// lowerVideo lowers the SIMD video instructions: arithmetic on two halfwords
// or four bytes, in default lane order, optionally summed into c.
func lowerVideo(l *lowerer) error {
	name, n := l.in.Op[1:len(l.in.Op)-1], int(l.in.Op[len(l.in.Op)-1]-'0')
	ts := l.types()
	if len(ts) < 2 || len(l.in.Operands) != 4 {
		return l.unsupported("%s", l.in)
	}
	at, bt := ts[len(ts)-2], ts[len(ts)-1]
	dt := ts[0]
	width := 32 / n
	do := videoFunc(name, l.hasAny(compareNames...))
	if do == nil {
		return l.unsupported("%s", l.in)
	}
	lo, hi := int64(0), int64(1)<<width-1
	if dt.Signed() {
		lo, hi = -1<<(width-1), 1<<(width-1)-1
	}
	part := func(v uint64, i int, t ptx.Type) int64 {
		v = v >> (i * width) << (64 - width)
		if t.Signed() {
			return int64(v) >> (64 - width)
		}
		return int64(v >> (64 - width))
	}
	sat, sum := l.has("sat"), l.has("add")
	return l.map3(ptx.B32, ptx.B32, ptx.B32, func(a, b, c uint64) uint64 {
		var out, total uint64
		for i := range n {
			v := do(part(a, i, at), part(b, i, bt))
			if sat {
				v = min(max(v, lo), hi)
			}
			total += uint64(v)
			out |= uint64(v) & (1<<width - 1) << (i * width)
		}
		if sum {
			return total + c
		}
		return out
	})
}

func videoFunc(name, cmp string) func(a, b int64) int64 {
	switch name {
	case "add":
		return func(a, b int64) int64 { return a + b }
	case "sub":
		return func(a, b int64) int64 { return a - b }
	case "avrg": // halves round away from zero
		return func(a, b int64) int64 {
			s := a + b
			if s >= 0 {
				return (s + 1) >> 1
			}
			return -((1 - s) >> 1)
		}
	case "absdiff":
		return func(a, b int64) int64 { return max(a-b, b-a) }
	case "min":
		return func(a, b int64) int64 { return min(a, b) }
	case "max":
		return func(a, b int64) int64 { return max(a, b) }
	case "set":
		c, _, ok := comparisonOf(cmp, false)
		if !ok {
			return nil
		}
		return func(a, b int64) int64 {
			if relate(c, float64(a), float64(b)) {
				return 1
			}
			return 0
		}
	}
	return nil
}
