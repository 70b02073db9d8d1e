package view

import "strings"

// Enter and Leave switch a terminal to its second screen without a cursor, and back to what was there.
const (
	Enter = "\x1b[?1049h\x1b[?25l"
	Leave = "\x1b[0m\x1b[?25h\x1b[?1049l"
)

var styles = map[Style]string{Head: "\x1b[7m", Alert: "\x1b[1;31m", Faint: "\x1b[2m"}

// Frame is what draws lines on a terminal in place of those before, without flicker: nothing is erased before its place is written.
func Frame(lines []Line, width int) string {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		style := styles[l.Style]
		b.WriteString(style + l.Text)
		if l.Style == Head {
			b.WriteString(strings.Repeat(" ", max(0, width-len([]rune(l.Text)))))
		}
		if style != "" {
			b.WriteString("\x1b[0m")
		}
		if l.Style != Head { // a full line leaves the cursor on its last column, which would be erased
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
