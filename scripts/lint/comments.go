package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// commentWidth is where the text of a comment that stands alone is wrapped; a tab counts four.
const commentWidth = 100

// laidOut are lines of a comment that are no running text: code, lists, tables, directives.
var laidOut = regexp.MustCompile(`^//($|[^ ]|  |\t| - | #| +[0-9]+[.)])`)

// indented are lines of a block that are laid out.
var indented = regexp.MustCompile(`^[ \t]`)

// judgeComments finds running text that is not wrapped. What stands behind code is the code's line.
func judgeComments(name string, text []byte) []violation {
	if isGenerated(text) || hasPart(strings.TrimSuffix(path.Base(name), ".go"), "cgo") { // C in comments
		return nil
	}
	files := token.NewFileSet()
	file := files.AddFile(name, files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	var found []violation
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return found
		}
		if tok != token.COMMENT || laidOut.MatchString(lit) {
			continue
		}
		at := file.Position(pos)
		before := text[at.Offset-(at.Column-1) : at.Offset]
		if len(bytes.TrimSpace(before)) > 0 {
			continue
		}
		for i, line := range strings.Split(lit, "\n") {
			wide := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			if i == 0 {
				wide += 4 * len(before)
			}
			if wide > commentWidth && strings.ContainsRune(strings.TrimPrefix(line, "// "), ' ') && !indented.MatchString(line) {
				found = append(found, violation{name, at.Line + i, fmt.Sprintf("%d columns of comment, at most %d: wrap it", wide, commentWidth)})
			}
		}
	}
}
