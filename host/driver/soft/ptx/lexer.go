package ptx

import (
	"bytes"
	"math"
	"strconv"
)

type tokenKind uint8

const (
	tokEOF     tokenKind = iota
	tokIdent             // name, %name, $name
	tokDot               // .name, text without the dot
	tokInt               // val
	tokFloat             // val: float64 bits
	tokFloat32           // val: float32 bits
	tokString            // text without quotes
	tokPunct             // text is the one byte
)

// token is a lexeme. glued says that no blank precedes it, which separates the
// modifiers of an opcode from a directive.
type token struct {
	kind  tokenKind
	glued bool
	line  int
	text  string
	val   uint64
}

// lexer cuts the source into tokens. It never fails on its own: an unknown
// byte becomes a tokPunct that no rule accepts.
type lexer struct {
	src  string
	pos  int
	line int
}

func newLexer(src []byte) *lexer {
	if i := bytes.IndexByte(src, 0); i >= 0 {
		src = src[:i]
	}
	return &lexer{src: string(src), line: 1}
}

func identStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' || c == '%'
}

func identPart(c byte) bool { return identStart(c) && c != '%' || c >= '0' && c <= '9' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

// skipBlank passes blanks and comments and reports whether there were any.
func (l *lexer) skipBlank() bool {
	start := l.pos
	for l.pos < len(l.src) {
		switch c := l.src[l.pos]; {
		case c == '\n':
			l.line++
			l.pos++
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			l.pos++
		case c == '/' && l.peekAt(1) == '/':
			l.skipLine()
		case c == '/' && l.peekAt(1) == '*':
			l.pos += 2
			for l.pos < len(l.src) && !(l.src[l.pos] == '*' && l.peekAt(1) == '/') {
				if l.src[l.pos] == '\n' {
					l.line++
				}
				l.pos++
			}
			l.pos = min(l.pos+2, len(l.src))
		case c == '#': // preprocessor line marker
			l.skipLine()
		default:
			return l.pos != start
		}
	}
	return l.pos != start
}

// skipLine moves to the end of the current line.
func (l *lexer) skipLine() {
	for l.pos < len(l.src) && l.src[l.pos] != '\n' {
		l.pos++
	}
}

func (l *lexer) peekAt(n int) byte {
	if l.pos+n < len(l.src) {
		return l.src[l.pos+n]
	}
	return 0
}

func (l *lexer) next() token {
	blank := l.skipBlank()
	t := token{glued: !blank, line: l.line}
	if l.pos >= len(l.src) {
		return t
	}
	start := l.pos
	c := l.src[l.pos]
	switch {
	case identStart(c):
		l.pos++
		for l.pos < len(l.src) && identPart(l.src[l.pos]) {
			l.pos++
		}
		t.kind, t.text = tokIdent, l.src[start:l.pos]
	case c == '.' && identPart(l.peekAt(1)):
		l.pos++
		l.modifier()
		t.kind, t.text = tokDot, l.src[start+1:l.pos]
	case digit(c):
		l.number(&t)
	case c == '"':
		l.pos++
		for l.pos < len(l.src) && l.src[l.pos] != '"' {
			if l.src[l.pos] == '\\' {
				l.pos++
			} else if l.src[l.pos] == '\n' {
				l.line++
			}
			l.pos++
		}
		l.pos = min(l.pos, len(l.src))
		t.kind, t.text = tokString, l.src[start+1:l.pos]
		l.pos = min(l.pos+1, len(l.src))
	default:
		l.pos++
		t.kind, t.text = tokPunct, l.src[start:l.pos]
	}
	return t
}

// modifier passes a name with "::" parts, as in shared::cta.
func (l *lexer) modifier() {
	for l.pos < len(l.src) {
		if identPart(l.src[l.pos]) {
			l.pos++
		} else if l.src[l.pos] == ':' && l.peekAt(1) == ':' && identPart(l.peekAt(2)) {
			l.pos += 2
		} else {
			return
		}
	}
}

// number reads a literal: 0f and 0d followed by hex digits, integers in four
// bases with an optional U, and decimal floating point.
func (l *lexer) number(t *token) {
	start := l.pos
	c := l.peekAt(1)
	if l.src[l.pos] == '0' && (c == 'f' || c == 'F' || c == 'd' || c == 'D') {
		n, kind := 8, tokFloat32
		if c == 'd' || c == 'D' {
			n, kind = 16, tokFloat
		}
		if end := start + 2 + n; end <= len(l.src) {
			if v, err := strconv.ParseUint(l.src[start+2:end], 16, 64); err == nil {
				l.pos = end
				t.kind, t.val = kind, v
				return
			}
		}
	}
	for l.pos < len(l.src) && identPart(l.src[l.pos]) {
		l.pos++
	}
	if l.pos < len(l.src) && l.src[l.pos] == '.' && digit(l.peekAt(1)) || l.isExponent(start) {
		l.decimal(start, t)
		return
	}
	text := l.src[start:l.pos]
	if n := len(text); n > 1 && (text[n-1] == 'U' || text[n-1] == 'u') {
		text = text[:n-1]
	}
	base := 10
	switch {
	case len(text) > 2 && (text[1] == 'x' || text[1] == 'X'):
		text, base = text[2:], 16
	case len(text) > 2 && (text[1] == 'b' || text[1] == 'B'):
		text, base = text[2:], 2
	case len(text) > 1 && text[0] == '0':
		text, base = text[1:], 8
	}
	v, err := strconv.ParseUint(text, base, 64)
	if err != nil {
		t.kind, t.text = tokPunct, l.src[start:l.pos]
		return
	}
	t.kind, t.val, t.text = tokInt, v, l.src[start:l.pos]
}

// isExponent reports whether the digits just passed are a mantissa and "e".
func (l *lexer) isExponent(start int) bool {
	n := l.pos - start
	return n > 1 && (l.src[l.pos-1] == 'e' || l.src[l.pos-1] == 'E') && l.src[start+1] != 'x' && l.src[start+1] != 'X' &&
		(l.peekAt(0) == '+' || l.peekAt(0) == '-') && digit(l.peekAt(1))
}

func (l *lexer) decimal(start int, t *token) {
	l.pos = start
	for l.pos < len(l.src) {
		c := l.src[l.pos]
		sign := (c == '+' || c == '-') && (l.src[l.pos-1] == 'e' || l.src[l.pos-1] == 'E')
		if !digit(c) && c != '.' && c != 'e' && c != 'E' && !sign {
			break
		}
		l.pos++
	}
	v, err := strconv.ParseFloat(l.src[start:l.pos], 64)
	if err != nil && !math.IsInf(v, 0) {
		t.kind, t.text = tokPunct, l.src[start:l.pos]
		return
	}
	t.kind, t.val = tokFloat, math.Float64bits(v)
}
