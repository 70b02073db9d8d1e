package idl

import (
	"fmt"
	"strconv"
	"strings"
)

// line is one line of a file, split into words; a quoted word keeps its blanks and loses its
// quotes.
type line struct {
	Pos
	indented bool
	words    []string
}

func scan(name, text string) ([]line, error) {
	var out []line
	for i, raw := range strings.Split(text, "\n") {
		l := line{Pos: Pos{File: name, Line: i + 1}}
		l.indented = strings.HasPrefix(raw, " ") || strings.HasPrefix(raw, "\t")
		words, err := split(raw)
		if err != nil {
			return nil, l.Errorf("%w", err)
		}
		if l.words = words; len(words) > 0 {
			out = append(out, l)
		}
	}
	return out, nil
}

func split(s string) ([]string, error) {
	var words []string
	for {
		s = strings.TrimLeft(s, " \t\r")
		switch {
		case s == "" || s[0] == '#':
			return words, nil
		case s[0] == '"':
			q, err := strconv.QuotedPrefix(s)
			if err != nil {
				return nil, fmt.Errorf("unfinished quote: %s", s)
			}
			w, err := strconv.Unquote(q)
			if err != nil {
				return nil, fmt.Errorf("bad quote: %s", q)
			}
			words, s = append(words, w), s[len(q):]
		default:
			n := strings.IndexAny(s, " \t\r#")
			if n < 0 {
				n = len(s)
			}
			words, s = append(words, s[:n]), s[n:]
		}
	}
}

// identifier reports whether s can be a name in C and Go.
func identifier(s string) bool {
	for i, r := range s {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
