package policy

import (
	"math/rand/v2"
	"testing"
	"time"
)

// program is a session's work, as a worker with a gate passes it on: kernels of some length, at
// most budget of them in flight.
type program struct {
	*Share
	kernel time.Duration // GPU time of each
	batch  int           // kernels until it pauses; 0: it never does
	pause  time.Duration
	flight int  // kernels in flight
	forges bool // its worker believes that whatever was submitted is finished
	stuck  bool // what it submits waits for something, and never comes onto the GPU

	left     time.Duration // of the kernel on the GPU
	inBatch  int           // kernels submitted of this batch
	wakes    time.Duration // when the pause ends
	told     Report
	done     time.Duration // GPU time that it got
	busy     time.Duration // since the last report
	finished int
	since    time.Duration   // a batch that has been wanted since; -1: none
	lat      []time.Duration // of batches
	quiet    time.Duration   // nothing on the GPU since
}

const (
	tick  = 10 * time.Microsecond
	grace = 60 * time.Microsecond
)

// sim is one GPU with programs. The GPU parts its time evenly among those that have work on it.
type sim struct {
	t    *testing.T
	gpu  GPU
	now  time.Duration
	due  time.Time
	list []*program
	idle time.Duration // nothing was on the GPU though somebody wanted it
}

var epoch = time.Unix(1_000_000, 0)

func (s *sim) add(l Limits, p program) *program {
	q := &p
	q.Share = s.gpu.Join(epoch.Add(s.now), l)
	q.since = -1
	s.list = append(s.list, q)
	s.decide()
	return q
}

func (s *sim) decide() {
	now := epoch.Add(s.now)
	for _, p := range s.list {
		r := p.report(s.now)
		s.gpu.Report(p.Share, now, r)
		p.told, p.busy = r, 0
	}
	s.due = s.gpu.Decide(now)
	if !s.due.IsZero() && !s.due.After(now) {
		s.t.Fatalf("at %v: asks to be called at %v", s.now, s.due.Sub(epoch))
	}
	free := 0
	for _, p := range s.list {
		if p.Mode == Free {
			free++
		}
	}
	if free > 1 {
		s.t.Fatalf("at %v: %d are free", s.now, free)
	}
}

// wants reports whether p would submit if it could.
func (p *program) wants(now time.Duration) bool {
	return now >= p.wakes && (p.batch == 0 || p.inBatch < p.batch)
}

func (p *program) report(now time.Duration) Report {
	closed := p.Mode == Closed
	if p.forges {
		return Report{Active: closed && p.wants(now), Drained: true}
	}
	return Report{
		Active:  p.flight > 0 || p.wants(now) && (closed || p.flight > 0) || p.flight == 0 && now-p.quiet < grace && p.told.Active,
		Drained: p.flight == 0,
		Busy:    p.busy,
	}
}

func (p *program) limit() int {
	if p.Mode == Free || p.forges {
		return 1000
	}
	return max(int(p.Budget/p.kernel), 2)
}

// step moves the world by a tick.
func (s *sim) step() {
	n := 0
	wanted := false
	for _, p := range s.list {
		if p.wants(s.now) && p.since < 0 && p.batch > 0 && p.inBatch == 0 {
			p.since = s.now
		}
		for p.Mode != Closed && p.wants(s.now) && p.flight < p.limit() {
			if p.flight == 0 {
				p.left = p.kernel
			}
			p.flight++
			p.inBatch++
		}
		wanted = wanted || p.wants(s.now) && !p.Throttled()
		if p.flight > 0 && !p.stuck {
			n++
		}
	}
	if n == 0 && wanted {
		s.idle += tick
	}
	for _, p := range s.list {
		if p.flight == 0 {
			continue
		}
		if p.stuck {
			p.busy += tick
			continue
		}
		part := tick / time.Duration(n)
		p.done += part
		if p.Mode != Free { // it has no fences then
			p.busy += tick
		}
		if p.left -= part; p.left <= 0 {
			p.flight--
			p.finished++
			p.left += p.kernel
			if p.flight == 0 {
				p.quiet = s.now
			}
			if p.batch > 0 && p.flight == 0 && p.inBatch == p.batch {
				p.lat = append(p.lat, s.now-p.since)
				p.inBatch, p.since, p.wakes = 0, -1, s.now+p.pause
			}
		}
	}
	s.now += tick
	call := !s.due.IsZero() && !epoch.Add(s.now).Before(s.due)
	for _, p := range s.list {
		r := p.report(s.now)
		call = call || r.Active != p.told.Active || p.Mode == Closed && r.Drained != p.told.Drained
	}
	if call {
		s.decide()
	}
}

func (s *sim) run(d time.Duration) {
	for end := s.now + d; s.now < end; {
		s.step()
	}
}

// shares runs for d after a warm-up, and returns the part of the time that each got.
func (s *sim) shares(d time.Duration) []float64 {
	s.run(300 * time.Millisecond)
	before := make([]time.Duration, len(s.list))
	for i, p := range s.list {
		before[i], p.lat = p.done, nil
	}
	s.idle = 0
	s.run(d)
	out := make([]float64, len(s.list))
	for i, p := range s.list {
		out[i] = float64(p.done-before[i]) / float64(d)
	}
	return out
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return -1
	}
	d = append([]time.Duration(nil), d...)
	for i := range d {
		for j := i; j > 0 && d[j] < d[j-1]; j-- {
			d[j], d[j-1] = d[j-1], d[j]
		}
	}
	return d[len(d)/2]
}

// kernels are lengths that programs have.
var kernels = []time.Duration{10 * time.Microsecond, 50 * time.Microsecond, 700 * time.Microsecond, 4 * time.Millisecond}

func near(got, want, off float64) bool { return got > want-off && got < want+off }

// TestWeights: under full load each gets its weight's part, whatever the lengths of the kernels.
func TestWeights(t *testing.T) {
	for _, weights := range [][]uint32{{3, 1}, {1, 1}, {100, 50, 25}, {1, 1, 1, 1, 1, 1, 1, 1}} {
		for i, k := range kernels {
			for _, other := range []time.Duration{k, kernels[(i+1)%len(kernels)]} {
				s := &sim{t: t}
				var sum uint32
				for i, w := range weights {
					p := program{kernel: k}
					if i == 0 {
						p.kernel = other
					}
					s.add(Limits{Weight: w}, p)
					sum += w
				}
				got := s.shares(time.Second)
				for i, w := range weights {
					want := float64(w) / float64(sum)
					if !near(got[i], want, want*0.08+0.005) {
						t.Errorf("weights %v, kernels %v and %v: %v, want %.3f of %d", weights, other, k, got, want, i)
					}
				}
				if s.idle > 60*time.Millisecond {
					t.Errorf("weights %v, kernels %v and %v: idle for %v", weights, other, k, s.idle)
				}
			}
		}
	}
}

// TestAlone: one that is alone is free, and has the whole GPU.
func TestAlone(t *testing.T) {
	s := &sim{t: t}
	p := s.add(Limits{Weight: 1}, program{kernel: 20 * time.Microsecond})
	s.add(Limits{Weight: 100}, program{kernel: 20 * time.Microsecond, batch: 1, pause: time.Hour}).wakes = time.Hour
	got := s.shares(time.Second)
	if p.Mode != Free || got[0] < 0.999 {
		t.Errorf("%v, %v", p.Mode, got)
	}
	if !s.due.IsZero() {
		t.Errorf("wants to look again after %v", s.due.Sub(epoch)-s.now)
	}
}

// TestCap: a cap holds, alone and beside others, and what is left goes to those.
func TestCap(t *testing.T) {
	for _, k := range kernels {
		for _, c := range []uint32{1, 25, 90} {
			s := &sim{t: t}
			s.add(Limits{Weight: 1, Cap: c}, program{kernel: k})
			if got := s.shares(2 * time.Second); !near(got[0], float64(c)/100, 0.02) {
				t.Errorf("kernel %v, cap %d alone: %v", k, c, got)
			}
			if c != 25 {
				continue
			}
			s = &sim{t: t}
			s.add(Limits{Weight: 1000, Cap: c}, program{kernel: k})
			s.add(Limits{Weight: 1}, program{kernel: k})
			got := s.shares(3 * time.Second)
			if !near(got[0], float64(c)/100, 0.03) || got[0]+got[1] < 0.95 {
				t.Errorf("kernel %v, cap %d beside another: %v", k, c, got)
			}
		}
	}
}

// TestTypist: one that needs little waits little, and costs the other what it uses.
func TestTypist(t *testing.T) {
	for _, k := range kernels[:2] {
		alone := &sim{t: t}
		a := alone.add(Limits{Weight: 1}, program{kernel: 20 * time.Microsecond, batch: 1, pause: 5 * time.Millisecond})
		alone.shares(time.Second)
		s := &sim{t: t}
		p := s.add(Limits{Weight: 1}, program{kernel: 20 * time.Microsecond, batch: 1, pause: 5 * time.Millisecond})
		s.add(Limits{Weight: 1}, program{kernel: k})
		got := s.shares(2 * time.Second)
		if m, most := median(p.lat), median(a.lat)+2*FlightInteractive; m < 0 || m > most {
			t.Errorf("beside kernels of %v: %v, alone %v", k, m, median(a.lat))
		}
		if got[1] < 0.93 {
			t.Errorf("beside kernels of %v: the other has %v", k, got)
		}
	}
}

// TestBackToBack: a program that waits for each kernel gets its part, too.
func TestBackToBack(t *testing.T) {
	s := &sim{t: t}
	p := s.add(Limits{Weight: 1}, program{kernel: 40 * time.Microsecond, batch: 1, pause: 30 * time.Microsecond})
	s.add(Limits{Weight: 1}, program{kernel: 100 * time.Microsecond})
	got := s.shares(2 * time.Second)
	if !near(got[0], 0.5*40/60, 0.1) || got[1] < 0.35 {
		t.Errorf("%v", got)
	}
	if m := median(p.lat); m > 120*time.Microsecond {
		t.Errorf("median %v", m)
	}
}

// TestLongKernels: beside kernels that nobody can stop, others get their part, and never wait
// longer than Patience and the slices of the rest.
func TestLongKernels(t *testing.T) {
	s := &sim{t: t}
	s.add(Limits{Weight: 1}, program{kernel: 300 * time.Millisecond})
	p := s.add(Limits{Weight: 1}, program{kernel: time.Millisecond})
	got := s.shares(5 * time.Second)
	if got[1] < 0.35 || got[0] < 0.3 {
		t.Errorf("%v", got)
	}
	if p.finished < 500 {
		t.Errorf("%d", p.finished)
	}
}

// TestComesBack: what one did not use while it was away is not made up for; what another took while
// it was alone is no debt.
func TestComesBack(t *testing.T) {
	s := &sim{t: t}
	s.add(Limits{Weight: 1}, program{kernel: 50 * time.Microsecond})
	late := s.add(Limits{Weight: 1}, program{kernel: 50 * time.Microsecond})
	late.wakes = 5 * time.Second
	s.run(5 * time.Second)
	before := late.done
	s.run(400 * time.Millisecond)
	if got := float64(late.done-before) / float64(400*time.Millisecond); !near(got, 0.5, 0.12) {
		t.Errorf("the late one has %.3f", got)
	}
}

// TestAny: whatever programs there are, nobody starves, caps hold, and the GPU does not idle while
// one may run.
func TestAny(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := &sim{t: t}
		var sum float64
		for range 2 + r.IntN(5) {
			p := program{kernel: time.Duration(5+r.IntN(2000)) * time.Microsecond}
			l := Limits{Weight: 1 + r.Uint32N(10)}
			switch r.IntN(4) {
			case 0:
				p.batch, p.pause = 1+r.IntN(20), time.Duration(r.IntN(20000))*time.Microsecond
			case 1:
				l.Cap = 5 + r.Uint32N(90)
			}
			s.add(l, p)
			sum += float64(l.Weight)
		}
		got := s.shares(1500 * time.Millisecond)
		for i, p := range s.list {
			if p.Cap > 0 && got[i] > float64(p.Cap)/100+0.03 {
				t.Errorf("seed %d: %d has %.3f under a cap of %d", seed, i, got[i], p.Cap)
			}
			least := float64(p.Weight) / sum
			if p.Cap > 0 {
				least = min(least, float64(p.Cap)/100)
			}
			if p.batch == 0 && got[i] < 0.8*least-0.02 {
				t.Errorf("seed %d: %d has %.3f of %.3f: %v", seed, i, got[i], least, got)
			}
			if p.batch > 0 && len(p.lat) == 0 {
				t.Errorf("seed %d: %d (%+v) starves: %v", seed, i, *p, got)
			}
		}
		if s.idle > 100*time.Millisecond {
			t.Errorf("seed %d: idle for %v", seed, s.idle)
		}
	}
}

// TestReports: what workers say moves nothing beyond what the clock allows.
func TestReports(t *testing.T) {
	var g GPU
	now := epoch
	liar := g.Join(now, Limits{Weight: 1, Cap: 50})
	honest := g.Join(now, Limits{Weight: 1})
	for i := range 20000 {
		now = now.Add(100 * time.Microsecond)
		g.Report(liar, now, Report{Active: true, Drained: i%2 == 0, Busy: time.Duration(1-i%3) * 1000 * time.Hour})
		g.Report(honest, now, Report{Active: true, Drained: honest.Mode == Closed, Busy: 50 * time.Microsecond})
		g.Decide(now)
	}
	if liar.BusyTotal > 2*time.Second || liar.Held < 0 || liar.Held+honest.Held > 2*time.Second+time.Millisecond {
		t.Errorf("%v busy, %v and %v held", liar.BusyTotal, liar.Held, honest.Held)
	}
	if honest.Held < 900*time.Millisecond {
		t.Errorf("the honest one held %v", honest.Held)
	}
	g.Decide(now.Add(-time.Hour)) // a clock that steps back charges nothing
	if liar.Held < 0 {
		t.Errorf("%v", liar.Held)
	}
}
