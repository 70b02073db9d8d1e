package ptx

import (
	"fmt"
	"strconv"
)

// LinkError says which symbol keeps modules from being one.
type LinkError struct {
	Symbol string
	Twice  bool // defined in two modules; else in none
	Module int  // index of the module that defines it again, or that misses it
}

func (e *LinkError) Error() string {
	if e.Twice {
		return fmt.Sprintf("Multiple definition of '%s'", e.Symbol)
	}
	return fmt.Sprintf("Undefined reference to '%s'", e.Symbol)
}

// Link makes one module of several, which it takes apart: symbols of one module that others do not
// see get names of their own, declarations give way to definitions, of weak definitions the first
// stays. The error is a *LinkError.
func Link(modules []*Module) (*Module, error) {
	out := &Module{AddressSize: 64}
	l := &linker{out: out, vars: map[string]int{}, funcs: map[string]int{}, taken: map[string]int{}}
	for _, m := range modules {
		for name := range locals(m) {
			l.taken[name]++
		}
		for _, v := range m.Vars {
			if v.Linkage != Local {
				l.taken[v.Name] += 2
			}
		}
		for _, f := range m.Funcs {
			if f.Linkage != Local {
				l.taken[f.Name] += 2
			}
		}
	}
	for i, m := range modules {
		if m.SM > out.SM {
			out.SM, out.Target = m.SM, m.Target
		}
		if m.Version.Major > out.Version.Major || m.Version.Major == out.Version.Major && m.Version.Minor > out.Version.Minor {
			out.Version = m.Version
		}
		out.AddressSize = m.AddressSize
		l.privatise(m, i)
		if err := l.add(m, i); err != nil {
			return nil, err
		}
	}
	return out, l.complete(modules)
}

type linker struct {
	out         *Module
	vars, funcs map[string]int // index in out
	taken       map[string]int // names of module scope: how often they occur
}

// locals are the names that only their module sees. Declarations of functions count as those of
// another module.
func locals(m *Module) map[string]bool {
	names := map[string]bool{}
	for _, v := range m.Vars {
		if v.Linkage == Local {
			names[v.Name] = true
		}
	}
	for _, f := range m.Funcs {
		if f.Linkage == Local && f.Defined {
			names[f.Name] = true
		}
	}
	return names
}

// privatise renames the local symbols of the i-th module that another module names too.
func (l *linker) privatise(m *Module, i int) {
	names := map[string]string{}
	for name := range locals(m) {
		if l.taken[name] > 1 {
			names[name] = name + "$link" + strconv.Itoa(i)
		}
	}
	if len(names) == 0 {
		return
	}
	for _, v := range m.Vars {
		rename(&v.Name, names)
		for j := range v.Init {
			rename(&v.Init[j].Symbol, names)
		}
	}
	for _, f := range m.Funcs {
		rename(&f.Name, names)
		for _, v := range f.Vars {
			for j := range v.Init {
				rename(&v.Init[j].Symbol, names)
			}
		}
		for _, list := range f.Tables {
			for j := range list {
				if _, label := f.Labels[list[j]]; !label {
					rename(&list[j], names)
				}
			}
		}
		for j := range f.Body {
			renameOperands(f.Body[j].Operands, names)
		}
	}
}

func rename(name *string, names map[string]string) {
	if to, ok := names[*name]; ok {
		*name = to
	}
}

func renameOperands(list []Operand, names map[string]string) {
	for i := range list {
		o := &list[i]
		if o.Kind == OpSymbol && o.Var == nil {
			rename(&o.Name, names)
		}
		renameOperands(o.Elems, names)
	}
}

func (l *linker) add(m *Module, i int) error {
	for _, v := range m.Vars {
		at, known := l.vars[v.Name]
		if !known {
			l.vars[v.Name] = len(l.out.Vars)
			l.out.Vars = append(l.out.Vars, v)
			continue
		}
		old := l.out.Vars[at]
		switch {
		case v.Linkage == Extern:
		case old.Linkage == Extern, old.Linkage == Common && v.Linkage == Visible, old.Linkage == Weak && v.Linkage == Visible:
			l.out.Vars[at] = v
		case v.Linkage == Weak, v.Linkage == Common && old.Linkage != Common:
		case v.Linkage == Common:
			old.Size, old.Align = max(old.Size, v.Size), max(old.Align, v.Align)
		default:
			return &LinkError{v.Name, true, i}
		}
	}
	for _, f := range m.Funcs {
		at, known := l.funcs[f.Name]
		if !known {
			l.funcs[f.Name] = len(l.out.Funcs)
			l.out.Funcs = append(l.out.Funcs, f)
			continue
		}
		old := l.out.Funcs[at]
		switch {
		case !f.Defined:
		case !old.Defined, old.Linkage == Weak && f.Linkage == Visible:
			l.out.Funcs[at] = f
		case f.Linkage == Weak:
		default:
			return &LinkError{f.Name, true, i}
		}
	}
	return nil
}

// builtin are the functions that the system provides to every module.
var builtin = map[string]bool{
	"vprintf": true, "malloc": true, "free": true, "__assertfail": true, "cudaGetParameterBufferV2": true,
	"cudaLaunchDeviceV2": true, "cudaGetParameterBuffer": true, "cudaLaunchDevice": true, "cudaDeviceSynchronize": true,
	"cudaGraphSetConditional":        true,
	"__cudaCDP2GetParameterBufferV2": true, "__cudaCDP2LaunchDeviceV2": true, "__cudaCDP2LaunchDeviceV2_ptsz": true,
	"__cudaCDP2GetLastError": true, "__cudaCDP2PeekAtLastError": true,
	"__cudaCDP2StreamCreateWithFlags": true, "__cudaCDP2StreamDestroy": true,
}

// complete finds what is still only declared. Dynamic shared memory is declared and never defined.
func (l *linker) complete(modules []*Module) error {
	for _, v := range l.out.Vars {
		if v.Linkage == Extern && v.Space != Shared {
			return &LinkError{Symbol: v.Name, Module: asking(modules, v.Name)}
		}
	}
	for _, f := range l.out.Funcs {
		if !f.Defined && !builtin[f.Name] {
			return &LinkError{Symbol: f.Name, Module: asking(modules, f.Name)}
		}
	}
	return nil
}

// asking is the first module that declares a name.
func asking(modules []*Module, name string) int {
	for i, m := range modules {
		for _, v := range m.Vars {
			if v.Name == name {
				return i
			}
		}
		for _, f := range m.Funcs {
			if f.Name == name {
				return i
			}
		}
	}
	return 0
}
