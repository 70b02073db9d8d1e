package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"runtime"
	"testing"
)

// FuzzContent takes one of some good images and changes it as its input says: five bytes are a
// place and a value, of a width that the place says, and what is left is cut off the end. Whatever
// Check lets through is held to by a reader that, as a driver does, knows no length.
func FuzzContent(f *testing.F) {
	images := contentImages(f)
	for i := range images {
		f.Add(byte(i), []byte{})
		for _, at := range []uint16{32, 40, 54, 56, 58, 60, 62, 64 + 24, 64 + 32, 128 + 24, 128 + 32} {
			f.Add(byte(i), []byte{byte(at), byte(at >> 8), 0xff, 0xff, 0x7f})
			f.Add(byte(i), []byte{byte(at), byte(at>>8) | 0x80, 0, 1, 0, 9})
		}
	}
	f.Fuzz(func(t *testing.T, which byte, edits []byte) {
		image := bytes.Clone(images[int(which)%len(images)])
		for ; len(edits) >= 5; edits = edits[5:] {
			at := int(binary.LittleEndian.Uint16(edits)&0x3fff) % len(image)
			// Small, or near the largest.
			v := uint64(edits[2]) | uint64(edits[3])<<8 | uint64(int64(int8(edits[4])))<<16
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], v)
			copy(image[at:], b[:[4]int{1, 2, 4, 8}[edits[1]>>6]])
		}
		if len(edits) > 0 {
			image = image[:len(image)-min(len(image), int(edits[0]))]
		}
		before := bytes.Clone(image)
		c, err := Check(image, func(int) bool { return true })
		if !bytes.Equal(before, image) {
			t.Fatal("the image was changed")
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrCompression) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		held(t, c)
		again, err := Check(c.Bytes(), func(int) bool { return true })
		if err != nil || again.Format() != c.Format() || len(again.Parts()) != len(c.Parts()) || !bytes.Equal(again.Bytes(), c.Bytes()) {
			t.Fatalf("what was let through is refused, or is something else, the second time: %v", err)
		}
	})
}

// held holds a checked image to what was said of it.
func held(t *testing.T, c *Code) {
	t.Helper()
	if c.Format() == Wrapper {
		t.Fatal("a wrapper, which holds addresses")
	}
	if c.Format() == ELF {
		if what := readELF(c.Bytes()); what != "" {
			t.Fatalf("%d bytes: %s", len(c.Bytes()), what)
		}
	}
	if c.Format() != Container {
		return
	}
	list, err := Decode(c.Bytes())
	if err != nil {
		t.Fatalf("a container that Check lets through does not decode: %v", err)
	}
	for i := range list {
		code, err := list[i].Payload()
		if err != nil {
			continue // no machine code, and nothing that a driver would look at with us
		}
		if len(code) > MaxPayload {
			t.Fatalf("entry %d unpacks to %d bytes", i, len(code))
		}
		if list[i].Kind == KindELF || Detect(code) == ELF {
			if what := readELF(code); what != "" {
				t.Fatalf("entry %d of %d bytes: %s", i, len(code), what)
			}
		}
	}
}

// readELF reads an image as something that trusts it does, and says where that would leave it.
func readELF(b []byte) string {
	le, total := binary.LittleEndian, uint64(len(b))
	in := func(off, n uint64) bool {
		end, carry := bits.Add64(off, n, 0)
		return carry == 0 && end <= total
	}
	if !in(0, 64) {
		return "no header"
	}
	phoff, shoff := le.Uint64(b[32:]), le.Uint64(b[40:])
	phsize, phnum, shsize, shnum, names := uint64(le.Uint16(b[54:])), uint64(le.Uint16(b[56:])), uint64(le.Uint16(b[58:])), uint64(le.Uint16(b[60:])), uint64(le.Uint16(b[62:]))
	if shoff != 0 {
		if !in(shoff, 64) {
			return "the first section header is outside"
		}
		if shnum == 0 {
			shnum = le.Uint64(b[shoff+32:])
		}
		if names == 0xffff {
			names = uint64(le.Uint32(b[shoff+40:]))
		}
		if phnum == 0xffff {
			phnum = uint64(le.Uint32(b[shoff+44:]))
		}
	}
	for i := range phnum {
		hi, at := bits.Mul64(i, phsize)
		if hi != 0 || !in(phoff+at, 56) || phoff+at < phoff {
			return "a segment's header is outside"
		}
		p := b[phoff+at:]
		if !in(le.Uint64(p[8:]), le.Uint64(p[32:])) {
			return "a segment is outside"
		}
	}
	ended := func(s []byte) bool { // strings that begin anywhere in it end in it
		n := le.Uint64(s[32:])
		return n == 0 || b[le.Uint64(s[24:])+n-1] == 0
	}
	for i := range shnum {
		hi, at := bits.Mul64(i, shsize)
		if hi != 0 || shoff+at < shoff || !in(shoff+at, 64) {
			return "a section's header is outside"
		}
		s := b[shoff+at:]
		kind := le.Uint32(s[4:])
		if i == 0 || kind == 8 {
			continue
		}
		if !in(le.Uint64(s[24:]), le.Uint64(s[32:])) {
			return "a section is outside"
		}
		if kind == 3 && !ended(s) {
			return "strings do not end"
		}
		if i == names && !ended(s) {
			return "names do not end"
		}
	}
	if shnum > 0 && names >= shnum {
		return "there are no names"
	}
	return ""
}

// contentImages are machine code with every kind of table, alone and in containers, packed and not,
// and text.
func contentImages(tb testing.TB) [][]byte {
	le := binary.LittleEndian
	elf := make([]byte, 64)
	copy(elf, "\x7fELF\x02\x01\x01")
	le.PutUint16(elf[18:], elfCUDA)
	type section struct {
		kind    uint32
		content []byte
	}
	var table []byte
	for _, s := range []section{{}, {3, []byte("\x00.shstrtab\x00.text.k\x00")}, {1, bytes.Repeat([]byte("code"), 20)}, {8, make([]byte, 100)}, {2, make([]byte, 72)}, {0x70000000, []byte("info")}, {3, []byte("\x00k\x00")}} {
		h := make([]byte, 64)
		le.PutUint32(h[4:], s.kind)
		le.PutUint64(h[24:], uint64(len(elf)))
		le.PutUint64(h[32:], uint64(len(s.content)))
		if s.kind != 8 {
			elf = append(elf, s.content...)
		}
		elf = append(elf, make([]byte, -len(elf)&7)...)
		table = append(table, h...)
	}
	le.PutUint64(elf[40:], uint64(len(elf)))
	le.PutUint16(elf[58:], 64)
	le.PutUint16(elf[60:], uint16(len(table)/64))
	le.PutUint16(elf[62:], 1)
	elf = append(elf, table...)
	segment := make([]byte, 56)
	le.PutUint32(segment, 1)
	le.PutUint64(segment[8:], 64)
	le.PutUint64(segment[32:], 100)
	le.PutUint64(elf[32:], uint64(len(elf)))
	le.PutUint16(elf[54:], 56)
	le.PutUint16(elf[56:], 1)
	elf = append(elf, segment...)
	if what := readELF(elf); what != "" {
		tb.Fatal(what)
	}
	return [][]byte{
		elf,
		container(build(KindELF, 90, 0, 0x11, elf, 0)),
		container(build(KindELF, 90, 0, 0x11|flagLZ4, packLZ4(tb, elf), len(elf)), build(KindPTX, 80, 82, 0x11, append(bytes.Clone(text), 0), 0)),
		container(build(KindELF, 90, 0, 0x11|flagZstd, packZstd(tb, elf), len(elf)), build(9, 80, 0, 0x11, []byte("unknown kind"), 0)),
		sample(tb)[:len(sample(tb))-72], // less the last entry, which is no machine code
		text,
	}
}

// TestContentImages: the images that FuzzContent begins with are let through.
func TestContentImages(t *testing.T) {
	for i, image := range contentImages(t)[:4] {
		c, err := Check(image, func(int) bool { return true })
		if err != nil {
			t.Errorf("image %d: %v", i, err)
			continue
		}
		held(t, c)
	}
}

// TestNamesEnd: the section that has the names is there, and they end in it, of whatever kind it
// says it is.
func TestNamesEnd(t *testing.T) {
	le := binary.LittleEndian
	image := contentImages(t)[0]
	sections, names := le.Uint64(image[40:]), uint64(le.Uint16(image[62:]))
	for what, edit := range map[string]func(b []byte){
		"strings that do not end": func(b []byte) {
			s := b[sections+64*names:]
			b[le.Uint64(s[24:])+le.Uint64(s[32:])-1] = 'x'
		},
		"names of another kind that do not end": func(b []byte) {
			s := b[sections+64*names:]
			le.PutUint32(s[4:], 1)
			b[le.Uint64(s[24:])+le.Uint64(s[32:])-1] = 'x'
		},
		"no names": func(b []byte) { le.PutUint16(b[62:], le.Uint16(b[60:])) },
	} {
		b := bytes.Clone(image)
		edit(b)
		if _, err := Check(b, func(int) bool { return true }); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNothingIsMadeForALie: an entry that says it unpacks to more than its bytes can hold costs no
// memory.
func TestNothingIsMadeForALie(t *testing.T) {
	list, err := Decode(container(build(KindELF, 90, 0, 0x11|flagLZ4, packLZ4(t, text), 512<<20)))
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = list[0].Payload()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrMalformed) || n > 1<<20 {
		t.Errorf("%v, after %d bytes", err, n)
	}
}

// TestSectionsWithoutBytes: what takes no place in the file may have any size.
func TestSectionsWithoutBytes(t *testing.T) {
	b := bytes.Clone(contentImages(t)[0])
	le := binary.LittleEndian
	s := b[le.Uint64(b[40:])+3*64:]
	if le.Uint32(s[4:]) != 8 {
		t.Fatal("section 3 has bytes")
	}
	le.PutUint64(s[24:], 1<<50)
	le.PutUint64(s[32:], 1<<40)
	if c, err := Check(b, func(int) bool { return true }); err != nil || len(c.Bytes()) != len(b) {
		t.Error(err)
	}
}

// TestTextIsNoCode: machine code that calls itself text is refused, packed or not.
func TestTextIsNoCode(t *testing.T) {
	elf := contentImages(t)[0]
	text := append(bytes.Repeat([]byte(".version 7.0\n.target sm_75\n"), 40), 0)
	for _, x := range []struct {
		name  string
		entry []byte
		code  bool
	}{
		{"stored code", build(KindPTX, 80, 82, 0x11, elf, 0), true},
		{"LZ4 code", build(KindPTX, 80, 82, 0x11|flagLZ4, packLZ4(t, elf), len(elf)), true},
		{"zstd code", build(KindPTX, 80, 82, 0x11|flagZstd, packZstd(t, elf), len(elf)), true},
		{"damaged zstd", build(KindPTX, 80, 82, 0x11|flagZstd, elf, len(elf)), true},
		{"stored text", build(KindPTX, 80, 82, 0x11, text, 0), false},
		{"LZ4 text", build(KindPTX, 80, 82, 0x11|flagLZ4, packLZ4(t, text), len(text)), false},
		{"zstd text", build(KindPTX, 80, 82, 0x11|flagZstd, packZstd(t, text), len(text)), false},
	} {
		_, err := Check(container(x.entry), func(int) bool { return true })
		if x.code != errors.Is(err, ErrMalformed) || !x.code && err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}
