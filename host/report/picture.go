package report

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"causeway/host/api"
)

// Style is how a line, or a part of it, looks.
type Style int

// Styles.
const (
	Plain Style = iota
	Head        // of a table
	Alert
	Faint
	Good // in use
	Warm // much of it
	Bad  // nearly all of it, or something is wrong
)

// Span is a part of a line, in characters, that looks otherwise.
type Span struct {
	From, To int
	Style    Style
}

// Line is a line of the picture.
type Line struct {
	Text  string
	Style Style
	Spans []Span // in order, apart from each other
}

// helpText is shown by h.
const helpText = `b m l c w n   sort by busy, memory, launches, copies, waiting, name;
              the same key again, or r: the other way round
p             show or hide the processes of guests
+ -           double or halve the time between readings; space: read now
z             hold the picture, and let it go
arrows, j k   scroll; also Page Up, Page Down, Home, End
q             quit

A narrow screen has fewer columns.
BUSY      part of the time in which the GPU had work of it; the processes of
          a vGPU add up
HISTORY   BUSY, or a GPU's UTIL, at the last readings, the newest at the right
WAIT      part of the time in which its work was held back, for the sake of
          its cap or of others' shares
TO GPU    copied to the GPU, in GB/s; FROM: back
SHARE CAP limits of GPU time; ! marks what does not hold now
OOM       allocations that its memory limit refused, so far
STATE     link: managed memory that the GPU has no room for, which kernels
          reach over the link; thrash: so much of it comes and goes`

// Lines is the picture: the node, its GPUs, and as many vGPUs as fit.
func (t *Top) Lines() []Line {
	fixed := []Line{{Text: t.title()}}
	if t.err != nil {
		fixed = append(fixed, Line{Text: "cannot read: " + clean(t.err.Error()), Style: Alert})
	}
	var list []Line
	switch {
	case t.help:
		for l := range strings.SplitSeq(helpText, "\n") {
			list = append(list, Line{Text: l})
		}
	case t.reading == nil:
		fixed = append(fixed, Line{Text: "reading...", Style: Faint})
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
		s += t.counts()
	}
	if help := s + "  h: help"; t.height > 0 && utf8.RuneCountInString(help) <= t.width {
		return help
	}
	return s
}

func (t *Top) counts() string {
	var lost, processes int
	rows := t.shown()
	for _, r := range rows {
		if r.VGPU.State == api.Lost {
			lost++
		}
		processes += len(r.Sessions)
	}
	s := "  " + several(len(rows), "vGPU")
	if lost > 0 {
		s += fmt.Sprintf(" (%d lost)", lost)
	}
	return s + ", " + several(processes, "process")
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
	cols := []column{{head: "GPU", left: true}, {head: "UTIL"}, t.historyColumn(3), {left: true, drop: 4}, {head: "MEMORY"}, {head: "PROMISED", drop: 2}, {head: "TEMP", drop: 5},
		{head: "POWER", drop: 6}, {head: "NAME", left: true, drop: 1}}
	var rows []row
	for i := range t.reading.GPUs {
		g := &t.reading.GPUs[i]
		name, style, busy := clean(g.Name), Plain, t.utilization(g)
		util := cell{fmt.Sprintf("%d%%", busy), Plain}
		if busy < 0 {
			util.text = "-"
		}
		used := t.reading.used(g)
		full := part(used, g.Memory)
		past := cell{bar(float64(busy)/100, historyLen), Good}
		if t.width > 0 {
			past.text = t.past.spark(g.ID, t.ASCII)
		}
		if g.Drained {
			name, style = name+", drained: "+cmp.Or(clean(g.Why), "nobody said why"), Alert
		}
		rows = append(rows, row{[]cell{{GPUNumber(g), Plain}, util, past, {bar(full, memoryBar), level(full)}, {usedOf(used, g.Memory), Plain}, {Bytes(g.Promised), Plain},
			{orDash(g.Temperature, "%d°C"), Plain}, {orDash((g.PowerMW+500)/1000, "%dW"), Plain}, {name, Plain}}, style})
	}
	return table(cols, rows, t.width)
}

// memoryBar is how long a bar of memory is.
const memoryBar = 6

// historyColumn is where what was is drawn; in a file a bar, of what is.
func (t *Top) historyColumn(drop int) column {
	if t.width == 0 {
		return column{left: true, drop: drop}
	}
	return column{head: "HISTORY", left: true, drop: drop}
}

// utilization is what the driver says of a GPU, or the time that all of its vGPUs count where it
// says nothing; percent, -1: not known.
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

// rowLines begins with the table's head.
func (t *Top) rowLines() []Line {
	cols := []column{{head: "VM/VGPU", left: true}, {head: "GPU", left: true, drop: 6}, {head: "BUSY"}, t.historyColumn(3), {head: "WAIT", drop: 1}, {left: true, drop: 2}, {head: "MEMORY"},
		{head: "HOST", drop: 11}, {head: "LAUNCH/S", drop: 4}, {head: "TO GPU", drop: 9}, {head: "FROM", drop: 10}, {head: "SHARE", drop: 7}, {head: "CAP", drop: 7}, {head: "OOM", drop: 8}, {head: "STATE", left: true}}
	var rows []row
	for _, r := range t.sorted() {
		rows = append(rows, t.vgpuRow(&r))
		if !t.Processes {
			continue
		}
		for _, s := range r.Sessions {
			rows = append(rows, sessionRow(&s))
		}
	}
	return table(cols, rows, t.width)
}

func (t *Top) vgpuRow(r *Row) row {
	v := &r.VGPU
	memory, oom, full, state := "-", cell{"-", Plain}, cell{}, cell{string(v.State), Plain}
	host := cell{"-", Plain}
	style := Plain
	if s := v.Status; s != nil {
		all := s.Past
		for _, o := range s.Sessions {
			all.Add(o.Counters)
		}
		memory, oom.text = usedOf(s.Memory, memoryOf(v)), fmt.Sprint(all.OutOfMemory)
		if all.OutOfMemory > 0 {
			oom.style = Warm
		}
		if host.text = Bytes(s.Host); all.HostRefused > 0 {
			host.style = Warm
		}
		if limit := memoryOf(v); limit > 0 {
			full = cell{bar(part(s.Memory, limit), memoryBar), level(part(s.Memory, limit))}
		}
		here, atGPU := managed(s)
		switch {
		case all.ThrottledNow:
			state = cell{"held back", Warm}
		case here > 0:
			state = managedCell(r.Rates, atGPU, here)
		case s.Away > 0:
			state = cell{"away " + strings.TrimSpace(Bytes(s.Away)), Warm}
		}
	}
	if v.State == api.Lost {
		style = Alert
	}
	past := cell{}
	if t.width > 0 {
		past = cell{t.past.spark(v.Spec.Key(), t.ASCII), Good}
	}
	n := rateCells(r.Rates)
	return row{[]cell{{clean(v.Spec.Key()), Plain}, {t.reading.gpuOf(v), Plain}, n[0], past, n[1], full, {memory, Plain}, host, n[2], n[3], n[4],
		heldCell(shareOf(v), v), heldCell(capOf(v), v), oom, state}, style}
}

// managedCell says of managed memory beyond the GPU's room how much of it kernels reach over the
// link, or that it keeps changing places.
func managedCell(r *Rates, atGPU, here uint64) cell {
	if turns := r.thrashing(atGPU); turns > 0 {
		return cell{"thrash " + strings.TrimSpace(Bytes(uint64(turns))) + "/s", Bad}
	}
	return cell{"link " + strings.TrimSpace(Bytes(here)), Warm}
}

// heldCell marks a limit that does not hold.
func heldCell(text string, v *api.VGPU) cell {
	if unheld(v) != "" && text != "-" {
		return cell{text, Bad}
	}
	return cell{text, Plain}
}

func sessionRow(s *SessionRow) row {
	state := cell{clean(s.State), Plain}
	switch {
	case s.Counters.ThrottledNow:
		state = cell{"held back", Warm}
	case s.ManagedHere > 0:
		state = managedCell(s.Rates, s.ManagedAtGPU, s.ManagedHere)
	}
	n := rateCells(s.Rates)
	return row{[]cell{{fmt.Sprintf("  %d %s", s.GuestPID, clean(s.Program)), Plain}, {}, n[0], {}, n[1], {}, {Bytes(s.Memory), Plain}, {Bytes(s.Host), Plain}, n[2], n[3], n[4],
		{}, {}, {fmt.Sprint(s.Counters.OutOfMemory), Plain}, state}, Faint}
}

// rateCells are busy, waiting, launches, and copied to and from the GPU.
func rateCells(r *Rates) []cell {
	cells := texts(
		rate(r, func(r *Rates) string { return share(r.Busy) }),
		rate(r, func(r *Rates) string { return share(r.Wait) }),
		rate(r, func(r *Rates) string { return count(r.Launches) }),
		rate(r, func(r *Rates) string { return gigabytes(r.In) }),
		rate(r, func(r *Rates) string { return gigabytes(r.Out) }),
	)
	if r != nil && r.Wait >= 0.5 {
		cells[1].style = Warm
	}
	return cells
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
		list = append(list, Line{Text: strings.TrimSuffix(l, "\n"), Style: Faint})
	}
	return list
}
