package main

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// ofShell is the first line of a shell script without the ending .sh.
var ofShell = regexp.MustCompile(`^#!.*\b(ba|da)?sh\b`)

// hereDocument is a redirection whose text begins on the next line, and ends with its word.
var hereDocument = regexp.MustCompile(`<<-?(['"]?)([A-Za-z_]\w*)(?:['"]?)`)

func isShell(name string, text []byte) bool {
	return path.Ext(name) == ".sh" || path.Ext(name) == "" && ofShell.Match(text)
}

// judgeShell finds lines of comment that are not wrapped, the help texts at the head of scripts
// among them. Tabs count eight. Comments behind code are the code's, and what is in here-documents
// is of another language.
func judgeShell(name string, text []byte) []violation {
	var found []violation
	until := ""
	for i, row := range strings.Split(string(bytes.TrimSuffix(text, []byte("\n"))), "\n") {
		said, is := strings.CutPrefix(strings.TrimLeft(row, " \t"), "#")
		switch {
		case until != "":
			if strings.TrimLeft(row, "\t") == until {
				until = ""
			}
		case !is:
			if m := hereDocument.FindStringSubmatch(row); m != nil {
				until = m[2]
			}
		case strings.HasPrefix(said, "!"), strings.HasPrefix(said, " shellcheck "), !strings.Contains(strings.TrimSpace(said), " "):
		default:
			if w := columns(row, tabOfC); w > commentWidth {
				found = append(found, violation{name, i + 1, fmt.Sprintf("%d columns of comment, at most %d: wrap it", w, commentWidth)})
			}
		}
	}
	return found
}
