package ptx_test

import (
	"errors"
	"testing"

	"causeway/host/driver/soft/ptx"
)

const linkHead = ".version 7.0\n.target sm_75\n.address_size 64\n"

func TestLink(t *testing.T) {
	for _, c := range []struct {
		name    string
		modules []string
		symbol  string // of the error, if there is one
		twice   bool
		module  int
		funcs   []string
	}{
		{name: "declaration gives way", modules: []string{".extern .func f();\n.visible .entry k() { call f; ret; }", ".visible .func f() { ret; }"}, funcs: []string{"f", "k"}},
		{name: "own functions of one name", modules: []string{".func f() { ret; }\n.visible .entry a() { call f; ret; }", ".func f() { ret; }\n.visible .entry b() { call f; ret; }"},
			funcs: []string{"f$link0", "a", "f$link1", "b"}},
		{name: "weak functions", modules: []string{".weak .func f() { ret; }", ".weak .func f() { ret; }"}, funcs: []string{"f"}},
		{name: "undefined function", modules: []string{".visible .entry k() { ret; }", ".extern .func f();"}, symbol: "f", module: 1},
		{name: "undefined variable", modules: []string{".extern .global .u32 v;"}, symbol: "v"},
		{name: "dynamic shared memory", modules: []string{".extern .shared .align 4 .b8 s[];\n.visible .entry k() { ret; }", ".extern .shared .align 4 .b8 s[];"}, funcs: []string{"k"}},
		{name: "function twice", modules: []string{".visible .func f() { ret; }", ".visible .func f() { ret; }"}, symbol: "f", twice: true, module: 1},
		{name: "variable twice", modules: []string{".visible .global .u32 v;", ".visible .global .u32 v;"}, symbol: "v", twice: true, module: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var list []*ptx.Module
			for _, text := range c.modules {
				m, err := ptx.Parse([]byte(linkHead + text))
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, m)
			}
			m, err := ptx.Link(list)
			var e *ptx.LinkError
			switch {
			case c.symbol == "" && err != nil:
				t.Fatal(err)
			case c.symbol != "":
				if !errors.As(err, &e) || e.Symbol != c.symbol || e.Twice != c.twice || e.Module != c.module {
					t.Fatalf("error %v (%+v), want %s, twice %v, module %d", err, e, c.symbol, c.twice, c.module)
				}
				return
			}
			names := map[string]bool{}
			for _, f := range m.Funcs {
				names[f.Name] = true
				for _, in := range f.Body {
					if in.Op == "call" && in.Operands[0].Kind == ptx.OpSymbol {
						callee := in.Operands[0].Name
						found := false
						for _, g := range m.Funcs {
							found = found || g.Name == callee && g.Defined
						}
						if !found {
							t.Errorf("%s calls %s, which is not there", f.Name, callee)
						}
					}
				}
			}
			for _, want := range c.funcs {
				if !names[want] {
					t.Errorf("no function %s among %v", want, names)
				}
			}
			if len(names) != len(c.funcs) {
				t.Errorf("functions %v, want %v", names, c.funcs)
			}
		})
	}
}
