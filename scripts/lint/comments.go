package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// commentWidth is where the text of comments is wrapped. Code may be wider (.clang-format says how
// much in C), but a comment behind code that makes its line wider stands on a line of its own.
const commentWidth = 100

// Tabs: in Go a tab counts four; in C eight, as .clang-format has it.
const (
	tabOfGo = 4
	tabOfC  = 8
)

// laidOut are lines of a comment, behind its mark, that are no running text: code, lists, tables,
// directives.
var laidOut = regexp.MustCompile(`^($|[^ ]|  |\t| - | #| +[0-9]+[.)])`)

// comment is a comment by the offsets of its first byte and behind its last one.
type comment struct{ begin, end int }

// judgeComments finds running text that is not wrapped, of Go and of C.
func judgeComments(name string, text []byte) []violation {
	if isGenerated(text) {
		return nil
	}
	comments, tab := goComments, tabOfGo
	if path.Ext(name) != ".go" {
		comments, tab = cComments, tabOfC
	} else if hasPart(strings.TrimSuffix(path.Base(name), ".go"), "cgo") { // C in comments
		return nil
	}
	var found []violation
	line, at := 1, 0 // of the offset at
	for _, c := range comments(text) {
		line, at = line+bytes.Count(text[at:c.begin], []byte("\n")), c.begin
		found = append(found, judgeComment(name, text, c, line, tab)...)
	}
	return found
}

// judgeComment judges one comment, which begins in a line. Comments in the middle of code and those
// of macros are the code's.
func judgeComment(name string, text []byte, c comment, line, tab int) []violation {
	begin := bytes.LastIndexByte(text[:c.begin], '\n') + 1
	if rest, _, _ := bytes.Cut(text[c.end:], []byte("\n")); len(bytes.TrimSpace(rest)) > 0 || bytes.HasSuffix(text[:max(begin-1, 0)], []byte(`\`)) {
		return nil
	}
	what := "wrap it"
	if len(bytes.TrimSpace(text[begin:c.begin])) > 0 {
		what = "give it a line of its own, in front of the code"
	}
	var found []violation
	for i, row := range strings.Split(string(text[begin:c.end]), "\n") {
		said := row
		if i == 0 {
			said = row[c.begin-begin:]
		}
		said = textOf(said, i == 0)
		if w := columns(row, tab); w > commentWidth && !laidOut.MatchString(said) && strings.ContainsRune(strings.TrimSpace(said), ' ') {
			found = append(found, violation{name, line + i, fmt.Sprintf("%d columns of comment, at most %d: %s", w, commentWidth, what)})
		}
	}
	return found
}

// textOf is what a line of a comment says, with the blank in front of it.
func textOf(line string, first bool) string {
	line = strings.TrimSuffix(line, "*/")
	if first {
		return line[len("//"):]
	}
	if starred, ok := strings.CutPrefix(strings.TrimLeft(line, " \t"), "*"); ok {
		return starred
	}
	if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") { // a block without stars
		return "  " + line
	}
	return " " + line
}

// columns is how wide a line is.
func columns(line string, tab int) int {
	n := 0
	for _, r := range line {
		if n++; r == '\t' {
			n += tab - 1 - (n-1)%tab
		}
	}
	return n
}

// goComments are the comments of a file of Go.
func goComments(text []byte) []comment {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	var found []comment
	for {
		pos, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return found
		case token.COMMENT:
			begin := file.Offset(pos)
			found = append(found, comment{begin, begin + len(lit)})
		}
	}
}

// cTokens are those of C and C++ in which a comment's mark may stand, and comments. An apostrophe
// behind a digit parts digits.
var cTokens = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|[0-9a-fA-FxX]'[0-9a-fA-F]|'(?:\\.|[^'\\\n])*'`)

// cComments are the comments of a file of C.
func cComments(text []byte) []comment {
	var found []comment
	for _, at := range cTokens.FindAllIndex(text, -1) {
		if text[at[0]] == '/' {
			found = append(found, comment{at[0], at[1]})
		}
	}
	return found
}
