package exec

import (
	"causeway/host/driver/soft/ptx"
)

// An mbarrier object is opaque to programs. Here its 64 bits are the arrivals
// still pending in bits 0 to 19, those expected per phase in bits 20 to 39, the
// bytes of bulk copies still awaited in bits 40 to 60, as a signed number, and
// the number of completed phases above, modulo 8: a program can only wait for
// the phase that runs or the one before.
const (
	mbarBits  = 20
	mbarMask  = 1<<mbarBits - 1
	mbarTx    = 2 * mbarBits
	txMask    = 1<<21 - 1
	mbarPhase = mbarTx + 21
)

func mbarInit(_, n, _ uint64) uint64 { return n&mbarMask<<mbarBits | n&mbarMask }

// mbarStep subtracts arrivals and adds awaited bytes; the phase ends when none
// of either is left.
func mbarStep(old, arrivals, bytes uint64) uint64 {
	pending, expected, tx, phase := old&mbarMask, old>>mbarBits&mbarMask, (old>>mbarTx+bytes)&txMask, old>>mbarPhase
	pending -= min(arrivals&mbarMask, pending)
	if pending == 0 && tx == 0 {
		pending, phase = expected, phase+1
	}
	return phase<<mbarPhase | tx<<mbarTx | expected<<mbarBits | pending
}

func mbarArrive(old, n, _ uint64) uint64 { return mbarStep(old, n, 0) }

func mbarDrop(old, n, _ uint64) uint64 {
	expected := old >> mbarBits & mbarMask
	return mbarStep(old-min(n&mbarMask, expected)<<mbarBits, n, 0)
}

// mbarExpect awaits n bytes more, mbarArriveExpect arrives besides, and
// mbarComplete has got them.
func mbarExpect(old, n, _ uint64) uint64       { return mbarStep(old, 0, n) }
func mbarArriveExpect(old, n, _ uint64) uint64 { return mbarStep(old, 1, n) }
func mbarComplete(old, n, _ uint64) uint64     { return mbarStep(old, 0, -n) }

func mbarDropExpect(old, n, _ uint64) uint64 { return mbarDrop(mbarExpect(old, n, 0), 1, 0) }

// lowerMbarrier lowers mbarrier on objects in shared memory.
func lowerMbarrier(l *lowerer) error {
	if len(l.in.Mods) == 0 {
		return l.unsupported("%s", l.in)
	}
	switch l.in.Mods[0] {
	case "init":
		return l.mbarUpdate(0, false, mbarInit)
	case "inval":
		return nil
	case "expect_tx":
		return l.mbarUpdate(0, false, mbarExpect)
	case "complete_tx":
		return l.mbarUpdate(0, false, mbarComplete)
	case "arrive":
		return l.mbarArrival(mbarArrive, mbarArriveExpect)
	case "arrive_drop":
		return l.mbarArrival(mbarDrop, mbarDropExpect)
	case "test_wait", "try_wait":
		return l.mbarWait()
	case "pending_count":
		return l.map1(ptx.B64, func(a uint64) uint64 { return a & mbarMask })
	}
	return l.unsupported("%s", l.in)
}

// mbarArrival lowers arrivals, with or without a result in front.
func (l *lowerer) mbarArrival(plain, expecting func(old, n, _ uint64) uint64) error {
	f := plain
	if l.has("expect_tx") {
		f = expecting
	}
	if len(l.in.Operands) > 0 && l.in.Operands[0].Kind == ptx.OpAddr {
		return l.mbarUpdate(0, false, f)
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
