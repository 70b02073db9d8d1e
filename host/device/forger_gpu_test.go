package device_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"causeway/host/inventory"
	"causeway/host/schedule"
)

// trial is one row: what two virtual GPUs, or one with a cap, get.
type trial struct {
	what          string
	share, beside uint32 // 0: nobody holds it back, or nobody else is there
	cap           uint32
	forge         bool
	account       bool
	periods       int
	promised      float64 // part of the GPU
}

// accountedFrom is the first period in which a forger can have been charged: of those ahead one
// began before there was an account, and until two have been the scheduler does not know whether
// the driver divides the time.
const accountedFrom = 3

// outcome is what the first of a trial got: part of the kernels that both finished, by period, and
// of the time as the driver and the scheduler have it.
type outcome struct {
	parts []float64
	// From accountedFrom on; of a forger from a charge to a later one, as it is barred behind each.
	later   float64
	card    [2]time.Duration
	counted time.Duration
	charged time.Duration
	known   bool
}

func (o *outcome) String() string {
	text := ""
	for _, p := range o.parts {
		text += fmt.Sprintf(" %.2f", p)
	}
	return fmt.Sprintf("part by period%s, then %.3f; driver %.2f and %.2f s, counted %.2f s, charged %.2f s", text, o.later, o.card[0].Seconds(), o.card[1].Seconds(), o.counted.Seconds(), o.charged.Seconds())
}

// begins has two virtual GPUs, or one with a cap, begin to work.
func (c *contest) begins(x trial, kernel time.Duration) []*contender {
	c.Helper()
	c.begin()
	list := []*contender{c.enter("first", x.share, x.cap, x.account)}
	if x.beside > 0 || x.cap == 0 {
		list = append(list, c.enter("second", x.beside, 0, x.account))
	}
	c.calibrate(list[0], kernel)
	for _, m := range list {
		m.turns, m.each = list[0].turns, list[0].each
		go m.run()
	}
	c.begin(list...)
	if x.forge {
		c.forge(list[0])
	}
	time.Sleep(c.period / 5)
	return list
}

// ends has them end.
func (c *contest) ends(list []*contender) {
	c.Helper()
	for _, m := range list {
		m.stop.Store(true)
	}
	for _, m := range list {
		if err := await(c.T, "a program does not end", m.ended); err != nil {
			c.Error(err)
		}
		m.vm.cancel()
	}
}

// mark is how far both are at a moment.
type mark struct {
	counts [2]uint64
	at     time.Time
}

// hold runs one trial.
func (c *contest) hold(x trial, kernel time.Duration) (o outcome) {
	list := c.begins(x, kernel)
	before, known := c.cards()
	held := c.share("first")
	part := func(from, to mark) float64 {
		mine, all := float64(to.counts[0]-from.counts[0]), float64(to.counts[0]-from.counts[0]+to.counts[1]-from.counts[1])
		if len(list) == 1 { // of the time there is
			all = float64(to.at.Sub(from.at)) / float64(list[0].each)
		}
		return mine / max(all, 1)
	}
	begin := mark{c.counts(list), time.Now()}
	last, later, charged := begin, begin, []mark(nil)
	for i := 0; i < x.periods || x.forge && x.account && len(charged) < 2 && i < 2*x.periods; i++ {
		for end := begin.at.Add(time.Duration(i+1) * c.period); time.Now().Before(end); time.Sleep(min(c.period/50, max(time.Until(end), 0))) {
			if now := c.share("first").Charged; now > o.charged {
				o.charged, charged = now, append(charged, mark{c.counts(list), time.Now()})
			}
		}
		now := mark{c.counts(list), time.Now()}
		o.parts = append(o.parts, part(last, now))
		if last = now; i < min(accountedFrom, x.periods-1) {
			later = now
		}
	}
	if o.later = part(later, last); len(charged) > 1 {
		o.later = part(charged[0], charged[len(charged)-1])
	}
	after, _ := c.cards()
	end := c.share("first")
	o.known, o.counted, o.charged = known, counted(end)-counted(held), end.Charged
	for i := range o.card {
		o.card[i] = after[i] - before[i]
	}
	c.ends(list)
	return o
}

// counted is what was counted of a virtual GPU, without what it was charged.
func counted(s schedule.ShareStatus) time.Duration { return max(s.Held, s.Busy) - s.Charged }

// TestForgerOnGPU has a program overwrite the words by which its GPU time is counted, beside an
// honest one and under a cap. What it gets, and what the driver says of each, is what it is for, on
// a machine with a GPU (CAUSEWAY_TEST_GPU=cuda, two and a half minutes). Without one see overSoft
// and noWords.
func TestForgerOnGPU(t *testing.T) {
	c := &contest{T: t, gpu: "soft", socket: filepath.Join(t.TempDir(), "scheduler"), period: 500 * time.Millisecond}
	c.serve()
	switch os.Getenv(gpuEnv) {
	case nestedGPU:
		c.gpu = "cuda"
		c.overSoft()
		return
	case "cuda":
		c.gpu, c.period = "cuda", 5*time.Second // as device processes have it
	default:
		c.noWords()
		return
	}
	lib, err := inventory.LoadNVML("libnvidia-ml.so.1")
	if err == nil {
		c.nvml, err = inventory.OpenNVML(lib, func([]inventory.Identity) ([]int, error) { return []int{0}, nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []trial{
		{what: "two honest ones that nobody holds back", account: true, periods: 2},
		{what: "1:1, honest", share: 1, beside: 1, account: true, periods: 3, promised: 0.5},
		{what: "1:1, forged", share: 1, beside: 1, forge: true, account: true, periods: 5, promised: 0.5},
		{what: "1:9, forged, not compared", share: 1, beside: 9, forge: true, periods: 2, promised: 0.1},
		{what: "1:9, forged", share: 1, beside: 9, forge: true, account: true, periods: 7, promised: 0.1},
		{what: "a cap of 20 %, alone, forged", share: 1, cap: 20, forge: true, account: true, periods: 7, promised: 0.2},
	} {
		o := c.hold(x, 100*time.Microsecond)
		t.Logf("%-40s promised %.2f: %v", x.what, x.promised, &o)
		switch {
		case !o.known:
			t.Errorf("%s: the driver does not tell of processes", x.what)
		case !x.forge && o.charged > 0:
			t.Errorf("%s: charged", x.what)
		case x.forge && !x.account && o.later < 1.5*x.promised:
			t.Errorf("%s: the forger gains nothing: this shows nothing", x.what)
		case x.forge && x.account && (o.charged == 0 || o.later > 1.5*x.promised):
			t.Errorf("%s: it has %.3f", x.what, o.later)
		}
	}
}

// overSoft is a forger on the back end of real GPUs whose driver is the software GPU: there the
// words are as those of a GPU, and kernels that are done stand for the driver's account. Its words
// hide what it does; it is charged, and then held back.
func (c *contest) overSoft() {
	list := c.begins(trial{share: 1, beside: 9, forge: true, account: true}, time.Millisecond)
	before, _ := c.cards()
	held := c.share("first")
	var did, seen time.Duration
	eventually(c.T, "the forger hides nothing", func() bool {
		now, _ := c.cards()
		did, seen = now[0]-before[0], counted(c.share("first"))-counted(held)
		return did > c.period/2 && seen < did/2
	})
	var charged, last time.Duration
	for late := time.Now().Add(time.Minute); ; last = charged {
		eventually(c.T, "not charged", func() bool {
			charged = c.share("first").Charged
			return charged > last
		})
		barred := time.Now().Add(8 * (charged - last) / 2) // half of it
		time.Sleep(c.period / 5)                           // what it had queued while it could
		at := c.counts(list)
		now := at
		for now[1] < at[1]+40 && time.Now().Before(barred) {
			time.Sleep(time.Millisecond)
			now = c.counts(list)
		}
		mine, others := now[0]-at[0], now[1]-at[1]
		if others < 40 && time.Now().Before(late) {
			continue // a machine that has other things to do
		}
		c.Logf("1:9, forged: %v counted of %v, charged %v; of the next %d kernels %d were its", seen, did, charged-last, mine+others, mine)
		if mine > others/3 {
			c.Error("it goes on as it did")
		}
		break
	}
	c.ends(list)
}

// noWords checks that a worker with the software GPU has no such words while its time is counted.
func (c *contest) noWords() {
	m := c.enter("first", 1, 50, false)
	m.turns = 64
	go m.run()
	eventually(c.T, "nothing is counted", func() bool { return c.share("first").Busy > 0 })
	if found, err := findWords(m.pid); err != nil || len(found) > 0 {
		c.Errorf("%x, %v", found, err)
	}
	m.stop.Store(true)
	if err := await(c.T, "the program does not end", m.ended); err != nil {
		c.Error(err)
	}
}
