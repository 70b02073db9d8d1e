package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// object is an ELF image for some other machine with a section of each content. With extended
// numbering the first section header has their count.
func object(extended bool, contents ...[]byte) []byte {
	le := binary.LittleEndian
	b := make([]byte, elfHeader)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[18:], 62) // x86-64
	table := make([]byte, elfSection)
	for _, c := range contents {
		s := make([]byte, elfSection)
		le.PutUint32(s[4:], 1)
		le.PutUint64(s[24:], uint64(len(b)))
		le.PutUint64(s[32:], uint64(len(c)))
		b, table = append(b, c...), append(table, s...)
		b = append(b, make([]byte, -len(b)&7)...)
	}
	le.PutUint64(b[40:], uint64(len(b)))
	le.PutUint16(b[58:], elfSection)
	if n := uint64(len(table) / elfSection); extended {
		le.PutUint64(table[32:], n)
	} else {
		le.PutUint16(b[60:], uint16(n))
	}
	return append(b, table...)
}

// member is one of an archive; size is what its header says, which its content may not have.
func member(name string, content []byte, size int) []byte {
	b := fmt.Appendf(nil, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", name, 0, 0, 0, 0o644, size)
	if b = append(b, content...); len(content)%2 != 0 {
		b = append(b, '\n')
	}
	return b
}

// TestObjects: what a linker is given is there, in every member of an archive and in every section,
// and so is all of the code within.
func TestObjects(t *testing.T) {
	good := container(build(KindELF, 90, 0, 0x11, cubin(), 0))
	liar := bytes.Clone(cubin())
	binary.LittleEndian.PutUint64(liar[64+16+64+32:], 1<<20) // a section beyond the end
	bad := container(build(KindELF, 90, 0, 0x11, liar, 0))
	plain, odd := object(false, []byte("text")), append(object(false, []byte("text")), 0)
	archive := func(members ...[]byte) []byte { return slices.Concat([]byte("!<arch>\n"), slices.Concat(members...)) }
	of := func(name string, b []byte) []byte { return member(name, b, len(b)) }
	symtab := []byte("\x00\x00\x00\x02\x00\x00\x00\x08\x00\x00\x00\x48f\x00g\x00")
	symtab64 := []byte("\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x08f\x00")
	for what, c := range map[string]struct {
		b  []byte
		ok bool
	}{
		"an object":                            {plain, true},
		"with code":                            {object(false, []byte("text"), good), true},
		"with code, sections counted apart":    {object(true, []byte("text"), good), true},
		"with two pieces of code":              {object(false, append(bytes.Clone(good), good...)), true},
		"with code that lies":                  {object(false, []byte("text"), bad), false},
		"that lies, sections counted apart":    {object(true, []byte("text"), bad), false},
		"whose second piece of code lies":      {object(false, append(bytes.Clone(good), bad...)), false},
		"less its last byte":                   {plain[:len(plain)-1], false},
		"a container":                          {good, true},
		"a container that lies":                {bad, false},
		"no object":                            {[]byte("nothing"), false},
		"an archive":                           {archive(of("/", symtab), of("/SYM64/", symtab64), of("//", []byte("a_name_of_some_length.o/\nb.o/\n")), of("a.o/", plain), of("/25", object(false, good))), true},
		"an archive, behind an odd member":     {archive(of("a.o/", odd), of("b.o/", object(false, good))), true},
		"an archive of none":                   {archive(), true},
		"an archive whose last member lies":    {archive(of("a.o/", odd), of("b.o/", object(false, bad))), false},
		"an archive with text":                 {archive(of("a.txt/", []byte("text"))), false},
		"an archive with a long name's liar":   {archive(of("//", []byte("names.o/\n")), of("/0", object(false, bad))), false},
		"a liar that passes for a table":       {archive(of("/x", object(false, bad))), false},
		"a liar by a table's name and more":    {archive(of("/ x", object(false, bad))), false},
		"a liar among names":                   {archive(of("//x", object(false, bad))), false},
		"a name beyond the names":              {archive(of("//", []byte("a.o/\n")), of("/5", plain)), false},
		"a name ahead of the names":            {archive(of("/0", plain), of("//", []byte("a.o/\n"))), false},
		"names without an end":                 {archive(of("//", []byte("a.o"))), false},
		"more symbols than there are":          {archive(of("/", []byte("\x40\x00\x00\x02\x00\x00\x00\x08"))), false},
		"more symbols than names":              {archive(of("/", []byte("\x00\x00\x00\x01\x00\x00\x00\x08f"))), false},
		"a symbol beyond the end":              {archive(of("/", []byte("\x00\x00\x00\x01\x00\x00\xff\xfff\x00"))), false},
		"half a table of symbols":              {archive(of("/SYM64/", []byte("\x00\x00"))), false},
		"a length that may be octal":           {archive(bytes.Replace(of("a.o/", plain), fmt.Appendf(nil, "%-10d`", len(plain)), fmt.Appendf(nil, "%-10s`", fmt.Sprintf("0%d", len(plain))), 1)), false},
		"a member longer than what is left":    {archive(member("a.o/", plain, len(plain)+1)), false},
		"a member longer by its header":        {archive(member("a.o/", plain, len(plain)+60)), false},
		"a member of a negative length":        {archive(member("a.o/", plain, -1)), false},
		"a member that does not say it is one": {archive(bytes.Replace(of("a.o/", plain), []byte("`\n"), []byte("  "), 1)), false},
		"half a member's header":               {archive(of("a.o/", plain)[:59]), false},
	} {
		if err := CheckObject(c.b); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
