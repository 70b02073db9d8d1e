package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"causeway/host/daemon/api"
)

// Style is how a line looks.
type Style int

// Styles.
const (
	Plain Style = iota
	Head        // of a table
	Alert
	Faint
)

// Line is a line of the picture.
type Line struct {
	Text  string
	Style Style
}

// helpText is shown by h.
const helpText = `b m l c w n   sort by busy, memory, launches, copies, waiting, name; the same key again, or r: the other way round
p             show or hide the processes of guests
+ -           double or halve the time between readings; space: read now
z             hold the picture, and let it go
arrows, j k   scroll; also Page Up, Page Down, Home, End
q             quit

BUSY      part of the time in which the GPU had work of it; the processes of a vGPU add up
WAIT      part of the time in which its work was held back, for the sake of its cap or of others' shares
TO GPU    copied to the GPU, in GB/s; FROM: back
OOM       allocations that its memory limit refused, so far`

// Lines is the picture: the node, its GPUs, and as many vGPUs as fit.
func (t *Top) Lines() []Line {
	fixed := []Line{{t.title(), Plain}}
	if t.err != nil {
		fixed = append(fixed, Line{"cannot read: " + clean(t.err.Error()), Alert})
	}
	var list []Line
	switch {
	case t.help:
		for l := range strings.SplitSeq(helpText, "\n") {
			list = append(list, Line{l, Plain})
		}
	case t.reading == nil:
		fixed = append(fixed, Line{"reading...", Faint})
	default:
		fixed = append(fixed, t.gpuLines()...)
		list = t.rowLines()
		fixed = append(fixed, Line{}, list[0])
		list = append(list[1:], t.noteLines()...)
	}
	if t.height > 0 {
		fixed = fixed[:min(len(fixed), max(1, t.height-1))] // a small screen shows the GPUs first
		room := max(0, t.height-len(fixed))
		t.scroll = min(t.scroll, max(0, len(list)-room))
		list = list[t.scroll:]
		list = list[:min(len(list), room)]
	}
	list = append(fixed, list...)
	if t.width > 0 {
		for i := range list {
			list[i].Text = cut(list[i].Text, t.width)
		}
	}
	return list
}

func (t *Top) title() string {
	s := "causeway top"
	if t.reading != nil {
		s += t.reading.Time.Local().Format("  15:04:05")
	}
	s += "  every " + strings.TrimSuffix(t.Interval.Round(time.Millisecond).String(), ".0s") + "  by " + string(t.Order)
	if t.Reverse {
		s += " reversed"
	}
	if t.paused {
		s += "  HELD (z goes on)"
	}
	if t.reading != nil {
		var connected, lost, processes int
		rows := t.shown()
		for _, r := range rows {
			switch r.VGPU.State {
			case api.Connected:
				connected++
			case api.Lost:
				lost++
			}
			processes += len(r.Sessions)
		}
		s += fmt.Sprintf("  %s, %d connected, %d lost, %s", several(len(rows), "vGPU"), connected, lost, several(processes, "process"))
	}
	if t.height > 0 {
		s += "  (h: help, q: quit)"
	}
	return s
}

// several counts things: 1 vGPU, 2 processes.
func several(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "s"):
		what += "e"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (t *Top) gpuLines() []Line {
	cells := [][]string{{"GPU", "UTIL", "", "MEMORY", "PROMISED", "TEMP", "POWER", "NAME"}}
	styles := []Style{Head}
	for i := range t.reading.GPUs {
		g := &t.reading.GPUs[i]
		name, style, busy := clean(g.Name), Plain, t.utilization(g)
		util := fmt.Sprintf("%d%%", busy)
		if busy < 0 {
			util = "-"
		}
		if g.Drained {
			name, style = name+", drained: "+cmp.Or(clean(g.Why), "nobody said why"), Alert
		}
		cells = append(cells, []string{GPUNumber(g), util, gauge(busy), usedOf(t.reading.used(g), g.Memory), Bytes(g.Promised),
			orDash(g.Temperature, "%d°C"), orDash((g.PowerMW+500)/1000, "%dW"), name})
		styles = append(styles, style)
	}
	return table(cells, styles, 1)
}

// utilization is what the driver says of a GPU, or the time that all of its vGPUs count where it says nothing; percent, -1: not known.
func (t *Top) utilization(g *api.GPU) int {
	busy, known := 0.0, false
	for _, r := range t.rows {
		if r.VGPU.GPU == g.ID && r.Rates != nil {
			busy, known = busy+r.Rates.Busy, true
		}
	}
	if g.Backend == "cuda" || !known {
		return g.Utilization
	}
	return max(g.Utilization, int(min(busy, 1)*100+0.5))
}

func gauge(percent int) string {
	n := min(max(percent, 0), 100) / 10
	return "[" + strings.Repeat("|", n) + strings.Repeat(" ", 10-n) + "]"
}

// rowLines begins with the table's head.
func (t *Top) rowLines() []Line {
	cells := [][]string{{"VM/VGPU", "GPU", "BUSY", "WAIT", "MEMORY", "LAUNCH/S", "TO GPU", "FROM", "SHARE", "CAP", "OOM", "STATE"}}
	styles := []Style{Head}
	for _, r := range t.sorted() {
		v := &r.VGPU
		memory, oom, style, state := "-", "-", Plain, string(v.State)
		if s := v.Status; s != nil {
			all := s.Past
			for _, o := range s.Sessions {
				all.Add(o.Counters)
			}
			memory, oom = usedOf(s.Memory, memoryOf(v)), fmt.Sprint(all.OutOfMemory)
			if all.ThrottledNow {
				state += ", held back"
			}
		}
		if v.State == api.Lost {
			style = Alert
		}
		cells = append(cells, append([]string{clean(v.Spec.Key()), t.reading.gpuOf(v)}, append(rateCells(r.Rates, memory), shareOf(v), capOf(v), oom, state)...))
		styles = append(styles, style)
		if !t.Processes {
			continue
		}
		for _, s := range r.Sessions {
			state := clean(s.State)
			if s.Counters.ThrottledNow {
				state += ", held back"
			}
			cells = append(cells, append([]string{fmt.Sprintf("  %d %s", s.GuestPID, clean(s.Program)), ""},
				append(rateCells(s.Rates, Bytes(s.Memory)), "", "", fmt.Sprint(s.Counters.OutOfMemory), state)...))
			styles = append(styles, Faint)
		}
	}
	return table(cells, styles, 2)
}

func rateCells(r *Rates, memory string) []string {
	return []string{
		rate(r, func(r *Rates) string { return share(r.Busy) }),
		rate(r, func(r *Rates) string { return share(r.Wait) }),
		memory,
		rate(r, func(r *Rates) string { return count(r.Launches) }),
		rate(r, func(r *Rates) string { return gigabytes(r.In) }),
		rate(r, func(r *Rates) string { return gigabytes(r.Out) }),
	}
}

func (t *Top) noteLines() []Line {
	var b strings.Builder
	r := *t.reading
	if t.Only != "" {
		r.VGPUs = r.Find(t.Only)
	}
	Notes(&b, &r)
	var list []Line
	for l := range strings.Lines(b.String()) {
		list = append(list, Line{strings.TrimSuffix(l, "\n"), Faint})
	}
	return list
}

// table aligns cells: the first left columns and the last to the left, the others to the right.
func table(cells [][]string, styles []Style, left int) []Line {
	var widths []int
	for _, row := range cells {
		for i, c := range row {
			row[i] = narrow(c)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	widths[0] = min(widths[0], 40) // a long program's name must not push the numbers out
	lines := make([]Line, len(cells))
	for r, row := range cells {
		var b strings.Builder
		for i, c := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			c = cut(c, widths[i])
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i < left || i == len(row)-1 {
				b.WriteString(c + pad)
			} else {
				b.WriteString(pad + c)
			}
		}
		lines[r] = Line{strings.TrimRight(b.String(), " "), styles[r]}
	}
	return lines
}

// cut shortens a line to so many columns.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	r := []rune(s)
	if width < 2 {
		return string(r[:max(width, 0)])
	}
	return string(r[:width-1]) + "…"
}

// narrow replaces characters that may take two columns of a terminal, or none.
func narrow(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x300 && r != '…' {
			return '?'
		}
		return r
	}, s)
}
