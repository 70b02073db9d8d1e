package report

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// column of a table.
type column struct {
	head string
	left bool
	drop int // which columns a narrow screen does without: the highest first; 0: none
	of   int // its place in a row
}

// cell of a table.
type cell struct {
	text  string
	style Style
}

// row of a table. Cells without a style have the row's.
type row struct {
	cells []cell
	style Style
}

// texts makes cells without a style of their own.
func texts(list ...string) []cell {
	cells := make([]cell, len(list))
	for i, t := range list {
		cells[i].text = t
	}
	return cells
}

const (
	gap       = 2  // between columns
	mostFirst = 40 // a long program's name must not push the numbers out
)

// table aligns rows below heads. width is the screen's, 0 for as wide as it gets: columns are left
// out until it fits, then the first is cut.
func table(cols []column, rows []row, width int) []Line {
	for i := range cols {
		cols[i].of = i
	}
	widths := make([]int, len(cols))
	for i := range cols {
		widths[i] = utf8.RuneCountInString(cols[i].head)
		for _, r := range rows {
			if i < len(r.cells) {
				r.cells[i].text = narrow(r.cells[i].text)
				widths[i] = max(widths[i], utf8.RuneCountInString(r.cells[i].text))
			}
		}
	}
	widths[0] = min(widths[0], mostFirst)
	cols = slices.DeleteFunc(slices.Clone(cols), func(c column) bool { return widths[c.of] == 0 })
	if width > 0 {
		widths[0] = min(widths[0], max(width/4, 10))
		cols = fit(cols, widths, width)
	}
	lines := []Line{align(cols, widths, headOf(cols), len(cols))}
	for _, r := range rows {
		lines = append(lines, align(cols, widths, r, len(cols)))
	}
	return lines
}

func headOf(cols []column) row {
	r := row{style: Head}
	for _, c := range cols {
		for len(r.cells) <= c.of {
			r.cells = append(r.cells, cell{})
		}
		r.cells[c.of].text = c.head
	}
	return r
}

// fit leaves out columns until a table is no wider than the screen, or none can be left out. The
// last column may be cut.
func fit(cols []column, widths []int, width int) []column {
	for {
		total, worst := -gap, -1
		for i, c := range cols {
			w := widths[c.of]
			if i == len(cols)-1 && c.left {
				w = min(w, max(len(c.head), 9))
			}
			total += w + gap
			if c.drop > 0 && (worst < 0 || c.drop > cols[worst].drop) {
				worst = i
			}
		}
		if total <= width || worst < 0 {
			return cols
		}
		cols = append(append([]column(nil), cols[:worst]...), cols[worst+1:]...)
	}
}

func align(cols []column, widths []int, r row, n int) Line {
	l := Line{Style: r.style}
	var b strings.Builder
	at := 0
	for i, c := range cols {
		var one cell
		if c.of < len(r.cells) {
			one = r.cells[c.of]
		}
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
			at += gap
		}
		text := cut(one.text, widths[c.of])
		length := utf8.RuneCountInString(text)
		pad := strings.Repeat(" ", widths[c.of]-length)
		begin := at
		if c.left || i == n-1 {
			b.WriteString(text + pad)
		} else {
			b.WriteString(pad + text)
			begin += len(pad)
		}
		if one.style != Plain && length > 0 {
			l.Spans = append(l.Spans, Span{begin, begin + length, one.style})
		}
		at += widths[c.of]
	}
	l.Text = strings.TrimRight(b.String(), " ")
	return l
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
		if r >= 0x300 && r != '…' && !(r >= sparkFirst && r <= sparkLast) {
			return '?'
		}
		return r
	}, s)
}
