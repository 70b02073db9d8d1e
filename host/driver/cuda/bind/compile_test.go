package bind_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// declared imports this module's packages as far as they declare something: the bodies of their
// functions, C and what they have of the standard library are left out, so that neither Go nor a C
// compiler is needed. What cannot be resolved then is none of a test's errors.
type declared struct {
	files *token.FileSet
	have  map[string]*types.Package
}

func (d *declared) Import(name string) (*types.Package, error) {
	if p := d.have[name]; p != nil {
		return p, nil
	}
	below, ours := strings.CutPrefix(name, "causeway/")
	if !ours {
		p := types.NewPackage(name, path.Base(name))
		p.MarkComplete()
		d.have[name] = p
		return p, nil
	}
	sources, err := filepath.Glob(filepath.Join("..", "..", "..", "..", below, "*.go"))
	if err != nil {
		return nil, err
	}
	var parsed []*ast.File
	for _, s := range sources {
		if strings.HasSuffix(s, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(d.files, s, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, f)
	}
	c := types.Config{Importer: d, FakeImportC: true, IgnoreFuncBodies: true, Error: func(error) {}}
	d.have[name], _ = c.Check(name, d.files, parsed, nil)
	return d.have[name], nil
}

// errorsOf is what a compiler says of statements of another package.
func (d *declared) errorsOf(t *testing.T, statements string) (found []string) {
	t.Helper()
	f, err := parser.ParseFile(d.files, "attempt.go", `package attempt

import "causeway/host/driver/cuda/bind"

func attempt(d *bind.Driver, s *bind.Space, addr, size uint64, mapping []byte, stream bind.Stream, event bind.Event, m bind.Mem, h bind.Host, a bind.Address) {
	`+statements+`
}
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := types.Config{Importer: d, Error: func(err error) { found = append(found, err.Error()) }}
	_, _ = c.Check("causeway/attempt", d.files, []*ast.File{f}, nil)
	return found
}

// TestRawNumbersDoNotCompile: a package that has a number from a guest, and not what a check made
// of it, cannot call the driver with it, nor make the one of the other by itself.
func TestRawNumbersDoNotCompile(t *testing.T) {
	d := &declared{files: token.NewFileSet(), have: map[string]*types.Package{"unsafe": types.Unsafe}}
	for _, c := range []struct{ statements, want string }{
		{`m, _ = s.Mem(addr, size); h, _ = bind.Mapped(mapping, 0, size); d.MemcpyHtoDAsync(m, h, stream)`, ""},
		{`d.MemcpyHtoDAsync(addr, h, stream)`, "cannot use addr (variable of type uint64) as bind.Mem value"},
		{`d.MemcpyHtoDAsync(m, addr, stream)`, "cannot use addr (variable of type uint64) as bind.Host value"},
		{`d.MemcpyHtoDAsync(m, h, addr)`, "cannot use addr (variable of type uint64) as bind.Stream value"},
		{`d.MemcpyHtoDAsync(h, h, stream)`, "cannot use h (variable of struct type bind.Host) as bind.Mem value"},
		{`d.MemcpyHtoDAsync(a, h, stream)`, "cannot use a (variable of struct type bind.Address) as bind.Mem value"},
		{`d.MemcpyHtoDAsync(m, h, event)`, "cannot use event (variable of struct type bind.Event) as bind.Stream value"},
		{`d.MemcpyHtoDAsync(1<<40, h, stream)`, "cannot use 1 << 40 (untyped int constant 1099511627776) as bind.Mem value"},
		{`_ = bind.Mem(addr)`, "cannot convert addr (variable of type uint64) to type bind.Mem"},
		{`_ = bind.Mem(struct{ at, size uint64 }{addr, size})`, "to type bind.Mem"},
		{`_ = bind.Mem{[0]*bind.Mem{}, addr, size}`, "implicit assignment to unexported field"},
		{`_ = bind.Host{at: addr, size: size}`, "unexported field at"},
		{`_ = bind.Address{v: addr}`, "unexported field v"},
		{`_ = bind.Mem{at: addr}`, "unexported field at"},
		{`m.at = addr`, "unexported field at"},
		{`_ = bind.Stream{v: addr}`, "unexported field v"},
		{`_ = bind.Address(h.Address())`, "cannot convert h.Address() (value of struct type bind.HostAddress) to type bind.Address"},
		{`_ = bind.Mem(h)`, "cannot convert h (variable of struct type bind.Host) to type bind.Mem"},
		{`_ = bind.Stream(event)`, "cannot convert event (variable of struct type bind.Event) to type bind.Stream"},
		{`_ = bind.Event(a)`, "cannot convert a (variable of struct type bind.Address) to type bind.Event"},
		{`d.memHostUnregister(h.Address())`, "unexported method memHostUnregister"},
	} {
		found := d.errorsOf(t, c.statements)
		switch {
		case c.want == "" && len(found) > 0:
			t.Errorf("%s: %q", c.statements, found)
		case c.want != "" && (len(found) == 0 || !strings.Contains(found[0], c.want)):
			t.Errorf("%s: %q, want one with %q", c.statements, found, c.want)
		}
	}
}
