package policy

import (
	"testing"
	"time"
)

const accountPeriod = 5 * time.Second

// account runs for a period and tells the policy what the driver would say: says makes that of the
// GPU time that a program got.
func (s *sim) account(says func(p *program, got time.Duration) time.Duration) {
	before := make([]time.Duration, len(s.list))
	for i, p := range s.list {
		before[i] = p.done
	}
	s.run(accountPeriod)
	for i, p := range s.list {
		s.gpu.Account(p.Share, epoch.Add(s.now), says(p, p.done-before[i]), accountPeriod)
	}
	s.decide()
}

func truth(_ *program, got time.Duration) time.Duration { return got }

// parts runs so many periods and returns what part of the time each program got in the last of
// them.
func (s *sim) parts(periods, last int, says func(*program, time.Duration) time.Duration) []float64 {
	for range periods - last {
		s.account(says)
	}
	before := make([]time.Duration, len(s.list))
	for i, p := range s.list {
		before[i] = p.done
	}
	for range last {
		s.account(says)
	}
	out := make([]float64, len(s.list))
	for i, p := range s.list {
		out[i] = float64(p.done-before[i]) / float64(last) / float64(accountPeriod)
	}
	return out
}

// TestForgedShare: a virtual GPU whose words always say that nothing of it is on the GPU gets half
// of a GPU on which it has a tenth. By the driver's account it gets little more than its tenth.
func TestForgedShare(t *testing.T) {
	forge := func(periods, last int, says func(*program, time.Duration) time.Duration) []float64 {
		s := &sim{t: t}
		s.add(Limits{Weight: 1}, program{kernel: 100 * time.Microsecond, forges: true})
		s.add(Limits{Weight: 9}, program{kernel: 100 * time.Microsecond})
		return s.parts(periods, last, says)
	}
	without, with := forge(2, 1, func(*program, time.Duration) time.Duration { return 0 }), forge(13, 12, truth)
	t.Logf("without the driver's account %.3f, with it %.3f", without, with)
	if without[0] < 0.4 {
		t.Errorf("the simulated forger gains nothing: %v", without)
	}
	if with[0] > 0.15 || with[1] < 0.84 {
		t.Errorf("a forger with a share of 1 beside 9 has %v", with)
	}
}

// TestForgedBesidePauses: the same beside one that pauses for a moment now and then: a forger,
// which is never seen to have anything on the GPU, queues as much as it likes in each pause. When
// nobody else has been there for a while it has the GPU, whatever it was charged.
func TestForgedBesidePauses(t *testing.T) {
	for _, pause := range []time.Duration{70 * time.Microsecond, time.Millisecond, 20 * time.Millisecond} {
		s := &sim{t: t}
		s.add(Limits{Weight: 1}, program{kernel: 100 * time.Microsecond, forges: true})
		honest := s.add(Limits{Weight: 9}, program{kernel: 100 * time.Microsecond, batch: 100, pause: pause})
		with := s.parts(13, 10, truth)
		t.Logf("pauses of %v: %.3f", pause, with)
		if with[0] > 0.15 {
			t.Errorf("beside one with a share of 9 that pauses for %v a forger has %v", pause, with)
		}
		honest.pause = time.Hour
		s.run(accountPeriod)
		if last := s.parts(1, 1, truth); last[0] < 0.9 {
			t.Errorf("pauses of %v: with nobody else there it has %v", pause, last)
		}
	}
}

// TestForgedCap: the same for a cap, alone and beside another.
func TestForgedCap(t *testing.T) {
	forge := func(beside bool, periods, last int, says func(*program, time.Duration) time.Duration) []float64 {
		s := &sim{t: t}
		s.add(Limits{Weight: 1, Cap: 20}, program{kernel: 100 * time.Microsecond, forges: true})
		if beside {
			s.add(Limits{Weight: 1}, program{kernel: 100 * time.Microsecond})
		}
		return s.parts(periods, last, says)
	}
	for _, beside := range []bool{false, true} {
		without, with := forge(beside, 2, 1, func(*program, time.Duration) time.Duration { return 0 }), forge(beside, 9, 8, truth)
		t.Logf("beside another %v: without the driver's account %.3f, with it %.3f", beside, without, with)
		if without[0] < 0.4 {
			t.Errorf("beside another %v: the simulated forger gains nothing: %v", beside, without)
		}
		if with[0] > 0.27 {
			t.Errorf("beside another %v: a forger with a cap of 20 %% has %v", beside, with)
		}
	}
}

// TestHonestAccounts: who is honest is not charged, whatever its programs are like: also if the
// driver's account is late by a second, says a tenth too much, or counts each process as if it were
// alone.
func TestHonestAccounts(t *testing.T) {
	mixes := map[string]func(*sim){
		"full load": func(s *sim) {
			s.add(Limits{Weight: 3}, program{kernel: 50 * time.Microsecond})
			s.add(Limits{Weight: 1}, program{kernel: 4 * time.Millisecond})
		},
		"bursts": func(s *sim) {
			s.add(Limits{Weight: 1}, program{kernel: time.Millisecond, batch: 900, pause: 2 * time.Second})
			s.add(Limits{Weight: 1}, program{kernel: time.Millisecond})
		},
		"interactive": func(s *sim) {
			s.add(Limits{Weight: 1}, program{kernel: 200 * time.Microsecond, batch: 5, pause: 20 * time.Millisecond})
			s.add(Limits{Weight: 1}, program{kernel: time.Millisecond})
		},
		"long kernels": func(s *sim) {
			s.add(Limits{Weight: 1}, program{kernel: 300 * time.Millisecond})
			s.add(Limits{Weight: 1}, program{kernel: time.Millisecond})
		},
		"cap": func(s *sim) { s.add(Limits{Weight: 1, Cap: 30}, program{kernel: time.Millisecond}) },
		"alone": func(s *sim) {
			s.add(Limits{Weight: 1}, program{kernel: time.Millisecond})
		},
	}
	for mix, add := range mixes {
		for kind, says := range map[string]func(late map[*program]time.Duration) func(*program, time.Duration) time.Duration{
			"high": func(map[*program]time.Duration) func(*program, time.Duration) time.Duration {
				return func(_ *program, got time.Duration) time.Duration { return got + got/10 }
			},
			"late": func(late map[*program]time.Duration) func(*program, time.Duration) time.Duration {
				return func(p *program, got time.Duration) time.Duration {
					// A fifth of a period is in the next account.
					told := got - got/5 + late[p]
					late[p] = got / 5
					return told
				}
			},
		} {
			s := &sim{t: t}
			add(s)
			s.parts(3, 1, says(map[*program]time.Duration{}))
			for i, p := range s.list {
				if p.Charged != 0 || !p.suspect.IsZero() {
					t.Errorf("%s, %s account: program %d was charged %v of %v", mix, kind, i, p.Charged, p.Card)
				}
			}
		}
	}
	s := &sim{t: t} // each as if it were alone
	mixes["full load"](s)
	s.parts(3, 1, func(*program, time.Duration) time.Duration { return accountPeriod })
	for i, p := range s.list {
		if p.Charged != 0 {
			t.Errorf("two seem to have all the time each, and program %d was charged %v", i, p.Charged)
		}
	}
}

// TestForgerPaysForAllOfIt: of what the driver says, and nobody counted, all is charged, period by
// period, and once.
func TestForgerPaysForAllOfIt(t *testing.T) {
	for what, l := range map[string]Limits{"a share": {Weight: 1}, "a cap": {Weight: 1, Cap: 20}} {
		var g GPU
		now := epoch
		s := g.Join(now, l)
		charged := time.Duration(0)
		for n := range 20 {
			now = now.Add(accountPeriod)
			charged += g.Account(s, now, accountPeriod, accountPeriod)
			if s.byHeld.at != s.counted() || s.byBusy.at != s.BusyTotal {
				t.Fatalf("%s: %v of %v and %v of %v are accounted for", what, s.byHeld.at, s.counted(), s.byBusy.at, s.BusyTotal)
			}
			if used := time.Duration(n+1) * accountPeriod; charged < used-accountPeriod || charged > used {
				t.Fatalf("%s: of %v that nobody counted %v are charged", what, used, charged)
			}
		}
	}
}

// TestChargesAreNoCredit: what is charged by the driver's account is no time of which workers may
// say that they were busy.
func TestChargesAreNoCredit(t *testing.T) {
	for what, l := range map[string]Limits{"a share": {Weight: 1}, "a cap": {Weight: 1, Cap: 20}} {
		var g GPU
		now, charged := epoch, time.Duration(0)
		s := g.Join(now, l)
		for range 3 {
			now = now.Add(accountPeriod)
			charged += g.Account(s, now, accountPeriod, accountPeriod)
			busy := s.BusyTotal
			g.Report(s, now, Report{Active: true, Drained: true, Busy: time.Hour})
			if d := s.BusyTotal - busy; d != 0 {
				t.Errorf("%s: %v were charged, %v of them are said to be busy", what, charged, d)
			}
			g.Report(s, now, Report{Drained: true})
		}
		if charged == 0 {
			t.Errorf("%s: nothing is charged", what)
		}
	}
}

// TestAccountsOfMoreThanThereIs: what a driver says beyond the period, or below nothing, is not
// believed.
func TestAccountsOfMoreThanThereIs(t *testing.T) {
	s := &sim{t: t}
	s.add(Limits{Weight: 1}, program{kernel: 100 * time.Microsecond})
	sh := s.list[0].Share
	for _, said := range []struct{ card, counts time.Duration }{{3 * accountPeriod, accountPeriod}, {-time.Second, 0}, {time.Second, time.Second}, {accountPeriod, accountPeriod}} {
		before := sh.Card
		s.gpu.Account(sh, epoch.Add(s.now), said.card, accountPeriod)
		if got := sh.Card - before; got != said.counts {
			t.Errorf("%v of %v: %v counts", said.card, accountPeriod, got)
		}
		if s.gpu.users[0].at.Equal(epoch.Add(s.now)) != (said.counts > 0) {
			t.Errorf("%v: on the GPU at %v", said.card, s.gpu.users[0].at)
		}
		s.now += tick
	}
}
