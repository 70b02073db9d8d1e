package cubinvars

import (
	"bytes"
	"errors"
	"testing"
)

// part is a section of a cubin that a test makes.
type part struct {
	name       string
	kind       uint32
	link, info uint32
	data       []byte
	size       uint64 // without bits
	align      uint64
}

func words(list ...uint64) []byte {
	var b []byte
	for _, w := range list {
		b = le.AppendUint64(b, w)
	}
	return b
}

// build lays sections out behind a header; section 0 is empty and the last one holds their names.
func build(parts []part) []byte {
	parts = append(append([]part{{}}, parts...), part{name: ".shstrtab", kind: 3})
	names := []byte{0}
	at := make([]uint32, len(parts))
	for i, p := range parts {
		at[i] = uint32(len(names))
		names = append(append(names, p.name...), 0)
	}
	parts[len(parts)-1].data = names
	b := make([]byte, headerSize)
	copy(b, "\x7fELF\x02\x01\x01\x41")
	le.PutUint16(b[18:], machineCUDA)
	var table []byte
	for i, p := range parts {
		size := uint64(len(p.data))
		if p.kind == kindNoBits {
			size = p.size
		}
		e := make([]byte, entrySize)
		le.PutUint32(e, at[i])
		le.PutUint32(e[4:], p.kind)
		le.PutUint64(e[24:], uint64(len(b)))
		le.PutUint64(e[32:], size)
		le.PutUint32(e[40:], p.link)
		le.PutUint32(e[44:], p.info)
		le.PutUint64(e[48:], p.align)
		table = append(table, e...)
		b = append(b, p.data...)
	}
	le.PutUint64(b[40:], uint64(len(b)))
	le.PutUint16(b[58:], entrySize)
	le.PutUint16(b[60:], uint16(len(parts)))
	le.PutUint16(b[62:], uint16(len(parts)-1))
	return append(b, table...)
}

func sym(name uint32, other byte, section uint16, value, size uint64) []byte {
	e := le.AppendUint32(nil, name)
	e = append(e, typeObject, other)
	e = le.AppendUint16(e, section)
	return append(e, words(value, size)...)
}

func kinded(symbol, kind uint64) uint64 { return symbol<<32 | kind }

// Sections of example.
const (
	names = 1 + iota
	symbols
	inits
	zeros
	bank
	bankRelocations
	code
	codeRelocations
)

// example has two managed variables, x = 5 of 4 bytes and y of 100, a plain one, a bank of addresses, and code that holds halves.
func example(kind uint64) []byte {
	table := bytes.Join([][]byte{make([]byte, symbolSize), sym(1, otherManaged, inits, 4, 4), sym(3, otherManaged, zeros, 0, 100), sym(5, 0, inits, 0, 4)}, nil)
	text := make([]byte, 64)
	return build([]part{
		{name: ".strtab", kind: 3, data: []byte("\x00x\x00y\x00z\x00")},
		{name: ".symtab", kind: kindSymbols, link: names, data: table},
		{name: ".nv.global.init", kind: 1, data: []byte{9, 0, 0, 0, 5, 0, 0, 0}, align: 4},
		{name: ".nv.global", kind: kindNoBits, size: 100, align: 64},
		{name: ".nv.constant4", kind: 1, data: words(7, 0, 0)},
		{name: ".rela.nv.constant4", kind: kindRela, link: symbols, info: bank,
			data: words(16, kinded(2, whole), 40, 8, kinded(3, whole), 0, 0, kinded(1, kind), 2)},
		{name: ".text.k", kind: 1, data: text},
		{name: ".rel.text.k", kind: kindRel, link: symbols, info: code, data: words(16, kinded(2, lower), 32, kinded(2, upper))},
	})
}

func TestMove(t *testing.T) {
	img := example(whole)
	before := bytes.Clone(img)
	vars, size, err := Find(img)
	if err != nil || len(vars) != 2 {
		t.Fatalf("%v, %v", vars, err)
	}
	x, y := vars[0], vars[1]
	if x.Name != "x" || x.Size != 4 || !bytes.Equal(x.Init, []byte{5, 0, 0, 0}) || x.Offset < first {
		t.Errorf("x: %+v", x)
	}
	if y.Name != "y" || y.Size != 100 || y.Init != nil || y.Offset%64 != 0 || y.Offset < x.Offset+4 || size != y.Offset+100 {
		t.Errorf("y: %+v of %d bytes", y, size)
	}
	const base = 0x6a12_3456_0000
	out, err := Move(img, vars, base)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(img, before) {
		t.Error("the original changed")
	}
	f, err := parse(out)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := f.sections[bank].bytes(f), words(base+x.Offset+2, 0, base+y.Offset+40); !bytes.Equal(got, want) {
		t.Errorf("bank %x, want %x", got, want)
	}
	if got, want := f.sections[bankRelocations].bytes(f), words(8, kinded(3, whole), 0); !bytes.Equal(got, want) {
		t.Errorf("relocations left: %x, want %x", got, want)
	}
	text, to := f.sections[code].bytes(f), base+y.Offset
	if le.Uint32(text[20:]) != uint32(to) || le.Uint32(text[36:]) != uint32(to>>32) || f.sections[codeRelocations].size != 0 {
		t.Errorf("halves %#x, %#x of %#x", le.Uint32(text[36:]), le.Uint32(text[20:]), to)
	}
}

func TestUnsupported(t *testing.T) {
	cases := map[string]func([]byte) []byte{
		"another kind of relocation": func([]byte) []byte { return example(77) },
		"a variable elsewhere": func(img []byte) []byte {
			f, _ := parse(img)
			le.PutUint16(f.sections[symbols].bytes(f)[2*symbolSize+6:], 0)
			return img
		},
		"a variable that leaves its section": func(img []byte) []byte {
			f, _ := parse(img)
			le.PutUint64(f.sections[symbols].bytes(f)[symbolSize+16:], 1<<40)
			return img
		},
		"a relocation outside": func(img []byte) []byte {
			f, _ := parse(img)
			le.PutUint64(f.sections[bankRelocations].bytes(f), 1<<63)
			return img
		},
		"cut off": func(img []byte) []byte { return img[:len(img)-10] },
		"no cubin": func(img []byte) []byte {
			img[18] = 62
			return img
		},
	}
	for name, spoil := range cases {
		img := spoil(example(whole))
		vars, _, err := Find(img)
		if err == nil {
			_, err = Move(img, vars, 1<<40)
		}
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if vars, size, err := Find(build(nil)); vars != nil || size != 0 || err != nil {
		t.Errorf("no variables: %v, %d, %v", vars, size, err)
	}
}

// hostile has so many symbols with one long name: a small file that names much.
func hostile(name, count, tables int) []byte {
	table := bytes.Repeat(sym(1, otherManaged, 2, 0, 1), count)
	parts := []part{
		{name: ".strtab", kind: 3, data: append(append([]byte{0}, bytes.Repeat([]byte("x"), name)...), 0)},
		{name: ".nv.global", kind: kindNoBits, size: 8, align: 8},
	}
	for range tables {
		parts = append(parts, part{name: ".symtab", kind: kindSymbols, link: 1, data: table})
	}
	return build(parts)
}

// TestBounds: an image does not make this keep more than it is worth.
func TestBounds(t *testing.T) {
	cases := map[string][]byte{
		"many variables":      hostile(1, maxVars+1, 1),
		"a long name":         hostile(maxName+1, 1, 1),
		"long names of many":  hostile(maxName, maxNames/maxName+1, 1),
		"many tables of many": hostile(1, maxVars/4, maxSymbols/(maxVars/4)+1),
	}
	for what, img := range cases {
		if vars, _, err := Find(img); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %d variables, %v", what, len(vars), err)
		}
	}
	if vars, _, err := Find(hostile(maxName, 10, 2)); err != nil || len(vars) != 20 {
		t.Errorf("a few: %d, %v", len(vars), err)
	}
}

func FuzzMove(f *testing.F) {
	f.Add(example(whole))
	f.Add(example(lower))
	f.Add(build(nil))
	f.Fuzz(func(t *testing.T, img []byte) {
		vars, size, err := Find(img)
		if err != nil {
			return
		}
		for _, v := range vars {
			if v.Offset < first || v.Size > size || v.Offset > size-v.Size || uint64(len(v.Init)) > v.Size {
				t.Fatalf("%+v of %d bytes", v, size)
			}
		}
		if out, err := Move(img, vars, 1<<40); err == nil && len(out) != len(img) {
			t.Fatalf("%d bytes became %d", len(img), len(out))
		}
	})
}
