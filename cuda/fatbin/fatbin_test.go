package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// withOptions is a header with options behind it, as nvcc 13.0 has them.
func withOptions(h []byte, words string) []byte {
	le := binary.LittleEndian
	le.PutUint32(h[20:], entrySize)
	h = le.AppendUint32(h, entrySize+8)
	h = le.AppendUint32(h, uint32(len(words)))
	h = append(append(h, words...), 0)
	h = append(h, make([]byte, -len(h)&7)...)
	le.PutUint32(h[4:], uint32(len(h)))
	return h
}

// build makes an entry; packed is what is stored, size the true length.
func build(kind Kind, sm, ptx int, flags uint64, packed []byte, size int) []byte {
	h := make([]byte, entrySize)
	le := binary.LittleEndian
	padded := (len(packed) + 7) &^ 7
	le.PutUint16(h, uint16(kind))
	le.PutUint16(h[2:], 0x101)
	le.PutUint32(h[4:], entrySize)
	le.PutUint64(h[8:], uint64(padded))
	if flags&(flagLZ4|flagZstd|flagOld) != 0 {
		le.PutUint32(h[16:], uint32(len(packed)))
	}
	le.PutUint32(h[24:], uint32(ptx/10<<16|ptx%10))
	le.PutUint32(h[28:], uint32(sm))
	le.PutUint64(h[40:], flags)
	le.PutUint64(h[56:], uint64(size))
	if kind == KindPTX {
		h = withOptions(h, "")
	}
	h = append(h, packed...)
	return append(h, make([]byte, padded-len(packed))...)
}

func container(entries ...[]byte) []byte {
	body := bytes.Join(entries, nil)
	h := make([]byte, ContainerSize)
	binary.LittleEndian.PutUint32(h, containerMagic)
	binary.LittleEndian.PutUint16(h[4:], 1)
	binary.LittleEndian.PutUint16(h[6:], ContainerSize)
	binary.LittleEndian.PutUint64(h[8:], uint64(len(body)))
	return append(h, body...)
}

func packLZ4(tb testing.TB, b []byte) []byte {
	out := make([]byte, lz4.CompressBlockBound(len(b)))
	var c lz4.Compressor
	n, err := c.CompressBlock(b, out)
	if err != nil || n == 0 {
		tb.Fatal("lz4", n, err)
	}
	return out[:n]
}

func packZstd(tb testing.TB, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

var text = bytes.Repeat([]byte(".version 8.0\n.target sm_75\n"), 40)

func sample(tb testing.TB) []byte {
	return container(
		build(KindPTX, 75, 80, 0x11, append(bytes.Clone(text), 0, 0, 0), 0),
		build(KindPTX, 80, 82, 0x11|flagLZ4, packLZ4(tb, text), len(text)),
		build(9, 80, 0, 0x11, []byte("unknown kind"), 0),
		build(KindPTX, 90, 90, 0x11|flagZstd, packZstd(tb, text), len(text)),
		build(KindELF, 90, 0, 0x11, []byte("\x7fELFrest"), 0))
}

func TestDecode(t *testing.T) {
	list, err := Decode(append(sample(t), "trailing"...))
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{{Kind: KindPTX, SM: 75, PTXVersion: 80}, {Kind: KindPTX, SM: 80, PTXVersion: 82, Compressed: true},
		{Kind: KindPTX, SM: 90, PTXVersion: 90, Compressed: true}, {Kind: KindELF, SM: 90}}
	if len(list) != len(want) {
		t.Fatalf("%d entries, want %d", len(list), len(want))
	}
	for i, e := range list {
		w := want[i]
		if e.Kind != w.Kind || e.SM != w.SM || e.PTXVersion != w.PTXVersion || e.Compressed != w.Compressed {
			t.Errorf("entry %d: %+v, want %+v", i, e, w)
		}
		p, err := e.Payload()
		if err != nil {
			t.Errorf("entry %d: %v", i, err)
		} else if e.Kind == KindPTX && !bytes.Equal(p, text) {
			t.Errorf("entry %d: %d bytes of text, want %d", i, len(p), len(text))
		}
	}
	for sm, want := range map[int]int{70: 0, 75: 75, 89: 80, 120: 90} {
		if e, ok := BestPTX(list, sm); ok != (want != 0) || ok && e.SM != want {
			t.Errorf("BestPTX(%d) = %v, want %d", sm, e, want)
		}
	}
}

func TestDecodeRejects(t *testing.T) {
	good := sample(t)
	patch := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	for name, data := range map[string][]byte{
		"empty":           nil,
		"short":           good[:10],
		"truncated":       good[:len(good)-1],
		"magic":           patch(0, 1),
		"version":         patch(4, 2),
		"small header":    patch(6, 8),
		"huge":            patch(8, 255, 255, 255, 255, 255, 255, 255, 255),
		"entry header":    patch(ContainerSize+4, 1),
		"entry payload":   patch(ContainerSize+8, 255, 255, 255, 255, 255, 255, 255, 127),
		"cut entry":       container(good[ContainerSize : ContainerSize+40]),
		"architecture":    patch(ContainerSize+28, 255, 255),
		"too much packed": container(build(KindPTX, 80, 80, flagLZ4, []byte("x"), 4)[:16], []byte{255}, build(KindPTX, 80, 80, flagLZ4, []byte("x"), 4)[17:]),
	} {
		if _, err := Decode(data); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestPayloadRejects(t *testing.T) {
	for name, c := range map[string]struct {
		entry []byte
		want  error
	}{
		"old":        {build(KindPTX, 80, 80, flagOld, []byte("x"), 4), ErrCompression},
		"lz4 bad":    {build(KindPTX, 80, 80, flagLZ4, []byte("\xff\xff\xff"), 100), ErrMalformed},
		"lz4 bomb":   {build(KindPTX, 80, 80, flagLZ4, []byte("abc"), 1<<29), ErrMalformed},
		"too large":  {build(KindPTX, 80, 80, flagZstd, []byte("abc"), 1<<31), ErrMalformed},
		"zstd bad":   {build(KindPTX, 80, 80, flagZstd, []byte("abc"), 10), ErrMalformed},
		"zstd short": {build(KindPTX, 80, 80, flagZstd, packZstd(t, text), len(text)+1), ErrMalformed},
		"zstd bomb":  {build(KindPTX, 80, 80, flagZstd, packZstd(t, make([]byte, 1<<22)), 100), ErrMalformed},
	} {
		list, err := Decode(container(c.entry))
		if err != nil || len(list) != 1 {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := list[0].Payload(); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
}

// TestUnpacked: what comes out of an image by its headers, before anything is unpacked.
func TestUnpacked(t *testing.T) {
	one := container(build(KindPTX, 80, 80, flagLZ4, []byte("abc"), 5000), build(KindELF, 90, 0, flagZstd, []byte("abc"), 70_000), build(KindELF, 80, 0, 0, make([]byte, 64), 0))
	huge := container(build(KindPTX, 80, 80, flagZstd, []byte("abc"), 1<<40))
	for name, c := range map[string]struct {
		image []byte
		kind  Kind
		want  uint64
	}{
		"nothing":                  {nil, 0, 0},
		"text":                     {text, 0, uint64(len(text))},
		"the largest entry":        {one, 0, 70_000},
		"the largest text":         {one, KindPTX, 5000},
		"two containers":           {append(bytes.Clone(one), one...), 0, 140_000},
		"more than is unpacked":    {huge, 0, MaxPayload},
		"what nobody can read":     {one[:len(one)-1], 0, 0},
		"readable, then something": {append(bytes.Clone(one), "trailing"...), 0, 70_000},
	} {
		if n := Unpacked(c.image, c.kind); n != c.want {
			t.Errorf("%s: %d, want %d", name, n, c.want)
		}
	}
}

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		data string
		want Format
	}{
		{"", Unknown}, {"abc", Unknown}, {"\xb1\x43\x62\x46", Wrapper}, {"\x50\xed\x55\xba", Container},
		{"\x7fELF", ELF}, {".version 7.0", PTX}, {"// x\n /* y */\t.version 7.0", PTX}, {"/*", Unknown}, {"//", Unknown}, {" .target", Unknown},
	} {
		if got := Detect([]byte(c.data)); got != c.want {
			t.Errorf("Detect(%q) = %v, want %v", c.data, got, c.want)
		}
	}
}

func TestDecodeWrapper(t *testing.T) {
	b := make([]byte, WrapperSize)
	binary.LittleEndian.PutUint32(b, wrapperMagic)
	binary.LittleEndian.PutUint32(b[4:], 2)
	binary.LittleEndian.PutUint64(b[8:], 0x1000)
	binary.LittleEndian.PutUint64(b[16:], 0x2000)
	w, err := DecodeWrapper(b)
	if err != nil || w != (WrapperHeader{2, 0x1000, 0x2000}) {
		t.Errorf("%+v, %v", w, err)
	}
	b[4] = 3
	if _, err := DecodeWrapper(b); !errors.Is(err, ErrMalformed) {
		t.Errorf("version 3: %v", err)
	}
}

// cubin is an ELF image with its program headers last, as nvcc writes it.
func cubin() []byte {
	b := make([]byte, 64+16+2*64+56)
	le := binary.LittleEndian
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[18:], elfCUDA)
	le.PutUint64(b[32:], 64+16+2*64)
	le.PutUint64(b[40:], 64+16)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], 2)
	s := b[64+16+64:]
	le.PutUint32(s[4:], 1)
	le.PutUint64(s[24:], 64)
	le.PutUint64(s[32:], 16)
	return b
}

func TestCubinSize(t *testing.T) {
	b := cubin()
	n, err := CubinSize(append(bytes.Clone(b), 1, 2, 3))
	if err != nil || n != uint64(len(b)) {
		t.Errorf("%d, %v, want %d", n, err, len(b))
	}
	for i := range len(b) {
		if _, err := CubinSize(b[:i]); err == nil {
			t.Errorf("no error for %d bytes", i)
		}
	}
}

// TestNVCC decodes what nvcc wrote, where a build left it.
func TestNVCC(t *testing.T) {
	files, _ := filepath.Glob("../../build/fatbins/*.fatbin")
	if len(files) == 0 {
		t.Skip("no fatbins in build/fatbins")
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		list, err := Decode(data)
		if err != nil {
			t.Errorf("%s: %v", f, err)
		}
		for i, e := range list {
			p, err := e.Payload()
			want := ELF
			if e.Kind == KindPTX {
				want = PTX
			}
			if err != nil || Detect(p) != want {
				t.Errorf("%s: entry %d: %v, %v", f, i, Detect(p), err)
				continue
			}
			if want == ELF {
				if n, err := CubinSize(p); err != nil || n > uint64(len(p)) || n+8 <= uint64(len(p)) {
					t.Errorf("%s: entry %d: cubin of %d bytes in %d, %v", f, i, n, len(p), err)
				}
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sample(f))
	f.Add(cubin())
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		Detect(data)
		_, _ = DecodeWrapper(data)
		if n, err := CubinSize(data); err == nil && n > uint64(len(data)) {
			t.Errorf("cubin of %d bytes in %d", n, len(data))
		}
		list, err := Decode(data)
		if err != nil {
			return
		}
		for i := range list {
			if list[i].Size > 1<<24 {
				continue // slow, and bounded all the same
			}
			p, err := list[i].Payload()
			if err == nil && uint64(len(p)) > max(list[i].Size, uint64(len(data))) {
				t.Errorf("payload of %d bytes, declared %d", len(p), list[i].Size)
			}
		}
	})
}
