package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"causeway/host/api"
)

var units = []struct {
	shift uint
	name  string
}{{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}, {0, "B"}}

// Bytes writes a size in three digits or so: 512 MiB, 1.2 GiB.
func Bytes(n uint64) string {
	v, u := scaled(n)
	return v + " " + u
}

func scaled(n uint64) (value, unit string) {
	for _, u := range units {
		if n>>u.shift == 0 && u.shift > 0 {
			continue
		}
		f := float64(n) / float64(uint64(1)<<u.shift)
		digits := 1
		if u.shift == 0 || f >= 100 {
			digits = 0
		}
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', digits, 64), ".0"), u.name
	}
	return "0", "B"
}

// usedOf writes 1.2/16 GiB. A limit of 0 is none.
func usedOf(used, limit uint64) string {
	if limit == 0 {
		return Bytes(used)
	}
	a, au := scaled(used)
	b, bu := scaled(limit)
	if au == bu || used == 0 {
		return a + "/" + b + " " + bu
	}
	return a + " " + au + "/" + b + " " + bu
}

// count writes a rate or number shortly: 999, 12.3k, 4.5M.
func count(f float64) string {
	switch {
	case f >= 999.5e6:
		return fmt.Sprintf("%.1fG", f/1e9)
	case f >= 999.5e3:
		return fmt.Sprintf("%.1fM", f/1e6)
	case f >= 9999.5:
		return fmt.Sprintf("%.1fk", f/1e3)
	}
	return fmt.Sprintf("%.0f", f)
}

// Age writes a duration in its largest two units at most: 45s, 12m, 3h20m, 5d.
func Age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// seconds writes time that was counted in nanoseconds.
func seconds(ns uint64) string {
	d := time.Duration(min(ns, 1<<62))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func number(n int) string { return strconv.Itoa(n) }

// percent of a cap; 0 is none.
func percent(cap uint32) string {
	if cap == 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", cap)
}

// longest is how much of a foreign name is shown.
const longest = 64

// clean makes a name from a guest harmless to a terminal: control and invisible characters become
// ?, and it ends somewhere.
func clean(s string) string { return atMost(s, longest) }

// longestSentence is how much of a foreign sentence is shown: how something is, or why it is not.
const longestSentence = 1000

// sentence is clean for what is more than a name.
func sentence(s string) string { return atMost(s, longestSentence) }

func atMost(s string, most int) string {
	s = whole(s)
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// whole is clean for an error and its remedy, which are as long as they are.
func whole(s string) string {
	return api.Printable(strings.ToValidUTF8(s, "?"))
}

// grid writes a table: lines of cells, columns two spaces apart.
func grid(w io.Writer, head []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// LimitsLine is limits in a few words.
func LimitsLine(l api.Limits) string {
	memory, limit := "the whole memory", "no cap"
	if l.Memory > 0 {
		memory = Bytes(l.Memory) + " of memory"
	}
	if l.Cap > 0 {
		limit = fmt.Sprintf("cap %d%%", l.Cap)
	}
	return fmt.Sprintf("%s, share %d, %s", memory, l.Share, limit)
}

// Summary is what a vGPU is, in a few words.
func Summary(r *Reading, v *api.VGPU) string {
	return "on GPU " + r.gpuOf(v) + ": " + LimitsLine(limitsOf(v))
}
