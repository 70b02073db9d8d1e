package policy

import (
	"testing"
	"time"
)

// TestAccountOfBefore: the driver's account of a period in which one joined, as after another
// scheduler has begun, is of time that nobody here could count: it is charged nothing for it. From
// the next period on it is.
func TestAccountOfBefore(t *testing.T) {
	for what, l := range map[string]Limits{"a share": {Weight: 1}, "a cap": {Weight: 1, Cap: 20}} {
		var g GPU
		s := g.Join(epoch, l)
		if n := g.Account(s, epoch.Add(accountPeriod/10), accountPeriod, accountPeriod); n != 0 || s.Charged != 0 || s.Card != accountPeriod {
			t.Errorf("%s: charged %v for what was before it joined", what, n)
		}
		if n := g.Account(s, epoch.Add(accountPeriod/10+accountPeriod), accountPeriod, accountPeriod); n == 0 {
			t.Errorf("%s: nothing is charged in the period that follows", what)
		}
	}
}

// TestCapSetWithinAPeriod: who was free until an operator set a cap is not charged for what it used
// before, of which nothing was measured, and goes on with the cap.
func TestCapSetWithinAPeriod(t *testing.T) {
	for _, before := range []uint32{0, 100} {
		s := &sim{t: t}
		p := s.add(Limits{Weight: 1, Cap: before}, program{kernel: time.Millisecond})
		s.parts(3, 1, truth)
		s.run(accountPeriod * 9 / 10)
		s.gpu.Limit(p.Share, epoch.Add(s.now), Limits{Weight: 1, Cap: 20})
		s.decide()
		s.run(accountPeriod / 10)
		s.gpu.Account(p.Share, epoch.Add(s.now), accountPeriod*9/10+accountPeriod/50, accountPeriod)
		s.decide()
		if p.Charged != 0 || !p.suspect.IsZero() {
			t.Errorf("after a cap of %d %%: charged %v", before, p.Charged)
		}
		if got := s.parts(3, 1, truth); !near(got[0], 0.2, 0.03) {
			t.Errorf("after a cap of %d %%: it has %v under a cap of 20 %%", before, got)
		}
		// Other limits begin nothing anew: an account that is compared stays so.
		s.gpu.Limit(p.Share, epoch.Add(s.now), Limits{Weight: 2, Cap: 10})
		if n := s.gpu.Account(p.Share, epoch.Add(s.now), accountPeriod, accountPeriod); n == 0 {
			t.Error("another cap has the account forgotten")
		}
	}
}

// TestForgersByTurns: two that forge and have the GPU by turns, one period each, are charged as
// others are, wherever in a period their accounts come: it is not as if the driver counted each as
// alone. Nor is it where the second has a little of each period.
func TestForgersByTurns(t *testing.T) {
	for _, apart := range []time.Duration{0, time.Millisecond, accountPeriod / 4, accountPeriod / 2, accountPeriod * 9 / 10} {
		for _, leaves := range []bool{false, true} {
			var g GPU
			a := g.Join(epoch, Limits{Weight: 1})
			b := g.Join(epoch, Limits{Weight: 1})
			var used, charged time.Duration
			for n := 1; n <= 40; n++ { // a has the odd periods
				end := epoch.Add(time.Duration(n) * accountPeriod)
				// b's account is later, and has the end of its turn.
				ofA, ofB := accountPeriod, apart
				if n%2 == 0 {
					ofA, ofB = 0, accountPeriod-apart
				}
				used += ofA + ofB
				charged += g.Account(a, end, ofA, accountPeriod)
				charged += g.Account(b, end.Add(apart), ofB, accountPeriod)
				if leaves && n%2 == 0 { // its VM ends, and another comes
					g.Leave(b)
					b = g.Join(end.Add(apart), Limits{Weight: 1})
				}
			}
			if charged < used*8/10 || charged > used {
				t.Errorf("accounts %v apart, the second leaves %v: of %v that nobody counted %v are charged", apart, leaves, used, charged)
			}
		}
	}
}

// TestBesideOneThatIsStuck: a virtual GPU whose work waits for ever, as for a value that nobody
// writes, and never comes onto the GPU, keeps its turns, but has another charged for nothing: the
// half of the time that it is taken for is not hidden by that one.
func TestBesideOneThatIsStuck(t *testing.T) {
	for weight, least := range map[uint32]float64{1: 0.1, 9: 0.5, 81: 0.9} {
		s := &sim{t: t}
		s.add(Limits{Weight: 9}, program{kernel: time.Millisecond, stuck: true})
		honest := s.add(Limits{Weight: weight}, program{kernel: 100 * time.Microsecond})
		got := s.parts(3, 2, truth)
		t.Logf("weight %d: %.3f", weight, got)
		if got[1] < least || honest.Charged != 0 || !honest.suspect.IsZero() {
			t.Errorf("beside one with a weight of 9 that has nothing on the GPU an honest one with %d has %v, and is charged %v", weight, got, honest.Charged)
		}
	}
}

// TestLongKernelsBesidePauses: kernels that are longer than slices have their share of time, and no
// more, beside one that pauses for a moment now and then; when that one has been away for a while
// they have the GPU.
func TestLongKernelsBesidePauses(t *testing.T) {
	for _, kernel := range []time.Duration{10 * time.Millisecond, time.Second} {
		for _, pause := range []time.Duration{70 * time.Microsecond, time.Millisecond} {
			s := &sim{t: t}
			s.add(Limits{Weight: 1}, program{kernel: kernel})
			p := program{kernel: 100 * time.Microsecond}
			if pause > 0 {
				p.batch, p.pause = 100, pause
			}
			honest := s.add(Limits{Weight: 9}, p)
			got := s.parts(3, 2, truth)
			t.Logf("kernels of %v beside pauses of %v: %.3f", kernel, pause, got)
			if got[0] > 0.2 || got[0] < 0.05 || got[1] < 0.7 {
				t.Errorf("kernels of %v beside pauses of %v have %v with a share of 1 beside 9", kernel, pause, got)
			}
			honest.batch, honest.pause = 100, time.Hour
			s.run(3 * time.Second)
			if last := s.parts(1, 1, truth); last[0] < 0.9 {
				t.Errorf("kernels of %v: with nobody else there they have %v", kernel, last)
			}
		}
	}
}
