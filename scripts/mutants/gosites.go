package main

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// near are the operators that one is taken for.
var near = map[token.Token][]token.Token{
	token.LSS: {token.LEQ}, token.LEQ: {token.LSS}, token.GTR: {token.GEQ}, token.GEQ: {token.GTR},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.ADD: {token.SUB}, token.SUB: {token.ADD},
}

// finder finds the sites of a Go file.
type finder struct {
	file   string
	text   []byte
	set    *token.FileSet
	clamps map[ast.Expr]bool // at their bounds nothing changes
	still  map[ast.Node]bool // stays as it is, with all that it has
	sites  []site
}

// goSites are the places of a Go file at which a mistake is plausible: bounds of comparisons,
// conditions that are left out, statements that are forgotten, numbers that are off by one. Logs,
// texts of errors and declarations are none, nor is what no test of behaviour can see:
//   - the bound of `if a > b { a = b }`, also beside other conditions: at it nothing changes;
//   - a context's cancel, or a timer's stop, when a function returns: the garbage collector has both;
//   - which thread a goroutine has, how it passes the time while it looks again (runtime.Gosched, sys.Pause), what is kept alive for the collector, or fetched ahead;
//   - how much room a slice, a map or a buffer has before it grows;
//   - by how much a number is divided: one more or less is no mistake that anybody makes there;
//   - whether something is said to people (an if whose body only logs), or fetched ahead;
//   - the steps at which tests have a process killed, and text that is put together for people (s += "...").
func goSites(file string, text []byte) []site {
	f := &finder{file: file, text: text, set: token.NewFileSet(), clamps: map[ast.Expr]bool{}, still: map[ast.Node]bool{}}
	tree, err := parser.ParseFile(f.set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	for _, d := range tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && fn.Name.Name != "String" && fn.Name.Name != "Error" {
			ast.Inspect(fn.Body, f.visit)
		}
	}
	return f.sites
}

func (f *finder) at(p token.Pos) int { return f.set.Position(p).Offset }

func (f *finder) source(n ast.Node) string { return string(f.text[f.at(n.Pos()):f.at(n.End())]) }

// put replaces a node.
func (f *finder) put(n ast.Node, by string) change {
	return change{f.short(f.source(n)) + "  =>  " + f.short(by), f.text, f.at(n.Pos()), f.at(n.End()), by}
}

func (f *finder) short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return s[:min(len(s), 120)]
}

func (f *finder) add(n ast.Node, cs ...change) {
	if len(cs) > 0 {
		f.sites = append(f.sites, site{f.file, f.set.Position(n.Pos()).Line, cs})
	}
}

// capacity has what a call says of room to come be left as it is.
func (f *finder) capacity(n *ast.CallExpr) {
	switch name := f.source(n.Fun); {
	case name == "make" && len(n.Args) == 3:
		f.still[n.Args[2]] = true
	case name == "make" && len(n.Args) == 2 && strings.HasPrefix(f.source(n.Args[0]), "map["), name == "slices.Grow", name == "bufio.NewReaderSize", name == "bufio.NewWriterSize":
		f.still[n.Args[1]] = true
	}
}

func (f *finder) visit(n ast.Node) bool {
	if f.still[n] {
		return false
	}
	switch n := n.(type) {
	case *ast.CallExpr:
		if said(f.source(n.Fun)) || f.source(n.Fun) == "prefetch" {
			return false
		}
		f.capacity(n)
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.IfStmt:
		if c := f.clamp(n); c != nil {
			f.clamps[c] = true
		}
		if f.says(n) {
			f.still[n.Cond] = true
		} else {
			f.condition(n.Cond)
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			f.add(n.Cond, f.put(n.Cond, f.source(n.Cond)+" && false"))
		}
	case *ast.BlockStmt:
		for _, s := range n.List {
			f.statement(s)
		}
	case *ast.SwitchStmt:
		f.cases(n)
	case *ast.CommClause:
		for _, s := range n.Body {
			f.statement(s)
		}
	}
	return true
}

// said reports whether a call is text for people.
func said(call string) bool {
	if call == "fmt.Errorf" || call == "errors.New" || call == "panic" || strings.HasPrefix(call, "remote.Violation") || strings.Contains(call, "slog.") {
		return true
	}
	at := strings.LastIndexByte(call, '.')
	method := call[at+1:]
	return at > 0 && strings.Contains(call[:at], "log") && slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "With"}, method)
}

func (f *finder) binary(n *ast.BinaryExpr) {
	x, y := f.source(n.X), f.source(n.Y)
	switch n.Op {
	case token.LAND, token.LOR:
		f.add(n, f.put(n, x), f.put(n, y))
		return
	}
	if strings.HasPrefix(y, `"`) || strings.HasPrefix(x, `"`) || y == "nil" && strings.HasSuffix(x, "err") {
		return
	}
	var cs []change
	for _, op := range near[n.Op] {
		if !f.clamps[n] {
			cs = append(cs, f.put(n, x+" "+op.String()+" "+y))
		}
	}
	if lit, ok := n.Y.(*ast.BasicLit); ok && lit.Kind == token.INT && n.Op != token.QUO {
		if v, err := strconv.ParseInt(lit.Value, 0, 64); err == nil {
			cs = append(cs, f.put(n, x+" "+n.Op.String()+" "+strconv.FormatInt(v+1, 10)))
		}
	}
	f.add(n, cs...)
}

// clamp is the comparison of a statement that only has one value be no more, or no less, than
// another: if a > b { a = b }, if len(a) > b { a = a[:b] }, or such a one beside other conditions;
// nil: it has none.
func (f *finder) clamp(n *ast.IfStmt) *ast.BinaryExpr {
	if n.Else != nil || len(n.Body.List) != 1 {
		return nil
	}
	set, ok := n.Body.List[0].(*ast.AssignStmt)
	if !ok || set.Tok != token.ASSIGN || len(set.Lhs) != 1 {
		return nil
	}
	to, by := f.source(set.Lhs[0]), f.source(set.Rhs[0])
	var find func(e ast.Expr) *ast.BinaryExpr
	find = func(e ast.Expr) *ast.BinaryExpr {
		if p, ok := e.(*ast.ParenExpr); ok {
			return find(p.X)
		}
		c, ok := e.(*ast.BinaryExpr)
		switch {
		case !ok:
			return nil
		case c.Op == token.LAND || c.Op == token.LOR:
			return cmp.Or(find(c.X), find(c.Y))
		case c.Op == token.EQL || c.Op == token.NEQ:
			return nil
		}
		x, y := f.source(c.X), f.source(c.Y)
		if x == to && y == by || x == by && y == to || x == "len("+to+")" && by == to+"[:"+y+"]" {
			return c
		}
		return nil
	}
	return find(n.Cond)
}

// says reports whether a statement only has something said to people, or memory fetched ahead, or
// not.
func (f *finder) says(n *ast.IfStmt) bool {
	return n.Else == nil && len(n.Body.List) > 0 && !slices.ContainsFunc(n.Body.List, func(s ast.Stmt) bool {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			return true
		}
		c, ok := e.X.(*ast.CallExpr)
		return !ok || !said(f.source(c.Fun)) && f.source(c.Fun) != "prefetch"
	})
}

// condition is one that is forgotten, or taken for its opposite. That an error is looked at is not
// among them: nobody forgets it here, and each test would tell.
func (f *finder) condition(c ast.Expr) {
	if s := f.source(c); s == "err != nil" || s == "err == nil" {
		return
	} else if _, ok := c.(*ast.BinaryExpr); !ok || c.(*ast.BinaryExpr).Op == token.LAND || c.(*ast.BinaryExpr).Op == token.LOR {
		f.add(c, f.put(c, "!("+s+")"), f.put(c, "("+s+") && false"))
	} else {
		f.add(c, f.put(c, "("+s+") && false"))
	}
}

func (f *finder) statement(s ast.Stmt) {
	switch s := s.(type) {
	case *ast.ExprStmt:
		if c, ok := s.X.(*ast.CallExpr); ok && !said(f.source(c.Fun)) && !unseen(f.source(c.Fun)) {
			f.add(s, f.put(s, "{}"))
		}
	case *ast.AssignStmt:
		text := s.Tok == token.ADD_ASSIGN && strings.HasPrefix(f.source(s.Rhs[0]), `"`)
		if s.Tok != token.DEFINE && !text && !strings.HasPrefix(f.source(s), "_") {
			f.add(s, f.put(s, "{}"))
		}
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt:
		f.add(s, f.put(s, "{}"))
	case *ast.DeferStmt:
		if call := f.source(s.Call.Fun); call != "cancel" && !unseen(call) && !stops.MatchString(call) {
			f.add(s, f.put(s, "{}"))
		}
	case *ast.BranchStmt:
		f.add(s, f.put(s, "{}"))
	}
}

// stops are calls that end a timer.
var stops = regexp.MustCompile(`^(t|tick|ticker|timer|\w+Timer)\.Stop$`)

// unseen reports whether nobody sees that a call is left out; that a lock is forgotten is seen by
// the race detector, or at the first use.
func unseen(call string) bool {
	for _, end := range []string{"Unlock", "Lock", "ockOSThread", ".reached"} {
		if strings.HasSuffix(call, end) {
			return true
		}
	}
	return slices.Contains([]string{"runtime.Gosched", "runtime.KeepAlive", "sys.Pause", "prefetch"}, call)
}

// cases has one of a switch without a tag be none.
func (f *finder) cases(n *ast.SwitchStmt) {
	for _, s := range n.Body.List {
		c := s.(*ast.CaseClause)
		if n.Tag == nil && len(c.List) > 0 {
			from, to := f.at(c.List[0].Pos()), f.at(c.List[len(c.List)-1].End())
			was := string(f.text[from:to])
			if was != "err != nil" {
				f.add(c, change{"case " + f.short(was) + "  =>  never", f.text, from, to, "false && (" + strings.Join(strings.Split(was, "\x00"), "") + ")"})
			}
		}
		for _, b := range c.Body {
			f.statement(b)
		}
	}
}
