package ptx

import (
	"math"
	"strings"
)

func widen(f uint32) uint64 { return math.Float64bits(float64(math.Float32frombits(f))) }

// statement reads a label, a labelled table or an instruction.
func (p *parser) statement() {
	if p.tok.kind == tokIdent {
		l := *p.lex
		if t := l.next(); t.kind == tokPunct && t.text == ":" {
			name := p.ident()
			p.advance()
			p.label(name)
			return
		}
	}
	p.instruction()
}

func (p *parser) label(name string) {
	switch {
	case p.dot("branchtargets"), p.dot("calltargets"):
		var list []string
		for {
			p.spend(costName)
			list = append(list, p.ident())
			if !p.accept(",") {
				break
			}
		}
		p.expect(";")
		if p.fn.Tables == nil {
			p.fn.Tables = map[string][]string{}
		}
		p.fn.Tables[name] = list
	case p.dot("callprototype"):
		p.prototype(name)
	default:
		if _, dup := p.fn.Labels[name]; dup {
			p.fail("label %s is declared twice", name)
		}
		p.spend(costName)
		p.fn.Labels[name] = len(p.fn.Body)
	}
}

func (p *parser) prototype(name string) {
	p.scopes = append(p.scopes, newScope()) // its parameter names are its own
	defer func() { p.scopes = p.scopes[:len(p.scopes)-1] }()
	proto := &Proto{}
	if p.accept("(") {
		proto.Returns = p.params()
	}
	p.ident() // "_"
	if p.accept("(") {
		proto.Params = p.params()
	}
	for p.tok.kind == tokDot { // .noreturn, .abi_preserve n
		p.advance()
		if p.tok.kind == tokInt {
			p.advance()
		}
	}
	p.expect(";")
	if p.fn.Protos == nil {
		p.fn.Protos = map[string]*Proto{}
	}
	p.fn.Protos[name] = proto
}

func (p *parser) instruction() {
	p.spend(costInstr)
	in := Instr{Guard: -1, Line: p.tok.line}
	if p.accept("@") {
		in.GuardNot = p.accept("!")
		name := p.ident()
		r, _ := p.lookup(name)
		if r < 0 || p.fn.Regs[r].Type != Pred {
			p.fail("guard %s is not a predicate register", name)
		}
		in.Guard = r
	}
	in.Line = p.tok.line
	in.Op = p.ident()
	for p.tok.kind == tokDot && p.tok.glued {
		in.Mods = append(in.Mods, p.tok.text)
		if len(in.Mods) > 24 {
			p.fail("too many modifiers")
		}
		p.advance()
	}
	for !p.accept(";") {
		if p.is("{") && in.Op != "" && len(in.Operands) == 0 && p.tok.kind == tokEOF {
			break
		}
		in.Operands = append(in.Operands, p.operand(0))
		if p.accept(",") {
			continue
		}
		if !p.is(";") && !p.nextOperandOfCall(&in) {
			p.fail("expected \",\" or \";\", found %s", p.tok.describe())
		}
	}
	p.fn.Body = append(p.fn.Body, in)
}

// nextOperandOfCall tolerates a missing comma after a parenthesised list.
func (p *parser) nextOperandOfCall(in *Instr) bool {
	return in.Op == "call" && in.Operands[len(in.Operands)-1].Kind == OpList && p.tok.kind == tokIdent
}

func (p *parser) operand(depth int) Operand {
	if depth > 4 {
		p.fail("operand nested too deeply")
	}
	p.spend(costOperand)
	a := p.single(depth)
	if p.is("|") {
		p.advance()
		b := p.single(depth + 1)
		return Operand{Kind: OpPair, Elems: []Operand{a, b}}
	}
	return a
}

func (p *parser) single(depth int) Operand {
	if depth > 8 {
		p.fail("operand nested too deeply")
	}
	switch {
	case p.accept("{"):
		return Operand{Kind: OpVector, Elems: p.elems("}", depth)}
	case p.accept("("):
		return Operand{Kind: OpList, Elems: p.elems(")", depth)}
	case p.accept("["):
		return p.address(depth)
	case p.accept("!"):
		o := p.single(depth + 1)
		o.Not = !o.Not
		return o
	case p.tok.kind == tokFloat32:
		o := Operand{Kind: OpFloat32, Imm: p.tok.val}
		p.advance()
		return o
	case p.tok.kind == tokFloat || p.is("-") && p.floatFollows():
		return Operand{Kind: OpFloat, Imm: p.floatBits()}
	case p.tok.kind == tokIdent:
		return p.name()
	}
	return Operand{Kind: OpImm, Imm: p.number()}
}

func (p *parser) elems(end string, depth int) []Operand {
	var list []Operand
	for !p.accept(end) {
		list = append(list, p.operand(depth+1))
		if !p.accept(",") {
			p.expect(end)
			break
		}
	}
	return list
}

// address reads [base+offset] and the forms with further elements.
func (p *parser) address(depth int) Operand {
	o := Operand{Kind: OpAddr}
	o.Elems = append(o.Elems, p.operand(depth+1))
	if p.is("+") || p.is("-") {
		o.Imm = p.offset()
	}
	if p.accept(",") {
		o.Elems = append(o.Elems, p.elems("]", depth)...)
		return o
	}
	p.expect("]")
	return o
}

// name reads a register, special register, symbol or label.
func (p *parser) name() Operand {
	name := p.ident()
	if name == "_" {
		return Operand{Kind: OpSink}
	}
	reg, v := p.lookup(name)
	switch {
	case reg >= 0:
		if p.tok.kind == tokDot && p.tok.glued {
			p.fail("vector registers are not supported: %s.%s", name, p.tok.text)
		}
		return Operand{Kind: OpReg, Reg: reg}
	case v != nil:
		return p.symbol(Operand{Kind: OpSymbol, Name: name, Var: v})
	case name == "WARP_SZ":
		return Operand{Kind: OpImm, Imm: 32}
	case name[0] == '%':
		if p.tok.kind == tokDot && p.tok.glued && strings.Contains(".x.y.z.w", "."+p.tok.text) {
			name += "." + p.tok.text
			p.advance()
		}
		return Operand{Kind: OpSpecial, Name: name}
	}
	return p.symbol(Operand{Kind: OpSymbol, Name: name, Var: p.globals[name]})
}

// symbol reads an offset after a symbol outside of brackets; within brackets
// the caller does.
func (p *parser) symbol(o Operand) Operand {
	if p.is("+") || p.is("-") {
		o.Imm = p.offset()
	}
	return o
}

// resolveLabels turns the symbols that name labels of the function into label
// operands; a label hides a module scope name.
func (p *parser) resolveLabels() {
	f := p.fn
	if len(f.Labels) == 0 {
		return
	}
	for i := range f.Body {
		for j := range f.Body[i].Operands {
			o := &f.Body[i].Operands[j]
			if o.Kind != OpSymbol {
				continue
			}
			if at, ok := f.Labels[o.Name]; ok {
				o.Kind, o.Imm = OpLabel, uint64(at)
			}
		}
	}
}
