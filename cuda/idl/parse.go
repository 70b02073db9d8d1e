package idl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// maxCount bounds arrays, so that layouts stay within int.
const maxCount = 1 << 20

// ParseDir parses every .idl file of a directory, in order of name, session.idl and ops.idl first.
func ParseDir(dir string) (*File, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.idl"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s holds no .idl file", dir)
	}
	sort.Strings(names)
	f := &File{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := f.Add(filepath.Base(name), string(text)); err != nil {
			return nil, err
		}
	}
	return f, f.Check()
}

// Parse parses and checks one text.
func Parse(name, text string) (*File, error) {
	f := &File{}
	if err := f.Add(name, text); err != nil {
		return nil, err
	}
	return f, f.Check()
}

// Add parses one text into f. Check completes it after the last one.
func (f *File) Add(name, text string) error {
	lines, err := scan(name, text)
	if err != nil {
		return err
	}
	var body func(line) error
	for _, l := range lines {
		switch {
		case !l.indented:
			body, err = f.declare(l)
		case body == nil:
			err = l.Errorf("%q belongs to no declaration", l.words[0])
		default:
			err = body(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *File) declare(l line) (body func(line) error, err error) {
	switch l.words[0] {
	case "const":
		return nil, f.addConst(l)
	case "struct":
		return f.addStruct(l)
	case "op":
		return f.addOp(l)
	case "enum":
		return f.addEnum(l)
	case "type":
		return nil, f.addType(l)
	case "results":
		return f.addResult, nil
	case "theme":
		return nil, f.addTheme(l)
	case "entry":
		return f.addEntry(l)
	case "bind":
		return nil, f.addBind(l)
	case "seal":
		return nil, f.addSeal(l)
	}
	return nil, l.Errorf("unknown declaration %q", l.words[0])
}

func (f *File) addConst(l line) error {
	if len(l.words) != 4 || !identifier(l.words[1]) {
		return l.Errorf("want const NAME TYPE VALUE")
	}
	c := Const{Pos: l.Pos, Name: l.words[1], Type: l.words[2], Text: l.words[3]}
	bits := map[string]int{"u16": 16, "u32": 32, "u64": 64}[c.Type]
	if bits == 0 {
		return l.Errorf("const %s: type %s is none of u16, u32, u64", c.Name, c.Type)
	}
	var err error
	if c.Value, err = strconv.ParseUint(c.Text, 0, bits); err != nil {
		return l.Errorf("const %s: %w", c.Name, err)
	}
	f.Consts = append(f.Consts, c)
	return nil
}

func (f *File) addStruct(l line) (func(line) error, error) {
	if len(l.words) < 2 || len(l.words) > 3 || !identifier(l.words[1]) || len(l.words) == 3 && l.words[2] != "message" {
		return nil, l.Errorf("want struct NAME [message]")
	}
	f.Structs = append(f.Structs, Struct{Pos: l.Pos, Name: l.words[1], Message: len(l.words) == 3})
	s := &f.Structs[len(f.Structs)-1]
	return func(l line) error {
		if len(l.words) != 2 || !identifier(l.words[0]) {
			return l.Errorf("want FIELD TYPE[COUNT]")
		}
		fd := StructField{Pos: l.Pos, Name: l.words[0], Type: l.words[1]}
		if t, n, ok := strings.Cut(fd.Type, "["); ok {
			count, err := strconv.Atoi(strings.TrimSuffix(n, "]"))
			if err != nil || count < 1 || count > maxCount || !strings.HasSuffix(n, "]") {
				return l.Errorf("bad array type %s", fd.Type)
			}
			fd.Type, fd.Count = t, count
		}
		size := sizes[fd.Type]
		if size == 0 || fd.Type == "id" || fd.Type == "newid" || fd.Type == "stream" || fd.Type == "bytes" || fd.Type == "data" {
			return l.Errorf("type %s is not allowed in a struct", fd.Type)
		}
		if s.Size%size != 0 {
			return l.Errorf("%s.%s: implicit padding before offset %d", s.Name, fd.Name, s.Size)
		}
		fd.Offset = s.Size
		s.Size += size * max(fd.Count, 1)
		s.Fields = append(s.Fields, fd)
		return nil
	}, nil
}

func (f *File) addEnum(l line) (func(line) error, error) {
	w := l.words
	if len(w) != 2 && (len(w) != 6 || w[2] != "go" || w[4] != "strip") || !identifier(w[1]) {
		return nil, l.Errorf("want enum NAME [go PREFIX strip PREFIX]")
	}
	e := Enum{Pos: l.Pos, Name: w[1]}
	if len(w) == 6 {
		e.Go, e.Strip = w[3], w[5]
	}
	f.Enums = append(f.Enums, e)
	p := &f.Enums[len(f.Enums)-1]
	return func(l line) error {
		if len(l.words) != 2 || !identifier(l.words[0]) {
			return l.Errorf("want NAME VALUE")
		}
		v, err := strconv.ParseInt(l.words[1], 0, 64)
		if err != nil {
			return l.Errorf("%s: %w", l.words[0], err)
		}
		if !strings.HasPrefix(l.words[0], p.Strip) {
			return l.Errorf("%s does not begin with %s", l.words[0], p.Strip)
		}
		p.Values = append(p.Values, EnumValue{Name: l.words[0], Value: v})
		return nil
	}, nil
}

func (f *File) addType(l line) error {
	if len(l.words) != 3 || !identifier(l.words[1]) || l.words[2] == "" {
		return l.Errorf(`want type NAME "DECLARATION"`)
	}
	f.Types = append(f.Types, Type{Pos: l.Pos, Name: l.words[1], Decl: l.words[2]})
	return nil
}

func (f *File) addResult(l line) error {
	if len(l.words) != 3 || !identifier(l.words[1]) {
		return l.Errorf(`want CODE NAME "text"`)
	}
	code, err := strconv.Atoi(l.words[0])
	if err != nil || code < 0 {
		return l.Errorf("bad code %s", l.words[0])
	}
	if n := len(f.Results); n > 0 && f.Results[n-1].Code >= code {
		return l.Errorf("codes must ascend: %d after %d", code, f.Results[n-1].Code)
	}
	f.Results = append(f.Results, Result{Pos: l.Pos, Code: code, Name: l.words[1], Text: l.words[2]})
	return nil
}

// Check numbers and lays out what was added, and looks for what contradicts itself.
func (f *File) Check() error {
	var errs []error
	seen := map[string]Pos{}
	name := func(kind, n string, p Pos) {
		if q, dup := seen[kind+n]; dup {
			errs = append(errs, p.Errorf("%s%s was declared at %s", kind, n, q))
		}
		seen[kind+n] = p
	}
	for _, c := range f.Consts {
		name("const ", c.Name, c.Pos)
	}
	for i := range f.Structs {
		s := &f.Structs[i]
		name("struct ", s.Name, s.Pos)
		align := 1
		for _, fd := range s.Fields {
			align = max(align, sizes[fd.Type])
		}
		if s.Size == 0 || s.Size%align != 0 {
			errs = append(errs, s.Errorf("struct %s: size %d is not a multiple of %d", s.Name, s.Size, align))
		}
	}
	for i := range f.Ops {
		o := &f.Ops[i]
		o.Num = i + 1
		name("op ", o.Name, o.Pos)
		errs = append(errs, o.check(f.Consts))
	}
	for _, e := range f.Entries {
		name("entry ", e.Symbol, e.Pos)
	}
	for _, b := range f.Binds {
		name("bind ", b.Symbol, b.Pos)
	}
	errs = append(errs, f.checkEntries(), f.checkBinds())
	return errors.Join(errs...)
}
