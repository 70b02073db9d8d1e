package exec

import (
	"causeway/host/driver/soft/ptx"
)

// An mbarrier object is opaque to programs. Here its 64 bits are the arrivals
// still pending in bits 0 to 19, those expected per phase in bits 20 to 39, and
// the number of completed phases above. Transaction counts, which only bulk
// copies use, are not supported.
const (
	mbarBits  = 20
	mbarMask  = 1<<mbarBits - 1
	mbarPhase = 2 * mbarBits
)

func mbarInit(_, n, _ uint64) uint64 { return n&mbarMask<<mbarBits | n&mbarMask }

func mbarArrive(old, n, _ uint64) uint64 {
	pending, expected := old&mbarMask, old>>mbarBits&mbarMask
	if pending > n&mbarMask {
		return old - n&mbarMask
	}
	return (old>>mbarPhase+1)<<mbarPhase | expected<<mbarBits | expected
}

func mbarDrop(old, n, _ uint64) uint64 {
	expected := old >> mbarBits & mbarMask
	return mbarArrive(old-min(n&mbarMask, expected)<<mbarBits, n, 0)
}

// lowerMbarrier lowers mbarrier on objects in shared memory.
func lowerMbarrier(l *lowerer) error {
	if l.has("shared::cluster") {
		return l.unsupported("%s", l.in)
	}
	switch l.hasAny("init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "pending_count") {
	case "init":
		return l.mbarUpdate(0, false, mbarInit)
	case "inval":
		return nil
	case "arrive":
		return l.mbarArrival(mbarArrive)
	case "arrive_drop":
		return l.mbarArrival(mbarDrop)
	case "test_wait", "try_wait":
		return l.mbarWait()
	case "pending_count":
		return l.map1(ptx.B64, func(a uint64) uint64 { return a & mbarMask })
	}
	return l.unsupported("%s", l.in)
}

func (l *lowerer) mbarArrival(f func(old, n, _ uint64) uint64) error {
	if l.has("expect_tx") {
		return l.unsupported("%s", l.in)
	}
	return l.mbarUpdate(1, true, f)
}

// mbarUpdate lowers a read-modify-write of the object at operand at, with a
// count behind it, 1 if absent.
func (l *lowerer) mbarUpdate(at int, result bool, f func(old, n, _ uint64) uint64) error {
	space, err := l.space()
	if err != nil {
		return err
	}
	o := op{fn: opAtom, d: -1, c: -1}
	if result {
		if o.d, err = l.dst(0); err != nil {
			return err
		}
	}
	a, err := l.addr(at, space)
	if err != nil {
		return err
	}
	o.a, o.imm, o.x = a.base, a.off, &opExtra{space: a.space, size: 8, f3: f}
	o.b = l.constant(1)
	if len(l.in.Operands) > at+1 {
		if o.b, err = l.src(at+1, ptx.U32); err != nil {
			return err
		}
	}
	l.emit(o)
	return nil
}

// mbarWait tests whether a phase has completed; try_wait may as well return
// early, since programs must loop.
func (l *lowerer) mbarWait() error {
	space, err := l.space()
	if err != nil {
		return err
	}
	if len(l.in.Operands) < 3 {
		return l.unsupported("%s with %d operands", l.in, len(l.in.Operands))
	}
	p, err := l.predDst(&l.in.Operands[0])
	if err != nil {
		return err
	}
	a, err := l.addr(1, space)
	if err != nil {
		return err
	}
	now, err := l.temp()
	if err != nil {
		return err
	}
	l.emit(op{fn: opLdAny[uint64], d: now, a: a.base, imm: a.off, x: &opExtra{space: a.space}})
	test := func(now, then uint64) bool { return now>>mbarPhase != then>>mbarPhase }
	t := ptx.B64
	if l.has("parity") {
		t = ptx.U32
		test = func(now, parity uint64) bool { return now>>mbarPhase&1 != parity&1 }
	}
	then, err := l.src(2, t)
	l.emit(op{fn: opTest, p: p, a: now, b: then, x: &opExtra{cmp: test}})
	return err
}
