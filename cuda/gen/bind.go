package main

import (
	"fmt"
	"slices"
	"strings"

	"causeway/cuda/idl"
)

// Sizes of what the trampolines of host/driver/cuda/bind take.
const (
	directArgs = 6  // in registers
	frameArgs  = 16 // in a frame, before its words for results
	stackArgs  = 6  // where a struct begins that goes by value
	frameWords = 8
	frameRefs  = 5
)

// bindDriver writes a method for each entry that the worker calls.
func bindDriver(w *writer, f *idl.File) {
	b, err := newBinder(f)
	if err != nil {
		panic(err) // of the generator, about a file that it holds
	}
	w.goFile("bind", "math", "unsafe", "causeway/cuda")
	w.f("// entries are the driver's entry points, 0 where it lacks one.\ntype entries struct {")
	for i := range f.Binds {
		w.f("%s entry", f.Binds[i].Symbol)
	}
	w.f("}\n\n// resolve finds them by name.\nfunc (e *entries) resolve(find func(symbol string) entry) {")
	for i := range f.Binds {
		bd := &f.Binds[i]
		w.f("e.%s = find(%q)", bd.Symbol, bd.Symbol)
		if bd.Or != "" {
			w.f("if e.%s == 0 { e.%s = find(%q) }", bd.Symbol, bd.Symbol, bd.Or)
		}
	}
	w.f("}\n")
	for i := range f.Binds {
		bd := &f.Binds[i]
		if bd.Has {
			w.f("// Has%s reports whether the driver has %s.\nfunc (d *Driver) Has%s() bool { return d.fn.%s != 0 }\n", bd.Name, bd.Symbol, bd.Name, bd.Symbol)
		}
		if !bd.Hand {
			newMethod(b, bd).emit(w)
		}
	}
}

func newMethod(b *binder, e *idl.Bind) *method {
	m := &method{b: b, e: e, args: map[string]string{}}
	for _, p := range e.Entry.Params {
		i := slices.IndexFunc(e.Kinds, func(k idl.BindKind) bool { return k.Param == p.Name })
		switch {
		case i >= 0:
			m.kind(p, e.Kinds[i])
		case slices.ContainsFunc(e.Kinds, func(k idl.BindKind) bool {
			return slices.Contains(k.Words, p.Name) && k.Kind != "newmem" && k.Kind != "copied"
		}):
			// Another parameter's kind gives it.
		default:
			m.plain(p)
		}
	}
	return m
}

func (m *method) emit(w *writer) {
	name, doc := m.e.Name, "calls"
	if m.e.Hidden {
		name = strings.ToLower(name[:1]) + name[1:]
	}
	var results, swallowed []string
	for _, o := range m.outs {
		if _, n, ok := strings.Cut(o.decode, "{"); ok && strings.HasPrefix(o.decode, "copied") {
			swallowed = append(swallowed, strings.TrimSuffix(n, "})"))
		}
	}
	for _, o := range m.outs {
		if o.result != "" && !slices.Contains(swallowed, o.param) {
			results = append(results, o.result)
		}
	}
	if m.e.Call {
		if len(results)+len(m.refs) > 0 || len(m.e.Entry.Params) > directArgs {
			m.refuse("cannot be called later")
		}
		results, doc = []string{"Call"}, "is a call of"
	} else {
		results = append(results, "cuda.Result")
	}
	w.f("// %s %s %s.\nfunc (d *Driver) %s(%s) (%s) {", name, doc, m.e.Symbol, name, strings.Join(m.in, ", "), strings.Join(results, ", "))
	m.guards(w, results)
	for _, s := range m.before {
		w.f("%s", s)
	}
	switch {
	case m.floats:
		m.callFloats(w)
	case m.e.Call:
		w.f("return Call{fn: d.fn.%s, args: [directArgs]uint64{%s}}", m.e.Symbol, strings.Join(m.direct(), ", "))
	case len(m.outs)+len(m.refs) == 0 && len(m.e.Entry.Params) <= directArgs && !m.byValue():
		args := append(m.direct(), make([]string, directArgs-len(m.e.Entry.Params))...)
		for i := range args {
			if args[i] == "" {
				args[i] = "0"
			}
		}
		w.f("return d.fn.%s.call(%s)", m.e.Symbol, strings.Join(args, ", "))
	default:
		m.callFrame(w, swallowed)
	}
	w.f("}\n")
}

// guards refuses what must not reach the driver.
func (m *method) guards(w *writer, results []string) {
	if len(m.checks) == 0 {
		return
	}
	values := make([]string, len(results))
	for i, r := range results {
		switch {
		case r == "Call":
			values[i] = "Call{refused: cuda.ErrorInvalidValue}"
		case i == len(results)-1:
			values[i] = "cuda.ErrorInvalidValue"
		case strings.HasPrefix(r, "[]"):
			values[i] = "nil"
		case strings.HasPrefix(r, "uint") || strings.HasPrefix(r, "int") || strings.HasPrefix(r, "float"):
			values[i] = "0"
		default:
			values[i] = r + "{}"
		}
	}
	w.f("if !(%s) {\nreturn %s\n}", strings.Join(m.checks, " && "), strings.Join(values, ", "))
}

func (m *method) direct() []string {
	var list []string
	for _, p := range m.e.Entry.Params {
		list = append(list, m.args[p.Name])
	}
	return list
}

func (m *method) byValue() bool {
	return slices.ContainsFunc(m.e.Entry.Params, func(p idl.Param) bool { return strings.HasPrefix(m.args[p.Name], "struct ") })
}

func (m *method) callFloats(w *writer) {
	args := append(m.direct(), "0")
	w.f("return d.fn.%s.callFloats(%s, %s, %s)", m.e.Symbol, args[0], args[1], args[2])
}

// callFrame writes a call whose arguments lie in memory, with words for what the driver answers
// behind them.
func (m *method) callFrame(w *writer, swallowed []string) {
	w.f("var f frame")
	at := map[string]int{} // of C parameters among the arguments
	next := 0
	for _, p := range m.e.Entry.Params {
		if expr, ok := strings.CutPrefix(m.args[p.Name], "struct "); ok {
			w.f("*(*%s)(unsafe.Pointer(&f[%d])) = %s", m.b.types[p.Type].name, stackArgs, expr)
			continue
		}
		at[p.Name] = next
		if expr := m.args[p.Name]; expr != "" && expr != "0" {
			w.f("f[%d] = %s", next, expr)
		}
		next++
	}
	if next > frameArgs || len(m.outs) > frameWords || len(m.refs) > frameRefs || m.byValue() && next > stackArgs {
		m.refuse("too many arguments")
	}
	mask, words := 0, map[string]string{}
	for i, o := range m.outs {
		mask |= 1 << at[o.param]
		words[o.param] = fmt.Sprintf("f[%d]", frameArgs+i)
		w.f("f[%d] = %d", at[o.param], frameArgs+i)
		if o.init != "" {
			w.f("f[%d] = %s", frameArgs+i, o.init)
		}
	}
	places, refs := len(m.refs), make([]string, frameRefs)
	for i := range refs {
		refs[i] = "nil"
		if i < len(m.refs) {
			refs[i] = m.refs[i].expr
			places |= at[m.refs[i].param] << (4 * (i + 1))
		}
	}
	call := fmt.Sprintf("f.call(d.fn.%s, %#x)", m.e.Symbol, mask)
	if len(m.refs) > 0 {
		call = fmt.Sprintf("f.callRefs(d.fn.%s, %#x, %#x, %s)", m.e.Symbol, mask, places, strings.Join(refs, ", "))
	}
	var values []string
	for _, o := range m.outs {
		if o.result == "" || slices.Contains(swallowed, o.param) {
			continue
		}
		v := fmt.Sprintf(o.decode, words[o.param])
		for p, word := range words {
			v = strings.ReplaceAll(v, "{"+p+"}", word)
		}
		values = append(values, v)
	}
	if len(values) == 0 {
		w.f("return %s", call)
		return
	}
	w.f("res := %s\nreturn %s, res", call, strings.Join(values, ", "))
}
