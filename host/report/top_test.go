package report

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"causeway/host/api"
)

// step makes a reading of one vGPU, seconds after noon.
func step(seconds int, pid int, past api.Counters, sessions ...api.Session) *Reading {
	s := &api.Status{PID: pid, Started: noon.Add(-time.Hour), Past: past, Sessions: sessions}
	if pid != 1 {
		s.Started = noon.Add(time.Second)
	}
	return &Reading{Time: noon.Add(time.Duration(seconds) * time.Second), VGPUs: []api.VGPU{{Spec: api.Spec{VM: "a", Name: "g"}, State: api.Connected, Status: s}}}
}

func session(id uint64, started int, launches uint64, busy time.Duration) api.Session {
	return api.Session{ID: id, Started: noon.Add(time.Duration(started) * time.Second), Counters: api.Counters{Launches: launches, BusyNanos: uint64(busy)}}
}

func TestMeter(t *testing.T) {
	var m Meter
	past := func(n uint64) api.Counters { return api.Counters{Launches: n} }
	for _, c := range []struct {
		name     string
		reading  *Reading
		total    float64 // launches a second; -1: not known
		sessions []float64
	}{
		{"the first says nothing", step(0, 1, past(100), session(1, -10, 50, 0)), -1, []float64{-1}},
		{"two seconds later", step(2, 1, past(100), session(1, -10, 70, 0)), 10, []float64{10}},
		{"a session that began since counts from zero", step(4, 1, past(100), session(1, -10, 70, 0), session(2, 3, 8, 0)), 4, []float64{0, 4}},
		{"one that began before but was not seen is not guessed", step(6, 1, past(100), session(1, -10, 70, 0), session(2, 3, 8, 0), session(3, -50, 4, 0)), 2, []float64{0, 0, -1}},
		{"an end moves counters, and is no rate", step(8, 1, past(170), session(2, 3, 8, 0), session(3, -50, 4, 0)), 0, []float64{0, 0}},
		{"an end before the sum is moved is nothing either", step(10, 1, past(170), session(2, 3, 8, 0)), 0, []float64{0}},
		{"a counter that goes back is nothing", step(12, 1, past(0), session(2, 3, 1, 0)), 0, []float64{0}},
		{"no time has passed", step(12, 1, past(0), session(2, 3, 5, 0)), -1, []float64{-1}},
		{"another process counts from zero", step(14, 2, past(0), session(2, 13, 6, 0)), -1, []float64{3}},
	} {
		rows := m.Rows(c.reading)
		if len(rows) != 1 {
			t.Fatalf("%s: %d rows", c.name, len(rows))
		}
		check := func(what string, r *Rates, want float64) {
			switch {
			case want < 0 && r != nil:
				t.Errorf("%s: %s: %v, want no rate", c.name, what, *r)
			case want >= 0 && (r == nil || r.Launches != want):
				t.Errorf("%s: %s: %+v, want %v", c.name, what, r, want)
			}
		}
		check("vGPU", rows[0].Rates, c.total)
		for i, want := range c.sessions {
			check(fmt.Sprint("session ", i), rows[0].Sessions[i].Rates, want)
		}
	}
}

// Managed memory that comes and goes is told of as such, by the rate and by what there is at the
// GPU; what goes in one direction is not.
func TestThrashing(t *testing.T) {
	managed := func(in, out uint64) api.Session {
		return api.Session{ID: 1, State: "running", Started: noon.Add(-time.Hour), ManagedAtGPU: 4 << 30, ManagedHere: 2 << 30, Counters: api.Counters{ManagedIn: in, ManagedOut: out}}
	}
	const gib = 1 << 30
	var m Meter
	m.Rows(step(0, 1, api.Counters{}, managed(0, 2*gib)))
	for i, c := range []struct {
		in, out uint64 // since the last reading, two seconds ago
		want    string
	}{
		{0, 0, "link 2 GiB"},
		{2 * gib, 0, "link 2 GiB"},
		{0, 2 * gib, "link 2 GiB"},
		{2 * gib, 2 * gib, "thrash 1 GiB/s"},
		{4 * gib, gib, "thrash 512 MiB/s"},
		{300 << 20, 300 << 20, "link 2 GiB"}, // less than a twentieth of 4 GiB in a second
		{500 << 20, 500 << 20, "thrash 250 MiB/s"},
	} {
		all := m.vgpus["a/g"].counters
		rows := m.Rows(step(2*(i+1), 1, api.Counters{}, managed(all.ManagedIn+c.in, all.ManagedOut+c.out)))
		top := Top{reading: step(0, 1, api.Counters{})}
		vgpu, session := top.vgpuRow(&rows[0]).cells, sessionRow(&rows[0].Sessions[0]).cells
		if a, b := vgpu[len(vgpu)-1].text, session[len(session)-1].text; a != c.want || b != c.want {
			t.Errorf("%d: %q and %q, want %q", i, a, b, c.want)
		}
	}
	if got := (*Rates)(nil).thrashing(0); got != 0 {
		t.Errorf("without two readings: %v", got)
	}
}

// A process whose counters began after the last reading is known, and a lying clock is bounded.
func TestMeterBounds(t *testing.T) {
	var m Meter
	m.Rows(step(0, 1, api.Counters{}))
	r := step(4, 2, api.Counters{}, session(1, 1, 4, time.Hour))
	rows := m.Rows(r)
	if got := rows[0].Rates; got == nil || got.Launches != 1 || got.Busy != 1 {
		t.Errorf("%+v", got)
	}
	m.Rows(&Reading{Time: noon.Add(6 * time.Second)})
	if len(m.vgpus)+len(m.sessions) != 0 {
		t.Error("what is gone is remembered")
	}
}

// later is sample, two seconds on.
func later() *Reading {
	r := sample()
	r.Time = noon.Add(2 * time.Second)
	v := r.Find("vm1/gpu0")[0] // its status is shared
	c := &v.Status.Sessions[1].Counters
	c.Launches += 50000
	c.BusyNanos += 1.5e9
	c.WaitNanos += 4e8
	c.BytesIn += 25e9
	c.BytesOut += 1e6
	c.ThrottledNow = true
	return r
}

func TestPicture(t *testing.T) {
	for name, c := range map[string]struct {
		keys          string
		width, height int
		only          string
	}{
		"top.txt":       {"", 0, 0, ""},
		"top-80.txt":    {"", 80, 24, ""},
		"top-small.txt": {"j", 60, 8, ""},
		"top-help.txt":  {"h", 120, 30, ""},
		"top-vgpus.txt": {"pmr+", 100, 30, ""},
		"top-only.txt":  {"n", 100, 30, "vm9"},
	} {
		t.Run(name, func(t *testing.T) {
			top := &Top{Interval: 2 * time.Second, Order: ByBusy, Processes: true, Only: c.only}
			top.Resize(c.width, c.height)
			top.Read(sample())
			top.Read(later())
			for _, k := range c.keys {
				top.Key(Key(k))
			}
			lines := top.Lines()
			if c.height > 0 && len(lines) > c.height {
				t.Errorf("%d lines on a screen of %d", len(lines), c.height)
			}
			for _, l := range lines {
				if n := utf8.RuneCountInString(l.Text); c.width > 0 && n > c.width {
					t.Errorf("%d columns on a screen of %d: %s", n, c.width, l.Text)
				}
			}
			golden(t, name, Text(lines))
		})
	}
}

// Whatever the size of the screen, the picture fits.
func TestSizes(t *testing.T) {
	top := &Top{Interval: time.Second, Order: ByName, Processes: true}
	for _, keys := range [][]Key{nil, {KeyEnd}, {'h'}} {
		for _, k := range keys {
			top.Key(k)
		}
		for w := 1; w < 40; w += 3 {
			for h := 1; h < 20; h++ {
				top.Resize(w, h)
				if lines := top.Lines(); len(lines) == 0 || len(lines) > h {
					t.Fatalf("%d lines of %d", len(lines), h)
				}
			}
		}
		top.Read(sample())
	}
}

func TestTopKeys(t *testing.T) {
	top := &Top{Interval: time.Second, Order: ByBusy}
	top.Resize(80, 10)
	top.Read(sample())
	for _, c := range []struct {
		key  Key
		want Action
		is   func() bool
	}{
		{'m', Draw, func() bool { return top.Order == ByMemory && !top.Reverse }},
		{'m', Draw, func() bool { return top.Order == ByMemory && top.Reverse }},
		{'b', Draw, func() bool { return top.Order == ByBusy && !top.Reverse }},
		{'+', Refresh, func() bool { return top.Interval == 2*time.Second }},
		{'-', Refresh, func() bool { return top.Interval == time.Second }},
		{KeyDown, Draw, func() bool { return top.scroll == 1 }},
		{KeyUp, Draw, func() bool { return top.scroll == 0 }},
		{KeyUp, Draw, func() bool { return top.scroll == 0 }},
		{'p', Draw, func() bool { return top.Processes }},
		{'?', Draw, func() bool { return top.help }},
		{'x', Draw, func() bool { return true }},
		{3, Quit, func() bool { return true }},
		{'q', Quit, func() bool { return true }},
	} {
		if got := top.Key(c.key); got != c.want || !c.is() {
			t.Errorf("key %d: action %d, state %+v", c.key, got, top)
		}
	}
	for range 20 {
		top.Key('-')
	}
	if top.Interval != LeastInterval {
		t.Errorf("interval %v", top.Interval)
	}
	for range 20 {
		top.Key('+')
	}
	if top.Interval != MostInterval {
		t.Errorf("interval %v", top.Interval)
	}
}

// A node that fails for a while keeps its last picture, with the reason; a held picture stays while
// rates go on.
func TestTopFailedAndHeld(t *testing.T) {
	top := &Top{Interval: time.Second, Order: ByBusy}
	if text := Text(top.Lines()); !strings.Contains(text, "reading") {
		t.Error(text)
	}
	top.Read(sample())
	top.Failed(errors.New("causewayd went\x1b away"))
	if text := Text(top.Lines()); !strings.Contains(text, "causewayd went? away") || !strings.Contains(text, "vm1/gpu0") {
		t.Error(text)
	}
	top.Key('z')
	top.Read(&Reading{Time: noon})
	if text := Text(top.Lines()); !strings.Contains(text, "vm1/gpu0") || strings.Contains(text, "cannot read") || !strings.Contains(text, "HELD") {
		t.Error(text)
	}
	top.Key('z')
	top.Read(&Reading{Time: noon})
	if text := Text(top.Lines()); strings.Contains(text, "vm1/gpu0") {
		t.Error(text)
	}
}

// What nobody measures is what the vGPUs count.
func TestWithoutSensors(t *testing.T) {
	rows := []Row{
		{VGPU: api.VGPU{GPU: "G", Status: &api.Status{Memory: 3}}, Rates: &Rates{Busy: .3}},
		{VGPU: api.VGPU{GPU: "G", Status: &api.Status{Memory: 4}}, Rates: &Rates{Busy: .9}},
		{VGPU: api.VGPU{GPU: "G"}},
		{VGPU: api.VGPU{GPU: "other", Status: &api.Status{Memory: 9}}, Rates: &Rates{Busy: 1}},
	}
	for _, c := range []struct {
		name string
		gpu  api.GPU
		rows []Row
		used uint64
		util int
	}{
		{"software", api.GPU{ID: "G", Backend: "soft"}, rows, 7, 100},
		{"one of them", api.GPU{ID: "G", Backend: "soft"}, rows[:1], 3, 30},
		{"no rates yet", api.GPU{ID: "G", Utilization: -1}, nil, 0, -1},
		{"without causewayd", api.GPU{ID: "G", Used: 7, Utilization: -1}, rows, 7, 100},
		{"real", api.GPU{ID: "G", Backend: "cuda", Used: 1, Utilization: 2}, rows, 1, 2},
	} {
		// What is not shown counts too.
		top := &Top{reading: &Reading{}, rows: c.rows, Only: "shown"}
		for _, r := range c.rows {
			top.reading.VGPUs = append(top.reading.VGPUs, r.VGPU)
		}
		if used, util := top.reading.used(&c.gpu), top.utilization(&c.gpu); used != c.used || util != c.util {
			t.Errorf("%s: %d used, %d%%, want %d and %d%%", c.name, used, util, c.used, c.util)
		}
	}
}

func TestOrders(t *testing.T) {
	row := func(vm string, memory uint64, r *Rates) Row {
		return Row{VGPU: api.VGPU{Spec: api.Spec{VM: vm}, Status: &api.Status{Memory: memory}}, Rates: r}
	}
	top := &Top{rows: []Row{
		row("c", 1, &Rates{Busy: .5, Launches: 9, In: 1, Wait: .1}),
		row("a", 3, nil),
		row("b", 2, &Rates{Busy: .2, Launches: 10, Out: 5, Wait: .9}),
	}}
	for order, want := range map[Order]string{ByName: "abc", ByBusy: "cba", ByMemory: "abc", ByLaunches: "bca", ByCopies: "bca", ByWaiting: "bca"} {
		top.Order = order
		var got string
		for _, r := range top.sorted() {
			got += r.VGPU.Spec.VM
		}
		if got != want {
			t.Errorf("by %s: %s, want %s", order, got, want)
		}
	}
	if len(orderOf) != len(Orders()) {
		t.Error("an order without a key")
	}
}

func TestKeys(t *testing.T) {
	in := "q\x1b[A\x1bOB\x1b[5~x\x1b[31;5m\x1b\x1b[B\x1bj\x1b[99999999999999999999999y"
	want := []Key{'q', KeyUp, KeyDown, KeyPageUp, 'x', KeyDown, 'j'}
	for size := 1; size <= len(in); size++ {
		var k Keys
		var got []Key
		for i := 0; i < len(in); i += size {
			got = append(got, k.Feed([]byte(in[i:min(len(in), i+size)]))...)
		}
		if !slices.Equal(got[:min(len(got), len(want))], want) || got[len(got)-1] != 'y' && len(k.held) > longestSequence {
			t.Errorf("in pieces of %d: %v", size, got)
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte("q\x1b[A\x1b[5~"))
	f.Add([]byte("\x1b\x1b[[[O"))
	f.Fuzz(func(t *testing.T, p []byte) {
		var whole, pieces Keys
		want := whole.Feed(p)
		var got []Key
		for i := range p {
			got = append(got, pieces.Feed(p[i:i+1])...)
			if len(pieces.held) > longestSequence {
				t.Fatalf("holds %d bytes", len(pieces.held))
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v in pieces, %v as a whole", got, want)
		}
	})
}

func TestFrame(t *testing.T) {
	lines := []Line{{Text: "title"}, {Text: "HEAD", Style: Head}, {Text: "bad", Style: Alert}, {Text: "a bc d", Spans: []Span{{2, 4, Good}, {5, 9, Bad}}}}
	for name, c := range map[string]struct {
		look Look
		want string
	}{
		"colours": {Colours, "\x1b[Htitle\x1b[K\r\n\x1b[7mHEAD  \x1b[0m\r\n\x1b[1;31mbad\x1b[0m\x1b[K\r\na \x1b[0m\x1b[32mbc\x1b[0m \x1b[0m\x1b[1;31md\x1b[0m\x1b[J"},
		"none":    {Mono, "\x1b[Htitle\x1b[K\r\n\x1b[7mHEAD  \x1b[0m\r\n\x1b[1mbad\x1b[0m\x1b[K\r\na bc \x1b[0m\x1b[1md\x1b[0m\x1b[J"},
	} {
		if got := c.look.Frame(lines, 6); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for style, code := range Mono {
		if strings.Contains(code, "3") {
			t.Errorf("style %d has a colour without colours: %q", style, code)
		}
	}
}

// The help fits a terminal as wide as they begin.
func TestHelpWidth(t *testing.T) {
	for l := range strings.SplitSeq(helpText, "\n") {
		if len(l) > 80 {
			t.Errorf("%d columns: %s", len(l), l)
		}
	}
	if n := strings.Count(helpText, "\n") + 2; n > 24 {
		t.Errorf("%d lines", n)
	}
}

func TestHistory(t *testing.T) {
	h := history{}
	for i := range 14 {
		h.add(map[string]float64{"a": float64(i) / 13, "b": 0})
	}
	if got := h.spark("a", false); got != "▃▄▄▅▅▆▇▇██" {
		t.Errorf("%q", got)
	}
	h.add(map[string]float64{"b": 9, "c": -1})
	for key, want := range map[string]string{"a": "          ", "b": "_________#", "c": "         _"} {
		if got := h.spark(key, true); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	for part, want := range map[float64]string{-1: "[    ]", 0: "[    ]", .5: "[||  ]", 1: "[||||]", 7: "[||||]"} {
		if got := bar(part, 4); got != want {
			t.Errorf("%v: %q", part, got)
		}
	}
}
