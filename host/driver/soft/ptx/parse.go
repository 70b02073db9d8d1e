package ptx

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxSource is the largest source Parse accepts, in bytes.
const MaxSource = 256 << 20

// maxMemory bounds what the decoded module may take, in bytes, by estimate.
// Terse text can be much larger decoded than written.
const maxMemory = 1 << 30

// Estimated sizes of what the parser keeps.
const (
	costInstr   = 160
	costOperand = 112
	costVar     = 320
	costInit    = 64
	costName    = 96
	costFunc    = 1024
)

// maxDepth bounds nested scopes, braces and parentheses.
const maxDepth = 64

// maxAliases bounds .alias directives, each of which searches the functions.
const maxAliases = 1024

// Parse decodes PTX text. The text ends at the first NUL or at the end of src;
// src is not kept. Errors are of type *Error.
func Parse(src []byte) (m *Module, err error) {
	if len(src) > MaxSource {
		return nil, &Error{Line: 1, Msg: fmt.Sprintf("source of %d bytes is larger than %d", len(src), MaxSource)}
	}
	p := &parser{lex: newLexer(src), mod: &Module{AddressSize: 64}, globals: map[string]*Var{}}
	p.advance()
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			m, err = nil, e
		}
	}()
	p.module()
	return p.mod, nil
}

// parser is a recursive descent over one token of lookahead. Syntax errors
// travel as a panic of *Error to Parse, and no further.
type parser struct {
	lex     *lexer
	tok     token
	mod     *Module
	globals map[string]*Var

	fn     *Func // function being parsed
	scopes []*scope
	ranges int // register ranges of the function so far
	used   int // estimated memory

	aliases int
}

// spend accounts for memory about to be kept.
func (p *parser) spend(n int) {
	if p.used += n; p.used > maxMemory {
		p.fail("module is too large")
	}
}

func (p *parser) fail(format string, args ...any) {
	panic(&Error{Line: p.tok.line, Msg: fmt.Sprintf(format, args...)})
}

func (p *parser) advance() { p.tok = p.lex.next() }

func (p *parser) is(punct string) bool { return p.tok.kind == tokPunct && p.tok.text == punct }

func (p *parser) accept(punct string) bool {
	if p.is(punct) {
		p.advance()
		return true
	}
	return false
}

func (p *parser) expect(punct string) {
	if !p.accept(punct) {
		p.fail("expected %q, found %s", punct, p.tok.describe())
	}
}

func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of text"
	case tokDot:
		return strconv.Quote("." + t.text)
	case tokFloat, tokFloat32:
		return "a floating literal"
	case tokString:
		return "a string"
	}
	return strconv.Quote(t.text)
}

func (p *parser) ident() string {
	if p.tok.kind != tokIdent {
		p.fail("expected a name, found %s", p.tok.describe())
	}
	s := p.tok.text
	p.advance()
	return s
}

// dot accepts the directive or modifier .name.
func (p *parser) dot(name string) bool {
	if p.tok.kind == tokDot && p.tok.text == name {
		p.advance()
		return true
	}
	return false
}

// number reads an integer constant expression.
func (p *parser) number() uint64 { return p.sum(0) }

func (p *parser) sum(depth int) uint64 {
	v := p.term(depth)
	for {
		switch {
		case p.accept("+"):
			v += p.term(depth)
		case p.accept("-"):
			v -= p.term(depth)
		default:
			return v
		}
	}
}

func (p *parser) term(depth int) uint64 {
	v := p.unary(depth)
	for p.accept("*") {
		v *= p.unary(depth)
	}
	return v
}

func (p *parser) unary(depth int) uint64 {
	if depth > maxDepth {
		p.fail("constant expression nested too deeply")
	}
	switch {
	case p.accept("-"):
		return -p.unary(depth + 1)
	case p.accept("+"):
		return p.unary(depth + 1)
	case p.accept("~"):
		return ^p.unary(depth + 1)
	case p.accept("("):
		v := p.sum(depth + 1)
		p.expect(")")
		return v
	case p.tok.kind == tokInt:
		v := p.tok.val
		p.advance()
		return v
	}
	p.fail("expected a number, found %s", p.tok.describe())
	return 0
}

func (p *parser) small(what string, limit uint64) uint32 {
	v := p.number()
	if v > limit {
		p.fail("%s %d is larger than %d", what, v, limit)
	}
	return uint32(v)
}

// module reads the header and all module scope declarations.
func (p *parser) module() {
	if !p.dot("version") {
		p.fail("expected .version, found %s", p.tok.describe())
	}
	p.version()
	for p.tok.kind != tokEOF {
		switch {
		case p.dot("target"):
			p.target()
		case p.dot("address_size"):
			p.mod.AddressSize = int(p.small("address size", 64))
			if p.mod.AddressSize != 64 {
				p.fail("address size %d is not supported, only 64", p.mod.AddressSize)
			}
		case p.lineDirective():
		case p.dot("section"):
			p.section()
		case p.dot("pragma"):
			for !p.is(";") && p.tok.kind != tokEOF {
				p.advance()
			}
			p.expect(";")
		case p.dot("alias"):
			p.alias()
		case p.accept(";"):
		default:
			p.declaration()
		}
	}
	if p.mod.Target == "" {
		p.fail("no .target")
	}
}

func (p *parser) version() {
	// 8.4 reads as a floating literal, so the text is taken from the source.
	t := p.tok
	if t.kind != tokFloat {
		p.fail("expected a version, found %s", t.describe())
	}
	end := p.lex.pos
	start := end
	for start > 0 && (digit(p.lex.src[start-1]) || p.lex.src[start-1] == '.') {
		start--
	}
	major, minor, ok := strings.Cut(p.lex.src[start:end], ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if !ok || err1 != nil || err2 != nil || a < 1 || a > 99 || b > 99 {
		p.fail("bad version")
	}
	p.mod.Version = Version{a, b}
	p.advance()
}

func (p *parser) target() {
	for {
		name := p.ident()
		if rest, ok := strings.CutPrefix(name, "sm_"); ok {
			n, err := strconv.Atoi(strings.TrimRight(rest, "af"))
			if err != nil || n < 10 || n > 999 {
				p.fail("unknown target %q", name)
			}
			p.mod.Target, p.mod.SM = name, n
		}
		if !p.accept(",") {
			break
		}
	}
	if p.mod.Target == "" {
		p.fail("no sm_ architecture in .target")
	}
}

// lineDirective skips the debugging directives that end with their line.
func (p *parser) lineDirective() bool {
	if p.tok.kind != tokDot || p.tok.text != "file" && p.tok.text != "loc" {
		return p.dwarfLine()
	}
	p.lex.skipLine()
	p.advance()
	return true
}

func (p *parser) dwarfLine() bool {
	if p.is("@") && p.lex.peekAt(0) == '@' {
		p.lex.skipLine()
		p.advance()
		return true
	}
	return false
}

// section skips a .section with its braces.
func (p *parser) section() {
	for !p.is("{") && p.tok.kind != tokEOF {
		p.advance()
	}
	p.expect("{")
	for !p.is("}") {
		if p.tok.kind == tokEOF {
			p.fail("section without end")
		}
		p.advance()
	}
	p.expect("}")
}

func (p *parser) linkage() Linkage {
	switch {
	case p.dot("visible"):
		return Visible
	case p.dot("extern"):
		return Extern
	case p.dot("weak"):
		return Weak
	case p.dot("common"):
		return Common
	}
	return Local
}

// declaration reads a variable or a function.
func (p *parser) declaration() {
	link := p.linkage()
	switch {
	case p.dot("entry"):
		p.function(link, true)
	case p.dot("func"):
		p.function(link, false)
	default:
		space, ok := p.space()
		if !ok || space == RegSpace || space == Param {
			p.fail("expected a declaration, found %s", p.tok.describe())
		}
		for _, v := range p.variables(space, link) {
			p.mod.Vars = append(p.mod.Vars, v)
			if old := p.globals[v.Name]; old == nil || old.Linkage == Extern {
				p.globals[v.Name] = v
			} else if link != Extern {
				p.fail("%s is declared twice", v.Name)
			}
		}
	}
}

// alias reads ".alias a, b;": function a is another name of b.
func (p *parser) alias() {
	a := p.ident()
	p.expect(",")
	b := p.ident()
	p.expect(";")
	if p.aliases++; p.aliases > maxAliases {
		p.fail("too many aliases")
	}
	for _, f := range p.mod.Funcs {
		if f.Name == b && f.Defined {
			p.spend(costFunc)
			twin := *f
			twin.Name = a
			p.mod.Funcs = append(p.mod.Funcs, &twin)
			return
		}
	}
	p.fail("alias %s of unknown function %s", a, b)
}
