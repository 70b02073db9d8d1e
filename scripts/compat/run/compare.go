package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// verdict is the outcome of a row.
type verdict string

const (
	same         verdict = "same"
	within       verdict = "within tolerance"
	differs      verdict = "differs"
	unrepeatable verdict = "native run does not repeat"
	nativeFails  verdict = "fails natively"
	fails        verdict = "fails"
	gapped       verdict = "gap"
	notRun       verdict = "not run"
)

// good verdicts leave the exit status alone.
func (v verdict) good() bool { return v == same || v == within || v == gapped || v == nativeFails }

// outcome is one run of a row's program.
type outcome struct {
	Ran      bool
	Status   int // exit status; 128+n for a signal; 124 when it was ended at its time limit
	Seconds  float64
	Out, Err string
}

// judge compares a native and a forwarded run; the reason is empty when they agree.
func judge(r *row, native, forwarded outcome) (verdict, string) {
	switch {
	case native.Status == 77 && forwarded.Status == 77:
		return notRun, lastLine(native.Out, native.Err)
	case native.Status != 0 && forwarded.Status == native.Status && agree(r.compare, native.Out, forwarded.Out) == "":
		return nativeFails, lastLine(native.Err, native.Out)
	case native.Status != 0 && forwarded.Status == 0:
		return nativeFails, lastLine(native.Err, native.Out)
	case forwarded.Status != native.Status:
		if r.gap != "" {
			return gapped, r.gap
		}
		return fails, fmt.Sprintf("status %d: %s%s", forwarded.Status, lastLine(forwarded.Err, forwarded.Out), refusals(forwarded.Err))
	}
	if why := agree(r.compare, native.Out, forwarded.Out); why != "" {
		if r.gap != "" {
			return gapped, r.gap
		}
		return differs, why
	}
	if r.compare.kind != "exact" && compared(native.Out) != compared(forwarded.Out) {
		return within, r.note
	}
	return same, r.note
}

// compared drops the lines that may differ: remarks, and what NCCL says of itself if the
// environment asks it to.
func compared(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "NCCL version ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// agree is empty when two outputs agree, else it names the first line that does not.
func agree(c comparison, a, b string) string {
	if c.kind == "status" {
		return ""
	}
	x, y := strings.Split(compared(a), "\n"), strings.Split(compared(b), "\n")
	for i := range max(len(x), len(y)) {
		switch {
		case i >= len(x):
			return "more output: " + y[i]
		case i >= len(y):
			return "less output: no line " + x[i]
		case x[i] != y[i] && !(c.kind == "numbers" && closeLines(x[i], y[i], c.rel)):
			return fmt.Sprintf("%q, natively %q", y[i], x[i])
		}
	}
	return ""
}

// closeLines compares word by word; words that are numbers on both sides may differ by rel.
func closeLines(a, b string, rel float64) bool {
	x, y := words(a), words(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if x[i] == y[i] {
			continue
		}
		if isDigest(x[i]) && isDigest(y[i]) {
			continue // the sum beside it is what a tolerance can judge
		}
		u, err1 := strconv.ParseFloat(x[i], 64)
		v, err2 := strconv.ParseFloat(y[i], 64)
		if err1 != nil || err2 != nil || !(math.Abs(u-v) <= rel*math.Max(math.Abs(u), math.Abs(v))) {
			return false
		}
	}
	return true
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" ,()[]{}:", r) })
}

func isDigest(s string) bool {
	if len(s) != 16 && len(s) != 24 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// lastLine is the last thing a failing program said, cut to fit a table.
func lastLine(texts ...string) string {
	for _, t := range texts {
		lines := strings.Split(strings.TrimSpace(t), "\n")
		for i := len(lines) - 1; i >= 0; i-- {
			l := strings.TrimSpace(lines[i])
			if l == "" || strings.HasPrefix(l, "#") || strings.HasPrefix(l, "^") || strings.Contains(l, "Device-side assertion") ||
				strings.HasPrefix(l, "For debugging consider") || strings.HasPrefix(l, "Compile with") || strings.HasPrefix(l, "CUDA kernel errors might") ||
				strings.HasPrefix(l, "Search for ") || strings.Contains(l, "resource_tracker") ||
				strings.HasPrefix(l, "causeway: ") || strings.HasPrefix(l, "time=") {
				continue
			}
			if len(l) > 240 {
				l = l[:240]
			}
			return l
		}
	}
	return ""
}

// refusals are the last things that our library said, beside what the program made of them.
func refusals(text string) string {
	var said []string
	for line := range strings.Lines(text) {
		l, ok := strings.CutPrefix(strings.TrimSpace(line), "causeway: ")
		if ok && !strings.HasPrefix(l, "session open") && !slices.Contains(said, l) {
			said = append(said, l)
		}
	}
	if len(said) == 0 {
		return ""
	}
	return " [" + strings.Join(said[max(0, len(said)-3):], "; ") + "]"
}
