package exec

import (
	"math/bits"

	"causeway/host/driver/soft/ptx"
)

// shuffle modes.
const (
	shflUp = iota
	shflDown
	shflBfly
	shflIdx
)

// lowerShfl lowers shfl and shfl.sync; the latter's waiting is a termSync.
func lowerShfl(l *lowerer) error {
	if len(l.in.Operands) < 4 {
		return l.unsupported("%s", l.in)
	}
	mode, ok := map[string]int{"up": shflUp, "down": shflDown, "bfly": shflBfly, "idx": shflIdx}[l.hasAny("up", "down", "bfly", "idx")]
	if !ok {
		return l.unsupported("%s", l.in)
	}
	o := op{fn: opShfl, imm: uint64(mode), p: -1}
	d := l.in.Operands[0]
	var err error
	if d.Kind == ptx.OpPair {
		if o.p, err = l.predDst(&d.Elems[1]); err != nil {
			return err
		}
		d = d.Elems[0]
	}
	if o.d, err = l.dstOf(&d); err != nil {
		return err
	}
	if o.a, err = l.src(1, ptx.B32); err != nil {
		return err
	}
	if o.b, err = l.src(2, ptx.U32); err != nil {
		return err
	}
	o.c, err = l.src(3, ptx.U32)
	l.emit(o)
	return err
}

func opShfl(w *warp, o *op) {
	src := w.r[o.a] // a copy: d may be the same register
	d, b, c := &w.r[o.d], &w.r[o.b], &w.r[o.c]
	var ok uint32
	for _, l := range w.act {
		i := int(l & 31)
		bval, cval := int(b[i]&31), uint32(c[i])
		seg := int(cval >> 8 & 31)
		limit := i&seg | int(cval&31)&^seg
		low := i & seg
		var j int
		var in bool
		switch o.imm {
		case shflUp:
			j = i - bval
			in = j >= limit
		case shflDown:
			j = i + bval
			in = j <= limit
		case shflBfly:
			j = i ^ bval
			in = j <= limit
		default:
			j = low | bval&^seg
			in = j <= limit
		}
		if !in {
			j = i
		} else {
			ok |= 1 << i
		}
		d[i] = src[j&31]
	}
	if o.p >= 0 {
		w.setPred(o.p, ok)
	}
}

// lowerVote lowers vote and vote.sync.
func lowerVote(l *lowerer) error {
	if len(l.in.Operands) < 2 {
		return l.unsupported("%s", l.in)
	}
	q, err := l.pred(&l.in.Operands[1])
	if err != nil {
		return err
	}
	m := l.constant(fullMask)
	if l.has("sync") {
		if m, err = l.src(2, ptx.B32); err != nil {
			return err
		}
	}
	switch mode := l.hasAny("all", "any", "uni", "ballot"); mode {
	case "ballot":
		d, err := l.dst(0)
		l.emit(op{fn: opBallot, d: d, q: q, a: m})
		return err
	case "all", "any", "uni":
		p, err := l.predDst(&l.in.Operands[0])
		l.emit(op{fn: opVote, p: p, q: q, a: m, x: &opExtra{text: mode}})
		return err
	}
	return l.unsupported("%s", l.in)
}

// opBallot gives each lane the votes of the active lanes in its mask.
func opBallot(w *warp, o *op) {
	v := w.p[o.q] & w.mask
	for _, l := range w.act {
		w.r[o.d][l&31] = uint64(v & uint32(w.r[o.a][l&31]))
	}
}

func opVote(w *warp, o *op) {
	var out uint32
	for _, l := range w.act {
		group := w.mask & uint32(w.r[o.a][l&31])
		v := w.p[o.q] & group
		var r bool
		switch o.x.text {
		case "all":
			r = v == group
		case "any":
			r = v != 0
		default:
			r = v == 0 || v == group
		}
		out |= bit(r, l)
	}
	w.setPred(o.p, out)
}

// lowerMatch lowers match.any and match.all.
func lowerMatch(l *lowerer) error {
	if err := l.need(3); err != nil {
		return err
	}
	t := l.typ()
	o := op{fn: opMatch, p: -1, imm: ^uint64(0) >> (64 - t.Bits())}
	d := l.in.Operands[0]
	var err error
	if l.has("all") {
		o.fn = opMatchAll
	}
	if d.Kind == ptx.OpPair {
		if o.p, err = l.predDst(&d.Elems[1]); err != nil {
			return err
		}
		d = d.Elems[0]
	}
	if o.d, err = l.dstOf(&d); err != nil {
		return err
	}
	if o.a, err = l.src(1, t); err != nil {
		return err
	}
	o.b, err = l.src(2, ptx.B32)
	l.emit(o)
	return err
}

// same is the lanes of group whose register equals lane i's.
func (w *warp) same(reg int32, i uint8, mask uint64, group uint32) uint32 {
	v := &w.r[reg]
	var m uint32
	for g := group; g != 0; g &= g - 1 {
		if j := bits.TrailingZeros32(g) & 31; (v[j]^v[i&31])&mask == 0 {
			m |= 1 << j
		}
	}
	return m
}

func opMatch(w *warp, o *op) {
	var out lanes
	for _, l := range w.act {
		out[l&31] = uint64(w.same(o.a, l, o.imm, w.mask&uint32(w.r[o.b][l&31])))
	}
	for _, l := range w.act {
		w.r[o.d][l&31] = out[l&31]
	}
}

func opMatchAll(w *warp, o *op) {
	var out lanes
	var all uint32
	for _, l := range w.act {
		group := w.mask & uint32(w.r[o.b][l&31])
		if w.same(o.a, l, o.imm, group) == group {
			out[l&31] = uint64(group)
			all |= 1 << (l & 31)
		}
	}
	for _, l := range w.act {
		w.r[o.d][l&31] = out[l&31]
	}
	if o.p >= 0 {
		w.setPred(o.p, all)
	}
}

// lowerRedux lowers redux.sync: a reduction over the lanes of the mask.
func lowerRedux(l *lowerer) error {
	if err := l.need(3); err != nil {
		return err
	}
	t := l.typ()
	var f func(a, b uint64) uint64
	switch name := l.hasAny("add", "min", "max", "and", "or", "xor"); name {
	case "add":
		f = func(a, b uint64) uint64 { return a + b }
	case "min", "max":
		if t.Float() && l.has("abs") {
			return l.unsupported("%s", l.in)
		}
		f = minMaxFunc(name, t, l.has("NaN"), false)
	case "and":
		f = func(a, b uint64) uint64 { return a & b }
	case "or":
		f = func(a, b uint64) uint64 { return a | b }
	case "xor":
		f = func(a, b uint64) uint64 { return a ^ b }
	}
	if f == nil {
		return l.unsupported("%s", l.in)
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	a, err := l.src(1, t)
	if err != nil {
		return err
	}
	b, err := l.src(2, ptx.B32)
	l.emit(op{fn: opRedux, d: d, a: a, b: b, x: &opExtra{f2: f}})
	return err
}

func opRedux(w *warp, o *op) {
	src := w.r[o.a]
	var done uint32
	for _, l := range w.act {
		if done>>(l&31)&1 != 0 {
			continue
		}
		group := w.mask & uint32(w.r[o.b][l&31])
		if group == 0 {
			continue
		}
		v := src[firstLane(group)]
		for g := group & (group - 1); g != 0; g &= g - 1 {
			v = o.x.f2(v, src[firstLane(g)])
		}
		for g := group; g != 0; g &= g - 1 {
			w.r[o.d][firstLane(g)] = v
		}
		done |= group
	}
}

// lowerElect picks the lowest lane of the mask as leader.
func lowerElect(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	d := l.in.Operands[0]
	if d.Kind != ptx.OpPair {
		return l.unsupported("%s", l.in)
	}
	o := op{fn: opElect}
	var err error
	if o.p, err = l.predDst(&d.Elems[1]); err != nil {
		return err
	}
	if o.d, err = l.dstOf(&d.Elems[0]); err != nil {
		return err
	}
	o.a, err = l.src(1, ptx.B32)
	l.emit(o)
	return err
}

func opElect(w *warp, o *op) {
	var leaders uint32
	var out lanes
	for _, l := range w.act {
		leader := firstLane(w.mask & uint32(w.r[o.a][l&31]))
		out[l&31] = uint64(leader)
		leaders |= 1 << leader
	}
	for _, l := range w.act {
		w.r[o.d][l&31] = out[l&31]
	}
	w.setPred(o.p, leaders)
}
