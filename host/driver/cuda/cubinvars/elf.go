package cubinvars

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// What is read of ELF (System V ABI, "Object Files") and of NVIDIA's additions: sections that begin
// with ".nv.merc" are a second form of the code for newer GPUs, with symbols and relocations of
// their own.

var le = binary.LittleEndian

const (
	headerSize  = 64
	machineCUDA = 190
	entrySize   = 64 // of the section table
	symbolSize  = 24

	kindSymbols   = 2
	kindRela      = 4
	kindNoBits    = 8
	kindRel       = 9
	typeObject    = 1
	otherManaged  = 4
	second        = ".nv.merc."
	secondSymbols = ".nv.merc.symtab"
)

// file is a cubin whose tables lie within its bytes.
type file struct {
	b        []byte
	sections []section
}

// section is an entry of the section table; [off, off+size) lies in the file unless it has no bits.
type section struct {
	name             string
	kind, link, info uint32
	off, size, align uint64
	entry            uint64 // bytes of one relocation
	addends          bool   // relocations have them
	header           uint64 // where its entry is
}

func (s *section) bytes(f *file) []byte {
	if s.kind == kindNoBits {
		return nil
	}
	return f.b[s.off : s.off+s.size]
}

func (s *section) symbols() bool { return s.kind == kindSymbols || s.name == secondSymbols }

func (s *section) relocates() bool { return s.entry != 0 }

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// parse reads the tables of a cubin. Bytes behind it do not matter.
func parse(b []byte) (*file, error) {
	if len(b) < headerSize || string(b[:4]) != "\x7fELF" || b[4] != 2 || b[5] != 1 || le.Uint16(b[18:]) != machineCUDA {
		return nil, bad("no 64-bit ELF file of CUDA")
	}
	table, each, n, names := le.Uint64(b[40:]), le.Uint16(b[58:]), int(le.Uint16(b[60:])), int(le.Uint16(b[62:]))
	total := uint64(len(b))
	if each != entrySize || table > total || uint64(n)*entrySize > total-table || names >= n {
		return nil, bad("section table of %d entries", n)
	}
	f := &file{b: b, sections: make([]section, n)}
	for i := range f.sections {
		at := table + uint64(i)*entrySize
		h := b[at:]
		s := section{kind: le.Uint32(h[4:]), off: le.Uint64(h[24:]), size: le.Uint64(h[32:]), link: le.Uint32(h[40:]),
			info: le.Uint32(h[44:]), align: le.Uint64(h[48:]), header: at}
		if s.off > total || s.size > total-s.off {
			s.kind = kindNoBits // kinds of NVIDIA's have none either
		}
		f.sections[i] = s
	}
	for i := range f.sections {
		s := &f.sections[i]
		s.name = text(f.sections[names].bytes(f), le.Uint32(b[s.header:]))
		switch merc := strings.HasPrefix(s.name, second); {
		case s.kind == kindRela || merc && strings.HasPrefix(s.name, second+"rela."):
			s.entry, s.addends = 24, true
		case s.kind == kindRel || merc && strings.HasPrefix(s.name, second+"rel."):
			s.entry = 16
		}
		if s.kind == kindNoBits {
			s.entry = 0
		}
	}
	return f, nil
}

// text is the NUL-terminated string at off of a string table.
func text(table []byte, off uint32) string {
	if uint64(off) >= uint64(len(table)) {
		return ""
	}
	s, _, ended := bytes.Cut(table[off:min(uint64(len(table)), uint64(off)+maxName+1)], []byte{0})
	if !ended && len(s) > maxName {
		return ""
	}
	return string(s)
}

// count is how many symbols a table has.
func (f *file) count(s *section) uint64 { return uint64(len(s.bytes(f))) / symbolSize }

// symbols yields the index of each symbol of a table.
func (f *file) symbols(s *section) int { return int(f.count(s)) }

type symbol struct {
	name        string
	managed     bool
	section     int
	value, size uint64
}

// symbol decodes the n-th symbol of a table; n is in range.
func (f *file) symbol(s *section, n int) symbol {
	e := s.bytes(f)[n*symbolSize:]
	y := symbol{managed: e[4]&15 == typeObject && e[5]&otherManaged != 0, section: int(le.Uint16(e[6:])),
		value: le.Uint64(e[8:]), size: le.Uint64(e[16:])}
	if y.section >= len(f.sections) {
		y.section = 0
	}
	if y.managed && uint64(s.link) < uint64(len(f.sections)) {
		y.name = text(f.sections[s.link].bytes(f), le.Uint32(e))
	}
	return y
}

type relocation struct {
	offset, addend uint64
	symbol, kind   uint32
}

// decodeRelocation reads 16 bytes, or 24 with an addend.
func decodeRelocation(e []byte, addends bool) relocation {
	r := relocation{offset: le.Uint64(e), kind: le.Uint32(e[8:]), symbol: le.Uint32(e[12:])}
	if addends {
		r.addend = le.Uint64(e[16:])
	}
	return r
}

// resize makes a section shorter where it lies.
func (f *file) resize(s *section, size uint64) {
	s.size = size
	le.PutUint64(f.b[s.header+32:], size)
}
