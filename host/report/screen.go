package report

import "strings"

// Enter and Leave switch a terminal to its second screen without a cursor, and back to what was
// there.
const (
	Enter = "\x1b[?1049h\x1b[?25l"
	Leave = "\x1b[0m\x1b[?25h\x1b[?1049l"
)

const reset = "\x1b[0m"

// Look is how styles are drawn.
type Look map[Style]string

// Looks: with colours, and without (NO_COLOR).
var (
	Colours = Look{Head: "\x1b[7m", Alert: "\x1b[1;31m", Faint: "\x1b[2m", Good: "\x1b[32m", Warm: "\x1b[33m", Bad: "\x1b[1;31m"}
	Mono    = Look{Head: "\x1b[7m", Alert: "\x1b[1m", Faint: "\x1b[2m", Bad: "\x1b[1m"}
)

// draw is a line's text with its styles.
func (k Look) draw(l Line, width int) string {
	style := k[l.Style]
	text := []rune(l.Text)
	var b strings.Builder
	b.WriteString(style)
	at := 0
	for _, s := range l.Spans {
		from, to := min(s.From, len(text)), min(s.To, len(text))
		if k[s.Style] == "" || from >= to || from < at {
			continue
		}
		b.WriteString(string(text[at:from]) + reset + k[s.Style] + string(text[from:to]) + reset + style)
		at = to
	}
	b.WriteString(string(text[at:]))
	if l.Style == Head {
		b.WriteString(strings.Repeat(" ", max(0, width-len(text))))
	}
	if style != "" {
		b.WriteString(reset)
	}
	return b.String()
}

// Frame is what draws lines on a terminal in place of those before, without flicker: nothing is
// erased before its place is written.
func (k Look) Frame(lines []Line, width int) string {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(k.draw(l, width))
		if l.Style != Head && len([]rune(l.Text)) < width {
			// A full line leaves the cursor on its last column, which would be erased.
			b.WriteString("\x1b[K")
		}
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// Text is lines without styles, for files and pipes.
func Text(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.Text + "\n")
	}
	return b.String()
}
