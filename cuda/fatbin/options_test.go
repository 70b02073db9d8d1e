package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// TestOptions: what an entry says of options for the assembler and of its name lies in its header,
// and the words name no files.
func TestOptions(t *testing.T) {
	le := binary.LittleEndian
	all := func(int) bool { return true }
	// entry is one of text whose header was changed.
	entry := func(words string, change func(h []byte)) []byte {
		b := build(KindPTX, 80, 82, 0x11, append(bytes.Clone(text), 0), 0)
		head := int(le.Uint32(b[4:]))
		h := withOptions(bytes.Clone(b[:entrySize]), words)
		if change != nil {
			change(h)
		}
		return append(h, b[head:]...)
	}
	for _, words := range []string{
		"", "-O1 ", "-maxrregcount=32 ", "-maxrregcount 32", "-g --dont-merge-basicblocks --return-at-end ", "--generate-line-info ", "--compile-only ",
		"-dlcm=cg -O3", "--fmad=false", "-regUsageLevel=5", "-ftz=0 -prec_div=1 -prec_sqrt=1 -fmad=1 ",
		"--split-compile=8", "-split-compile 64 -O3",
		`-uumn --ext-desc-file="/usr/local/cuda-13.0/bin/ptxExtDesc.txt"  `, `--ext-desc-file="/usr/local/cuda-13.1/bin/ptxExtDesc.txt"`,
	} {
		if _, err := Check(container(entry(words, nil)), all); err != nil {
			t.Errorf("%q: %v", words, err)
		}
	}
	for _, words := range []string{
		"/etc/passwd", "-optf /etc/passwd", "--options-file=/etc/passwd", "-optf x", "--options-file=x", "-o x", "-O1 -o=x", "--output-file x", "--input-as-string x",
		"-ias=x", "-O1\n-optf", "\"-O1\"", "'-O1'", "-O1 \\x", "--help", "-V", "..", "-O1\x80",
		"--link-info=x", "--link-info x", "-query-controls=x", "--apply-controls=x", "--fdevice-time-trace=x", "--compiler-stats-file=x", "--ext-desc-file=x",
		"--ext-desc-string=x", "--trap-into-debugger", "--list-version", "-version-ls",
		"--split-compile=65", "-split-compile 30000", "--split-compile", "--split-compile=x", "-O3 --split-compile=8 --split-compile=0x8000",
		`--ext-desc-file="/etc/passwd"`, `--ext-desc-file="/usr/local/cuda-13.0/bin/../../x"`, `-optf--ext-desc-file="/usr/local/cuda-13.0/bin/ptxExtDesc.txt"`,
		`--ext-desc-file="/usr/local/cuda-13.0/bin/ptxExtDesc.txt"x`,
	} {
		if _, err := Check(container(entry(words, nil)), all); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v", words, err)
		}
	}
	if _, err := Check(container(entry("", func(h []byte) { le.PutUint64(h[entrySize:], 0) })), all); err != nil {
		t.Errorf("none, as of CUDA 11: %v", err)
	}
	put := func(at int, v uint32) func([]byte) { return func(h []byte) { le.PutUint32(h[at:], v) } }
	for what, change := range map[string]func([]byte){
		"none":                           put(20, 0),
		"within the header's numbers":    put(20, 8),
		"that begin at the header's end": put(20, entrySize+9),
		"far beyond":                     put(20, 0x7ffffff0),
		"beyond any number":              put(20, 0xfffffffc),
		"whose words are outside":        put(entrySize, 4096),
		"whose words are numbers":        put(entrySize, 8),
		"whose words are at the end":     put(entrySize, entrySize+16),
		"with more words than there are": put(entrySize+4, 100),
		"with very many words":           put(entrySize+4, 0xffffffff),
		"without an end":                 func(h []byte) { copy(h[entrySize+8:], "-O1 -O1 ") },
		"and a name outside":             func(h []byte) { le.PutUint32(h[32:], 4096); le.PutUint32(h[36:], 4) },
		"and a name too long":            func(h []byte) { le.PutUint32(h[32:], 64); le.PutUint32(h[36:], 4096) },
		"and a name beyond any number":   func(h []byte) { le.PutUint32(h[32:], 0xfffffff0); le.PutUint32(h[36:], 0x20) },
	} {
		if _, err := Check(container(entry("", change)), all); !errors.Is(err, ErrMalformed) {
			t.Errorf("options %s: %v", what, err)
		}
	}
	numbers := build(KindELF, 100, 0, 0x1000011, cubin(), 0)
	if _, err := Check(container(append(withOptions(numbers[:entrySize:entrySize], "\x01\x00\x05"), numbers[entrySize:]...)), all); err != nil {
		t.Errorf("numbers of machine code: %v", err)
	}
	// Of machine code, and of what is not known here, none are wanted; what there is lies there,
	// too.
	for _, kind := range []Kind{KindELF, 9} {
		code := build(kind, 90, 0, 0x11, cubin(), 0)
		if _, err := Check(container(code), all); err != nil {
			t.Error(err)
		}
		le.PutUint32(code[20:], 0x7ffffff0)
		if _, err := Check(container(code), all); !errors.Is(err, ErrMalformed) {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

// TestTextHasAnEnd: a driver reads stored text up to a NUL, wherever that is; what it unpacks it
// ends itself.
func TestTextHasAnEnd(t *testing.T) {
	all := func(int) bool { return true }
	open := bytes.Repeat([]byte(" "), len(text)+8-len(text)%8)
	copy(open, text)
	if _, err := Check(container(build(KindPTX, 80, 82, 0x11, open, 0)), all); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := Check(container(build(KindPTX, 80, 82, 0x11|flagLZ4, packLZ4(t, open), len(open))), all); err != nil {
		t.Error(err)
	}
}

// TestPackedNothing: an entry that says that it is compressed, into nothing or in two ways, is
// none.
func TestPackedNothing(t *testing.T) {
	for what, e := range map[string][]byte{
		"nothing":  build(KindPTX, 80, 82, 0x11|flagLZ4, nil, 8),
		"two ways": build(KindPTX, 80, 82, 0x11|flagLZ4|flagZstd, packLZ4(t, text), len(text)),
	} {
		if _, err := Decode(container(e)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
