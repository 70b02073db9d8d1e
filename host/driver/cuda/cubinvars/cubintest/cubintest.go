// Package cubintest makes cubins for tests, section by section. What it makes has what tools read
// of a cubin, and no code that a GPU could run.
package cubintest

import "encoding/binary"

var le = binary.LittleEndian

// Kinds of sections.
const (
	Bits    = 1
	Symbols = 2
	Strings = 3
	Rela    = 4
	NoBits  = 8
	Rel     = 9
)

// Kinds of symbols, and of relocation.
const (
	Object      = 1
	WholeOfIt   = 3 // a section
	Whole       = 2
	SymbolSize  = 24
	headerSize  = 64
	entrySize   = 64
	machineCUDA = 190
)

// Part is a section.
type Part struct {
	Name       string
	Kind       uint32
	Link, Info uint32
	Data       []byte
	Size       uint64 // without bits
	Align      uint64
}

// Words are numbers of 64 bits.
func Words(list ...uint64) []byte {
	var b []byte
	for _, w := range list {
		b = le.AppendUint64(b, w)
	}
	return b
}

// Build lays sections out behind a header; section 0 is empty and the last one holds their names.
func Build(parts []Part) []byte {
	parts = append(append([]Part{{}}, parts...), Part{Name: ".shstrtab", Kind: Strings})
	names := []byte{0}
	at := make([]uint32, len(parts))
	for i, p := range parts {
		at[i] = uint32(len(names))
		names = append(append(names, p.Name...), 0)
	}
	parts[len(parts)-1].Data = names
	b := make([]byte, headerSize)
	copy(b, "\x7fELF\x02\x01\x01\x41")
	le.PutUint16(b[18:], machineCUDA)
	var table []byte
	for i, p := range parts {
		size := uint64(len(p.Data))
		if p.Kind == NoBits {
			size = p.Size
		}
		e := make([]byte, entrySize)
		le.PutUint32(e, at[i])
		le.PutUint32(e[4:], p.Kind)
		le.PutUint64(e[24:], uint64(len(b)))
		le.PutUint64(e[32:], size)
		le.PutUint32(e[40:], p.Link)
		le.PutUint32(e[44:], p.Info)
		le.PutUint64(e[48:], p.Align)
		table = append(table, e...)
		b = append(b, p.Data...)
	}
	le.PutUint64(b[40:], uint64(len(b)))
	le.PutUint16(b[58:], entrySize)
	le.PutUint16(b[60:], uint16(len(parts)))
	le.PutUint16(b[62:], uint16(len(parts)-1))
	return append(b, table...)
}

// Symbol is an entry of a table of symbols.
func Symbol(name uint32, kind, other byte, section uint16, value, size uint64) []byte {
	e := le.AppendUint32(nil, name)
	e = append(e, kind, other)
	e = le.AppendUint16(e, section)
	return append(e, Words(value, size)...)
}

// Meant is the second word of a relocation.
func Meant(symbol, kind uint64) uint64 { return symbol<<32 | kind }

// Variables is a cubin with variables x of 8 and y of 16 bytes in global memory, and a constant c
// of 4.
func Variables() []byte {
	table := append(make([]byte, SymbolSize), Symbol(1, Object, 0, 3, 0, 8)...)
	table = append(append(table, Symbol(3, Object, 0, 3, 16, 16)...), Symbol(5, Object, 0, 4, 0, 4)...)
	return Build([]Part{
		{Name: ".strtab", Kind: Strings, Data: []byte("\x00x\x00y\x00c\x00")},
		{Name: ".symtab", Kind: Symbols, Link: 1, Data: table},
		{Name: ".nv.global", Kind: NoBits, Size: 32, Align: 16},
		{Name: ".nv.constant3", Kind: Bits, Data: make([]byte, 4), Align: 4},
	})
}
