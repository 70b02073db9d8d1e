package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Order is by what `causeway top` sorts.
type Order string

// Orders, and the key that chooses each.
const (
	ByName     Order = "name"     // n
	ByBusy     Order = "busy"     // b
	ByMemory   Order = "memory"   // m
	ByLaunches Order = "launches" // l
	ByCopies   Order = "copies"   // c
	ByWaiting  Order = "waiting"  // w
)

var orderOf = map[Key]Order{'n': ByName, 'b': ByBusy, 'm': ByMemory, 'l': ByLaunches, 'c': ByCopies, 'w': ByWaiting}

// Orders lists them.
func Orders() []string { return []string{"busy", "memory", "launches", "copies", "waiting", "name"} }

// Action is what a key asks of Top's caller.
type Action int

// Actions.
const (
	Draw    Action = iota // draw anew
	Refresh               // take a reading now; also after Interval changed
	Quit
)

// Bounds of the interval between readings.
const (
	LeastInterval = 200 * time.Millisecond
	MostInterval  = time.Minute
)

// Top is the state of `causeway top`: readings, keys and sizes go in, lines come out. It is not
// safe for concurrent use.
type Top struct {
	Interval  time.Duration
	Order     Order
	Reverse   bool
	Processes bool   // show the processes of guests
	Only      string // key of the vGPUs shown, all if empty
	ASCII     bool   // the terminal shows no other characters

	past history

	meter         Meter
	reading       *Reading
	rows          []Row // of all vGPUs: GPUs are shown with what all of them use
	err           error
	help, paused  bool
	scroll        int
	width, height int // 0: without bounds
}

// Resize has lines fit a terminal.
func (t *Top) Resize(width, height int) { t.width, t.height = width, height }

// Read takes a reading in. While the picture is paused, only its counters are kept.
func (t *Top) Read(r *Reading) {
	rows := t.meter.Rows(r)
	t.err = nil
	if t.paused {
		return
	}
	t.reading, t.rows = r, rows
	now := map[string]float64{}
	for i := range r.GPUs {
		if busy := t.utilization(&r.GPUs[i]); busy >= 0 {
			now[r.GPUs[i].ID] = float64(busy) / 100
		}
	}
	for i := range rows {
		if rows[i].Rates != nil {
			now[rows[i].VGPU.Spec.Key()] = rows[i].Rates.Busy
		}
	}
	if t.past == nil {
		t.past = history{}
	}
	t.past.add(now)
}

// Failed says that no reading could be taken.
func (t *Top) Failed(err error) { t.err = err }

// Record returns what Read took in last, and the rows shown of it.
func (t *Top) Record() (*Reading, []Row) { return t.reading, t.sorted() }

// Key acts on a key.
func (t *Top) Key(k Key) Action {
	if o, ok := orderOf[k]; ok {
		t.Reverse = t.Order == o && !t.Reverse // the same key again turns the order
		t.Order, t.scroll = o, 0
		return Draw
	}
	page := max(1, t.height-4)
	switch k {
	case 'q', 'Q', 3, 4: // Control-C, Control-D
		return Quit
	case '+', '=':
		t.Interval = min(t.Interval*2, MostInterval)
		return Refresh
	case '-':
		t.Interval = max(t.Interval/2, LeastInterval)
		return Refresh
	case ' ', '\r':
		return Refresh
	case 'p':
		t.Processes = !t.Processes
	case 'z':
		t.paused = !t.paused
	case 'h', '?':
		t.help = !t.help
	case 'r':
		t.Reverse = !t.Reverse
	case KeyUp, 'k':
		t.scroll--
	case KeyDown, 'j':
		t.scroll++
	case KeyPageUp:
		t.scroll -= page
	case KeyPageDown:
		t.scroll += page
	case KeyHome:
		t.scroll = 0
	case KeyEnd:
		t.scroll = 1 << 20
	}
	t.scroll = max(0, t.scroll) // lines bound it above
	return Draw
}

// shown is a copy of the rows that are wanted.
func (t *Top) shown() []Row {
	return slices.DeleteFunc(slices.Clone(t.rows), func(r Row) bool { return t.Only != "" && !names(t.Only, &r.VGPU) })
}

// sorted is the rows shown in the order wanted, and their sessions.
func (t *Top) sorted() []Row {
	rows := t.shown()
	by := func(a, b *Rates, am, bm uint64) int {
		switch zero := (Rates{}); t.Order {
		case ByBusy:
			return cmp.Compare(orZero(b, &zero).Busy, orZero(a, &zero).Busy)
		case ByLaunches:
			return cmp.Compare(orZero(b, &zero).Launches, orZero(a, &zero).Launches)
		case ByCopies:
			return cmp.Compare(copies(orZero(b, &zero)), copies(orZero(a, &zero)))
		case ByWaiting:
			return cmp.Compare(orZero(b, &zero).Wait, orZero(a, &zero).Wait)
		case ByMemory:
			return cmp.Compare(bm, am)
		}
		return 0
	}
	turn := func(c int) int {
		if t.Reverse {
			return -c
		}
		return c
	}
	memory := func(r *Row) uint64 {
		if r.VGPU.Status == nil {
			return 0
		}
		return r.VGPU.Status.Memory
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		if t.Order == ByName {
			return turn(strings.Compare(a.VGPU.Spec.Key(), b.VGPU.Spec.Key()))
		}
		return turn(by(a.Rates, b.Rates, memory(&a), memory(&b)))
	})
	for i := range rows {
		rows[i].Sessions = slices.Clone(rows[i].Sessions)
		slices.SortStableFunc(rows[i].Sessions, func(a, b SessionRow) int {
			if t.Order == ByName {
				return turn(strings.Compare(a.Program, b.Program))
			}
			return turn(by(a.Rates, b.Rates, a.Memory, b.Memory))
		})
	}
	return rows
}

func orZero(r, zero *Rates) *Rates {
	if r == nil {
		return zero
	}
	return r
}

func copies(r *Rates) float64 { return r.In + r.Out }

// rate formats one if it is known.
func rate(r *Rates, f func(*Rates) string) string {
	if r == nil {
		return "-"
	}
	return f(r)
}

func share(f float64) string { return fmt.Sprintf("%.0f%%", f*100) }

// gigabytes writes bytes a second as GB/s.
func gigabytes(f float64) string {
	switch g := f / 1e9; {
	case g == 0:
		return "0"
	case g < 0.01:
		return "<0.01"
	case g < 10:
		return fmt.Sprintf("%.2f", g)
	default:
		return fmt.Sprintf("%.1f", g)
	}
}
