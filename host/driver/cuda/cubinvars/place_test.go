package cubinvars

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"causeway/host/driver/cuda/cubinvars/cubintest"
)

func none(string) bool { return false }

// sectionNamed finds a section of what a test has made.
func sectionNamed(t *testing.T, img []byte, name string) (*file, *section) {
	t.Helper()
	f, err := parse(img)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.sections {
		if f.sections[i].name == name {
			return f, &f.sections[i]
		}
	}
	t.Fatalf("no section %s", name)
	return nil, nil
}

// TestPlace: code holds the addresses that it is given, those of what is not named stay the driver's to fill in, and the original is as it was.
func TestPlace(t *testing.T) {
	const bank, relocations = ".nv.constant4", ".rela.nv.constant4"
	img := cubintest.Variables(0)
	before := bytes.Clone(img)
	for name, c := range map[string]struct {
		addr map[string]uint64
		want []byte
		left uint64
	}{
		"all":       {map[string]uint64{"x": 0x7f00_0000_1000, "y": 0x7f00_0020_0000}, words(0x7f00_0000_1000, 0x7f00_0020_0004), 0},
		"one":       {map[string]uint64{"y": 1 << 40}, words(0, 1<<40+4), 24},
		"others":    {map[string]uint64{"z": 1 << 40}, words(0, 0), 48},
		"constants": {map[string]uint64{"c": 1 << 40}, words(0, 0), 48},
	} {
		out, err := Place(img, c.addr)
		if err != nil {
			t.Fatal(err)
		}
		f, s := sectionNamed(t, out, bank)
		if got := s.bytes(f); !bytes.Equal(got, c.want) {
			t.Errorf("%s: bank %x, want %x", name, got, c.want)
		}
		if _, s := sectionNamed(t, out, relocations); s.size != c.left {
			t.Errorf("%s: %d bytes of relocations are left, want %d", name, s.size, c.left)
		}
	}
	if !bytes.Equal(img, before) {
		t.Error("the original changed")
	}
	if names, err := Constants(img); err != nil || !slices.Equal(names, []string{"c"}) {
		t.Errorf("constants: %v, %v", names, err)
	}
}

// TestPlaceable: what would leave code with an address of the driver's choice is refused, with the reason.
func TestPlaceable(t *testing.T) {
	meaning := func(second []byte) func([]byte) []byte { // in the place of y's relocation
		return func(img []byte) []byte {
			f, s := sectionNamed(t, img, ".rela.nv.constant4")
			copy(s.bytes(f)[24:], second)
			return img
		}
	}
	symbol := func(n int, entry []byte) func([]byte) []byte {
		return func(img []byte) []byte {
			f, s := sectionNamed(t, img, ".symtab")
			copy(s.bytes(f)[n*symbolSize:], entry)
			return img
		}
	}
	for name, c := range map[string]struct {
		spoil func([]byte) []byte
		why   string
	}{
		"as it is":           {nil, ""},
		"of a constant":      {meaning(words(8, cubintest.Meant(3, whole), 0)), "holds the address of c"},
		"an unknown kind":    {meaning(words(8, cubintest.Meant(2, 0x10002), 0)), "kind 0x10002"},
		"two of a name":      {symbol(2, cubintest.Symbol(1, typeObject, 0, 3, 16, 16)), "two are called x"},
		"all of the section": {symbol(1, cubintest.Symbol(0, typeSection, 0, 3, 0, 0)), "as a whole"},
		"relocations of no symbols": {func(img []byte) []byte {
			f, s := sectionNamed(t, img, ".rela.nv.constant4")
			le.PutUint32(f.b[s.header+40:], 1)
			return img
		}, ""},
		"no cubin": {func(img []byte) []byte { return img[:40] }, "no 64-bit ELF"},
	} {
		img := cubintest.Variables(0)
		if c.spoil != nil {
			img = c.spoil(img)
		}
		err := Placeable(img, none)
		if (err == nil) != (c.why == "") || err != nil && (!errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Placeable(build(nil), none); err != nil {
		t.Errorf("without variables: %v", err)
	}
}

// FuzzPlace: what can be placed keeps its length and holds no relocation any more that means a variable.
func FuzzPlace(f *testing.F) {
	f.Add(cubintest.Variables(0))
	f.Add(cubintest.Variables(0x10002))
	f.Add(example(whole))
	f.Fuzz(func(t *testing.T, img []byte) {
		if Placeable(img, none) != nil {
			return
		}
		names, err := Names(img)
		if err != nil {
			t.Fatal(err)
		}
		addr := map[string]uint64{}
		for i, name := range names {
			addr[name] = 1<<40 + uint64(i)<<20
		}
		out, err := Place(img, addr)
		if err != nil || len(out) != len(img) {
			t.Fatalf("%d bytes became %d: %v", len(img), len(out), err)
		}
		if again, err := Place(out, addr); err != nil || !bytes.Equal(out, again) {
			t.Fatalf("something is left to be placed: %v", err)
		}
	})
}
