package cubinvars

import (
	"bytes"
	"errors"
	"testing"

	"causeway/host/driver/cuda/cubinvars/cubintest"
)

type part = cubintest.Part

var words, build, kinded = cubintest.Words, cubintest.Build, cubintest.Meant

func sym(name uint32, other byte, section uint16, value, size uint64) []byte {
	return cubintest.Symbol(name, typeObject, other, section, value, size)
}

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

// example has two managed variables, x = 5 of 4 bytes and y of 100, a plain one, a bank of
// addresses, and code that holds halves.
func example(kind uint64) []byte {
	table := bytes.Join([][]byte{make([]byte, symbolSize), sym(1, otherManaged, inits, 4, 4), sym(3, otherManaged, zeros, 0, 100), sym(5, 0, inits, 0, 4)}, nil)
	text := make([]byte, 64)
	return build([]part{
		{Name: ".strtab", Kind: 3, Data: []byte("\x00x\x00y\x00z\x00")},
		{Name: ".symtab", Kind: kindSymbols, Link: names, Data: table},
		{Name: ".nv.global.init", Kind: 1, Data: []byte{9, 0, 0, 0, 5, 0, 0, 0}, Align: 4},
		{Name: ".nv.global", Kind: kindNoBits, Size: 100, Align: 64},
		{Name: ".nv.constant4", Kind: 1, Data: words(7, 0, 0)},
		{Name: ".rela.nv.constant4", Kind: kindRela, Link: symbols, Info: bank,
			Data: words(16, kinded(2, whole), 40, 8, kinded(3, whole), 0, 0, kinded(1, kind), 2)},
		{Name: ".text.k", Kind: 1, Data: text},
		{Name: ".rel.text.k", Kind: kindRel, Link: symbols, Info: code, Data: words(16, kinded(2, lower), 32, kinded(2, upper))},
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

// hostile has so many symbols with one long Name: a small file that names much.
func hostile(name, count, tables int) []byte {
	table := bytes.Repeat(sym(1, otherManaged, 2, 0, 1), count)
	parts := []part{
		{Name: ".strtab", Kind: 3, Data: append(append([]byte{0}, bytes.Repeat([]byte("x"), name)...), 0)},
		{Name: ".nv.global", Kind: kindNoBits, Size: 8, Align: 8},
	}
	for range tables {
		parts = append(parts, part{Name: ".symtab", Kind: kindSymbols, Link: 1, Data: table})
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
	f.Add(cubintest.Variables())
	f.Fuzz(func(t *testing.T, img []byte) {
		names, err := Names(img)
		if err != nil && !errors.Is(err, ErrUnsupported) {
			t.Fatal(err)
		}
		for _, n := range names {
			if n == "" || len(n) > maxName {
				t.Fatalf("a name of %d bytes", len(n))
			}
		}
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
