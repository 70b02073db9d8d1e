package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"causeway/cuda/idl"
)

// boundStruct is a struct of abi_structs.h as Go lays it out.
type boundStruct struct {
	c, name     string // C's name, if it has one, and Go's
	fields      []boundField
	size, align int
	union       bool
}

// boundField is one field; of a union, one member.
type boundField struct {
	c, name string
	t       boundType
	count   int // of an array, 0 if it is none
	offset  int
}

// boundType is what C's type is in Go.
type boundType struct {
	name        string
	size, align int
	is          kindOf
}

type kindOf int

const (
	isNumber kindOf = iota
	isHandle        // a struct around a word: Context, Address, HostAddress
	isFloat
	isStruct
)

// binder turns the description's C types into Go's.
type binder struct {
	f       *idl.File
	structs map[string]*boundStruct // by C's name
	order   []*boundStruct
	types   map[string]boundType
	sealed  map[string]bool
}

// wide are the handles that C declares as numbers.
var wide = []string{"CUtexObject", "CUsurfObject", "CUgraphConditionalHandle", "CUmemGenericAllocationHandle"}

func newBinder(f *idl.File) (*binder, error) {
	b := &binder{f: f, structs: map[string]*boundStruct{}, types: map[string]boundType{}, sealed: map[string]bool{}}
	for c, t := range map[string]boundType{
		"char": {"byte", 1, 1, isNumber}, "unsigned char": {"uint8", 1, 1, isNumber}, "uint8_t": {"uint8", 1, 1, isNumber},
		"unsigned short": {"uint16", 2, 2, isNumber}, "int": {"int32", 4, 4, isNumber}, "unsigned int": {"uint32", 4, 4, isNumber},
		"uint32_t": {"uint32", 4, 4, isNumber}, "float": {"float32", 4, 4, isFloat}, "size_t": {"uint64", 8, 8, isNumber},
		"uint64_t": {"uint64", 8, 8, isNumber}, "unsigned long long": {"uint64", 8, 8, isNumber}, "long long": {"int64", 8, 8, isNumber},
		"void": {"HostAddress", 0, 0, isNumber},
	} {
		b.types[c] = t
	}
	for _, e := range f.Enums {
		b.types[e.Name] = boundType{"uint32", 4, 4, isNumber}
	}
	for _, t := range f.Types {
		decl := idl.NormalType(t.Decl)
		switch {
		case t.Name == "CUdeviceptr":
			b.types[t.Name] = boundType{"Address", 8, 8, isHandle}
		case slices.Contains(wide, t.Name), strings.HasPrefix(decl, "struct ") && strings.HasSuffix(decl, "*"):
			b.types[t.Name] = boundType{b.goName(t.Name), 8, 8, isHandle}
		case decl == "int": // an enumeration, or a device's ordinal
			b.types[t.Name] = boundType{"uint32", 4, 4, isNumber}
		case strings.Contains(decl, "("):
			b.types[t.Name] = boundType{"Callback", 8, 8, isHandle}
		default:
			if k, ok := b.types[decl]; ok {
				b.types[t.Name] = k
			}
		}
	}
	for _, s := range f.Seals {
		b.sealed[s.Name] = true
	}
	return b, b.parse(abiStructs)
}

// goName is the Go name of a C type: CUgraphNode is GraphNode, CUDA_ARRAY3D_DESCRIPTOR is
// Array3DDescriptor.
func (b *binder) goName(c string) string {
	if rest, ok := strings.CutPrefix(c, "CUDA_"); ok {
		return strings.ReplaceAll(enumName(rest), "3d", "3D")
	}
	rest := strings.TrimPrefix(c, "CU")
	return strings.ToUpper(rest[:1]) + rest[1:]
}

var (
	comments = regexp.MustCompile(`(?s)/\*.*?\*/`)
	words    = regexp.MustCompile(`\w+`)
	tokens   = regexp.MustCompile(`\w+|[{}\[\]();,*]`)
)

// parse reads the structs; the text is our own, so that what it does not know is an error.
func (b *binder) parse(text string) error {
	text, _, _ = strings.Cut(comments.ReplaceAllString(text, ""), "_Static_assert")
	t := tokens.FindAllString(text, -1)
	for len(t) > 0 {
		if t[0] == "typedef" {
			t = t[1:]
		}
		if len(t) < 3 || t[0] != "struct" && t[0] != "union" || t[2] != "{" {
			return fmt.Errorf("abi_structs.h: no struct at %.60q", strings.Join(t, " "))
		}
		c := strings.TrimSuffix(strings.TrimSuffix(t[1], "_st"), "_union")
		s := &boundStruct{c: c, name: b.goName(c), union: t[0] == "union"}
		var err error
		if t, err = b.body(s, t[3:]); err != nil {
			return fmt.Errorf("abi_structs.h: %s: %w", c, err)
		}
		b.add(s)
		for len(t) > 0 && t[0] != ";" {
			t = t[1:]
		}
		t = t[1:]
	}
	return nil
}

func (b *binder) add(s *boundStruct) {
	b.order = append(b.order, s)
	b.structs[s.c] = s
	b.types[s.c] = boundType{s.name, s.size, s.align, isStruct}
	b.types["struct "+s.c+"_st"] = b.types[s.c]
	for _, t := range b.f.Types { // other names of it
		if t.Decl == "union "+s.c+"_union" || t.Decl == "struct "+s.c+"_st" {
			b.types[t.Name] = b.types[s.c]
		}
	}
}

// body reads fields up to the closing brace.
func (b *binder) body(s *boundStruct, t []string) ([]string, error) {
	for t[0] != "}" {
		if t[0] == "const" {
			t = t[1:]
		}
		if (t[0] == "struct" || t[0] == "union") && t[1] == "{" {
			part := &boundStruct{union: t[0] == "union"}
			rest, err := b.part(s, part, t[2:])
			if err != nil {
				return nil, err
			}
			t = rest
			continue
		}
		n := 1
		for t[n] != "*" && t[n+1] != ";" && t[n+1] != "," && t[n+1] != "[" {
			n++
		}
		base := strings.Join(t[:n], " ")
		k, ok := b.types[base]
		if !ok {
			return nil, fmt.Errorf("type %s", base)
		}
		t = t[n:]
		for {
			one := k
			for t[0] == "*" {
				one, t = boundType{"HostAddress", 8, 8, isHandle}, t[1:]
			}
			f := boundField{c: t[0], t: one}
			if t = t[1:]; t[0] == "[" {
				var err error
				if f.count, err = strconv.Atoi(t[1]); err != nil {
					return nil, err
				}
				t = t[3:]
			}
			b.place(s, f)
			end := t[0]
			if t = t[1:]; end == ";" {
				break
			}
		}
	}
	s.finish()
	return t[1:], nil
}

// part reads a struct or union within another. Without a name C finds its members in the outer one;
// in Go it has one.
func (b *binder) part(s, part *boundStruct, t []string) ([]string, error) {
	depth, end := 1, 0
	for ; depth > 0; end++ {
		switch t[end] {
		case "{":
			depth++
		case "}":
			depth--
		}
	}
	field := "union"
	if t[end] != ";" {
		field = t[end]
		end++
	}
	part.name = s.name + fieldName(field, false)
	if _, err := b.body(part, t); err != nil {
		return nil, err
	}
	b.order = append(b.order, part)
	f := boundField{c: field, t: boundType{part.name, part.size, part.align, isStruct}}
	if t[end-1] == "}" {
		f.c = "" // no name in C
		f.name = field
	}
	b.place(s, f)
	return t[end+1:], nil
}

func (b *binder) place(s *boundStruct, f boundField) {
	if f.name == "" {
		f.name = fieldName(f.c, b.sealed[s.c])
	}
	s.align = max(s.align, f.t.align)
	size := f.t.size * max(f.count, 1)
	if s.union {
		s.size = max(s.size, size)
	} else {
		f.offset = (s.size + f.t.align - 1) / f.t.align * f.t.align
		s.size = f.offset + size
	}
	s.fields = append(s.fields, f)
}

func (s *boundStruct) finish() { s.size = (s.size + s.align - 1) / s.align * s.align }

// fieldName is a C field's name in Go; of a sealed struct one that other packages cannot write.
func fieldName(c string, sealed bool) string {
	var out strings.Builder
	up := !sealed
	for _, r := range c {
		if r == '_' {
			up = true
			continue
		}
		if up {
			r = unicode.ToUpper(r)
		} else if out.Len() == 0 {
			r = unicode.ToLower(r)
		}
		up = false
		out.WriteRune(r)
	}
	switch name := out.String(); name {
	case "type", "func", "map", "range":
		return name + "_"
	default:
		return name
	}
}

// used tells which Go types the methods need, and those in turn.
func (b *binder) used(f *idl.File) func(name string) bool {
	var w writer
	bindDriver(&w, f)
	need := map[string]bool{}
	for _, n := range words.FindAllString(w.String(), -1) {
		need[n] = true
	}
	for _, s := range b.order {
		need[s.name] = need[s.name] || slices.ContainsFunc(f.Seals, func(l idl.Seal) bool { return l.Name == s.c })
	}
	for _, s := range slices.Backward(b.order) { // what is within others comes before them
		for _, m := range s.fields {
			need[m.t.name] = need[m.t.name] || need[s.name]
		}
	}
	return func(name string) bool { return need[name] }
}

// bindTypes writes handles and structs.
func bindTypes(w *writer, f *idl.File) {
	b, err := newBinder(f)
	if err != nil {
		panic(err) // of the generator, about a file that it holds
	}
	used := b.used(f)
	w.goFile("bind", "unsafe")
	for _, t := range f.Types {
		k, ok := b.types[t.Name]
		if !ok || k.is != isHandle || k.name == "Address" || k.name == "Callback" || !used(k.name) {
			continue
		}
		w.f("// %s is a %s of the driver's, and no other type converts to it.\ntype %s struct {\n_ [0]*%s\nv uint64\n}\n", k.name, t.Name, k.name, k.name)
		w.f("// IsZero reports whether it is none.\nfunc (h %s) IsZero() bool { return h.v == 0 }\n", k.name)
	}
	for _, s := range b.order {
		if used(s.name) {
			s.emit(w)
		}
	}
}

func (s *boundStruct) emit(w *writer) {
	what := s.c
	if what == "" {
		what = "part of another struct"
	}
	if s.union {
		w.f("// %s is %s: one of its members.\ntype %s struct { words [%d]uint%d }\n", s.name, what, s.name, s.size/s.align, 8*s.align)
		for _, m := range s.fields {
			w.f("// %s is the member of that name.\nfunc (u *%s) %s() *%s { return (*%s)(unsafe.Pointer(u)) }\n", upperFirst(m.name), s.name, upperFirst(m.name), m.typeName(), m.typeName())
		}
		return
	}
	w.f("// %s is %s.\ntype %s struct {", s.name, what, s.name)
	for _, f := range s.fields {
		w.f("%s %s", f.name, f.typeName())
	}
	w.f("}\n")
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func (f boundField) typeName() string {
	if f.count > 0 {
		return fmt.Sprintf("[%d]%s", f.count, f.t.name)
	}
	return f.t.name
}

// bindLayouts writes sizes and offsets as Go has them, for a test to compare with C's.
func bindLayouts(w *writer, f *idl.File) {
	b, err := newBinder(f)
	if err != nil {
		panic(err)
	}
	used := b.used(f)
	w.goFile("bind", "unsafe")
	w.f("// layouts are C expressions and what Go says of the same.\nvar layouts = []struct{ c string; value uintptr }{")
	for _, s := range b.order {
		if s.c == "" || s.union || !used(s.name) {
			continue
		}
		w.f("{%q, unsafe.Sizeof(%s{})},", "sizeof("+s.c+")", s.name)
		for _, m := range s.fields {
			if m.c != "" {
				w.f("{%q, unsafe.Offsetof(%s{}.%s)},", "offsetof("+s.c+", "+m.c+")", s.name, m.name)
			}
		}
	}
	w.f("}")
}
