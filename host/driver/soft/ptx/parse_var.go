package ptx

import "math/bits"

// maxVar bounds a variable's size in bytes, so that sums cannot overflow.
const maxVar = 1 << 47

func (p *parser) space() (Space, bool) {
	if p.tok.kind != tokDot {
		return 0, false
	}
	var s Space
	switch p.tok.text {
	case "global":
		s = Global
	case "shared", "shared::cta":
		s = Shared
	case "const":
		s = Const
	case "local":
		s = LocalSpace
	case "param":
		s = Param
	case "reg", "sreg":
		s = RegSpace
	case "tex":
		s = Tex
	default:
		return 0, false
	}
	p.advance()
	return s, true
}

// varType reads what stands between the space and the name.
func (p *parser) varType(space Space) Var {
	v := Var{Space: space, Vec: 1, Line: p.tok.line}
	for p.tok.kind == tokDot {
		switch name := p.tok.text; name {
		case "align":
			p.advance()
			n := p.number()
			if n == 0 || n&(n-1) != 0 || n > 1<<20 {
				p.fail("alignment %d is not a power of two up to 1 MiB", n)
			}
			if !v.Pointer { // after .ptr it is what the parameter points to
				v.Align = n
			}
		case "ptr":
			p.advance()
			v.Pointer = true
			p.space()
		case "attribute":
			p.advance()
			v.Managed = p.skipParens("managed") || v.Managed
		case "v2", "v4", "v8":
			p.advance()
			v.Vec = int(name[1] - '0')
		default:
			t := TypeOf(name)
			if t == NoType {
				p.fail("unknown type .%s", name)
			}
			v.Type = t
			p.advance()
		}
	}
	if v.Type == NoType {
		p.fail("declaration without a type")
	}
	return v
}

// skipParens passes one parenthesised group, if there is one, and reports
// whether the directive .name is in it.
func (p *parser) skipParens(name string) (found bool) {
	if !p.accept("(") {
		return false
	}
	for depth := 1; depth > 0; p.advance() {
		found = found || p.tok.kind == tokDot && p.tok.text == name
		switch {
		case p.tok.kind == tokEOF:
			p.fail("missing )")
		case p.is("("):
			depth++
		case p.is(")"):
			depth--
		}
	}
	return found
}

// variables reads the list of variables up to and with the semicolon.
func (p *parser) variables(space Space, link Linkage) []*Var {
	proto := p.varType(space)
	var list []*Var
	for {
		p.spend(costVar)
		v := proto
		v.Linkage, v.Line = link, p.tok.line
		v.Name = p.ident()
		p.dims(&v)
		if p.accept("=") {
			p.initialiser(&v)
		}
		p.layout(&v)
		list = append(list, &v)
		if !p.accept(",") {
			break
		}
	}
	p.expect(";")
	return list
}

func (p *parser) dims(v *Var) {
	for p.accept("[") {
		if len(v.Dims) == 8 {
			p.fail("too many array dimensions")
		}
		var n uint64
		if !p.is("]") {
			n = p.number()
			if n == 0 {
				p.fail("array of no elements")
			}
		} else if len(v.Dims) > 0 {
			p.fail("only the first dimension may be left out")
		}
		p.expect("]")
		v.Dims = append(v.Dims, n)
	}
}

// layout computes size and alignment once the initialiser is known.
func (p *parser) layout(v *Var) {
	elem := v.Type.Size() * uint64(v.Vec)
	if v.Align == 0 {
		v.Align = elem
	}
	v.Size = elem
	for i, d := range v.Dims {
		if d == 0 && i == 0 && len(v.Init) > 0 && len(v.Dims) == 1 {
			d = v.Init[len(v.Init)-1].Index/uint64(v.Vec) + 1
			v.Dims[0] = d
		}
		hi, lo := bits.Mul64(v.Size, d)
		if hi != 0 || lo > maxVar {
			p.fail("%s is larger than 2^47 bytes", v.Name)
		}
		v.Size = lo
	}
	if n := len(v.Init); n > 0 && v.Size > 0 && (v.Init[n-1].Index+1)*v.Type.Size() > v.Size {
		p.fail("too many initialisers for %s", v.Name)
	}
}

// initialiser reads a scalar, a string or a braced list, flattening nested
// braces by the dimensions.
func (p *parser) initialiser(v *Var) {
	if v.Space != Global && v.Space != Const {
		p.fail("initialiser on a variable in .%s space", v.Space)
	}
	if p.tok.kind == tokString {
		p.spend(len(p.tok.text) * costInit)
		for i := range len(p.tok.text) {
			v.Init = append(v.Init, Init{Index: uint64(i), Value: uint64(p.tok.text[i])})
		}
		p.advance()
		return
	}
	strides := make([]uint64, len(v.Dims)+1)
	stride := uint64(1)
	if v.Vec > 1 {
		stride = uint64(v.Vec)
	}
	for i := len(v.Dims); i > 0; i-- {
		strides[i] = stride
		if i > 1 {
			hi, lo := bits.Mul64(stride, v.Dims[i-1])
			if hi != 0 || lo > maxVar {
				p.fail("%s is larger than 2^47 bytes", v.Name)
			}
			stride = lo
		}
	}
	p.initList(v, strides[1:], 0, 0)
}

// initList reads the element or list at index. strides[0] is the distance
// between its elements.
func (p *parser) initList(v *Var, strides []uint64, index uint64, depth int) {
	if !p.accept("{") {
		p.initElement(v, index)
		return
	}
	if depth > maxDepth {
		p.fail("initialiser nested too deeply")
	}
	step, rest := uint64(1), strides
	if len(strides) > 0 {
		step, rest = strides[0], strides[1:]
	}
	for !p.accept("}") {
		p.initList(v, rest, index, depth+1)
		index += step
		if index > maxVar {
			p.fail("%s is larger than 2^47 bytes", v.Name)
		}
		if !p.accept(",") {
			p.expect("}")
			break
		}
	}
}

func (p *parser) initElement(v *Var, index uint64) {
	p.spend(costInit)
	e := Init{Index: index}
	switch {
	case p.tok.kind == tokFloat || p.tok.kind == tokFloat32 || p.is("-") && p.floatFollows():
		e.Kind, e.Value = InitFloat, p.floatBits()
	case p.tok.kind == tokIdent:
		p.initSymbol(&e)
	case p.tok.kind == tokInt && p.lex.src[p.lex.pos:min(p.lex.pos+1, len(p.lex.src))] == "(":
		e.Mask = p.tok.val // 0xFF00(symbol): one byte of an address
		p.advance()
		p.expect("(")
		p.initSymbol(&e)
		p.expect(")")
	default:
		e.Value = p.number()
	}
	v.Init = append(v.Init, e)
}

func (p *parser) floatFollows() bool {
	l := *p.lex
	k := l.next().kind
	return k == tokFloat || k == tokFloat32
}

// floatBits reads an optionally negated floating literal as float64 bits.
func (p *parser) floatBits() uint64 {
	var sign uint64
	if p.accept("-") {
		sign = 1 << 63
	}
	v := p.tok.val
	if p.tok.kind == tokFloat32 {
		v = widen(uint32(v))
	}
	p.advance()
	return v ^ sign
}

func (p *parser) initSymbol(e *Init) {
	e.Kind = InitSymbol
	e.Symbol = p.ident()
	if e.Symbol == "generic" && p.accept("(") {
		e.Generic = true
		e.Symbol = p.ident()
		p.expect(")")
	}
	if p.is("+") || p.is("-") {
		e.Value = p.offset()
	}
}

// offset reads a sequence of signed constants, as in +8, -8 and +-8.
func (p *parser) offset() uint64 {
	var v uint64
	for {
		switch {
		case p.accept("+"):
			v += p.unary(0)
		case p.accept("-"):
			v -= p.unary(0)
		default:
			return v
		}
	}
}
