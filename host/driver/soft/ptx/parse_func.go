package ptx

// scope is one level of braces: the names declared there.
type scope struct {
	regs   map[string]int // register to index in Func.Regs
	ranges []regRange
	vars   map[string]*Var
}

// maxRanges bounds the register ranges of a function, which looking a name up
// may have to try one by one.
const maxRanges = 512

// regRange is a parameterised declaration: %r<100>.
type regRange struct {
	prefix string
	count  uint64
	typ    Type
}

func newScope() *scope { return &scope{regs: map[string]int{}, vars: map[string]*Var{}} }

func (p *parser) function(link Linkage, kernel bool) {
	f := &Func{Kernel: kernel, Linkage: link, Line: p.tok.line, Labels: map[string]int{}}
	p.fn, p.scopes, p.ranges = f, []*scope{newScope()}, 0
	defer func() { p.fn, p.scopes = nil, nil }()
	p.spend(costFunc)
	p.attribute()
	if !kernel && p.accept("(") {
		f.Returns = p.params()
	}
	f.Name = p.ident()
	if p.accept("(") {
		f.Params = p.params()
	}
	p.funcDirectives(f)
	p.mod.Funcs = append(p.mod.Funcs, f)
	if p.accept(";") {
		return
	}
	p.expect("{")
	f.Defined = true
	p.body(1)
	p.resolveLabels()
}

func (p *parser) attribute() {
	if p.dot("attribute") {
		p.skipParens("")
	}
}

// params reads a parameter list after its opening parenthesis.
func (p *parser) params() []*Var {
	var list []*Var
	if p.accept(")") {
		return nil
	}
	for {
		space, ok := p.space()
		if !ok || space != Param && space != RegSpace {
			p.fail("expected .param or .reg, found %s", p.tok.describe())
		}
		v := p.varType(space)
		p.spend(costVar)
		v.Line = p.tok.line
		v.Name = p.ident()
		p.dims(&v)
		p.layout(&v)
		list = append(list, &v)
		p.declare(&v)
		if !p.accept(",") {
			break
		}
	}
	p.expect(")")
	return list
}

// declare enters a parameter or variable into the innermost scope.
func (p *parser) declare(v *Var) {
	s := p.scopes[len(p.scopes)-1]
	if v.Name == "_" {
		return
	}
	if v.Space == RegSpace {
		p.fn.Regs = append(p.fn.Regs, Reg{v.Name, v.Type})
		v.Reg = len(p.fn.Regs) - 1
		s.regs[v.Name] = v.Reg
		return
	}
	if s.vars[v.Name] != nil {
		p.fail("%s is declared twice", v.Name)
	}
	s.vars[v.Name] = v
}

func (p *parser) funcDirectives(f *Func) {
	for p.tok.kind == tokDot {
		switch p.tok.text {
		case "maxntid":
			p.advance()
			f.MaxNTID = p.triple()
		case "reqntid":
			p.advance()
			f.ReqNTID = p.triple()
		case "minnctapersm", "maxnctapersm":
			p.advance()
			f.MinCTA = p.small("blocks", 1<<16)
		case "maxnreg":
			p.advance()
			f.MaxRegs = p.small("registers", 1<<16)
		case "reqnctapercluster":
			p.advance()
			f.ReqCluster = p.triple()
		case "maxclusterrank":
			p.advance()
			p.triple()
		case "explicitcluster":
			p.advance()
			f.ExplicitCluster = true
		case "blocksareclusters", "unified":
			p.advance()
		case "noreturn":
			p.advance()
			f.Noreturn = true
		case "abi_preserve", "abi_preserve_control":
			p.advance()
			p.number()
		case "pragma":
			p.pragma()
		case "attribute":
			p.advance()
			p.skipParens("")
		default:
			p.fail("unknown directive .%s", p.tok.text)
		}
	}
}

func (p *parser) pragma() {
	p.advance()
	for p.tok.kind == tokString || p.is(",") {
		p.advance()
	}
	p.expect(";")
}

// triple reads one to three sizes; missing ones are 1.
func (p *parser) triple() [3]uint32 {
	t := [3]uint32{1, 1, 1}
	for i := range t {
		t[i] = p.small("size", 1<<31)
		if !p.accept(",") {
			break
		}
	}
	return t
}

// body reads statements up to the closing brace of this scope.
func (p *parser) body(depth int) {
	if depth > maxDepth {
		p.fail("scopes nested too deeply")
	}
	for !p.accept("}") {
		switch {
		case p.tok.kind == tokEOF:
			p.fail("function %s without end", p.fn.Name)
		case p.accept("{"):
			p.spend(costName)
			p.scopes = append(p.scopes, newScope())
			p.body(depth + 1)
			p.scopes = p.scopes[:len(p.scopes)-1]
		case p.accept(";"):
		case p.lineDirective():
		case p.tok.kind == tokDot:
			p.bodyDirective()
		default:
			p.statement()
		}
	}
}

func (p *parser) bodyDirective() {
	switch p.tok.text {
	case "pragma":
		p.pragma()
		return
	case "maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg", "noreturn":
		p.funcDirectives(p.fn)
		return
	}
	link := p.linkage()
	space, ok := p.space()
	if !ok {
		p.fail("unknown directive %s", p.tok.describe())
	}
	if space == RegSpace {
		p.registers()
		return
	}
	for _, v := range p.variables(space, link) {
		p.declare(v)
		p.fn.Vars = append(p.fn.Vars, v)
	}
}

// registers reads ".reg .b32 %r<9>, a;". Ranges stay ranges until used.
func (p *parser) registers() {
	t := p.varType(RegSpace)
	if t.Vec != 1 {
		p.fail("vector registers are not supported")
	}
	s := p.scopes[len(p.scopes)-1]
	for {
		name := p.ident()
		if p.accept("<") {
			n := p.number()
			p.expect(">")
			s.ranges = append(s.ranges, regRange{name, n, t.Type})
			if p.ranges++; p.ranges > maxRanges {
				p.fail("too many register ranges in one function")
			}
		} else {
			p.spend(costName)
			v := t
			v.Name = name
			p.declare(&v)
		}
		if !p.accept(",") {
			break
		}
	}
	p.expect(";")
}

// lookup finds a name from the innermost scope outwards.
func (p *parser) lookup(name string) (reg int, v *Var) {
	for i := len(p.scopes) - 1; i >= 0; i-- {
		s := p.scopes[i]
		if r, ok := s.regs[name]; ok {
			return r, nil
		}
		if v := s.vars[name]; v != nil {
			return -1, v
		}
		if t, ok := s.inRange(name); ok {
			p.spend(costName)
			p.fn.Regs = append(p.fn.Regs, Reg{name, t})
			s.regs[name] = len(p.fn.Regs) - 1
			return s.regs[name], nil
		}
	}
	return -1, nil
}

func (s *scope) inRange(name string) (Type, bool) {
	if len(s.ranges) == 0 || !digit(name[len(name)-1]) {
		return NoType, false
	}
	for i := range s.ranges {
		r := &s.ranges[i]
		if len(name) <= len(r.prefix) || name[:len(r.prefix)] != r.prefix {
			continue
		}
		if n, ok := index(name[len(r.prefix):]); ok && n < r.count {
			return r.typ, true
		}
	}
	return NoType, false
}

// index reads a decimal number without leading zeros.
func index(s string) (uint64, bool) {
	if len(s) > 10 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	var n uint64
	for i := range len(s) {
		if !digit(s[i]) {
			return 0, false
		}
		n = n*10 + uint64(s[i]-'0')
	}
	return n, true
}
