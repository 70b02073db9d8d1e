package fatbin

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

const (
	archiveMagic = "!<arch>\n"
	memberHeader = 60
	memberMagic  = "`\n"
)

// Members of an archive that are no objects (System V and GNU format), by their names.
var (
	symbolTable   = paddedName("/")
	symbolTable64 = paddedName("/SYM64/")
	nameTable     = paddedName("//")
)

func paddedName(s string) [16]byte {
	name := [16]byte(bytes.Repeat([]byte(" "), 16))
	copy(name[:], s)
	return name
}

// archive looks at all members. Whoever reads an archive takes each for an object that has no other
// name than it, so only these are none.
func (k *checker) archive(data []byte) error {
	total, names := uint64(len(data)), uint64(0)
	for data = data[len(archiveMagic):]; len(data) > 0; {
		if len(data) < memberHeader || string(data[memberHeader-2:memberHeader]) != memberMagic {
			return malformed("no member of an archive")
		}
		size, ok := decimal(data[48:58])
		if !ok || size > uint64(len(data)-memberHeader) {
			return malformed("a member of an archive beyond its end")
		}
		name, content := [16]byte(data), data[memberHeader:][:size]
		switch {
		case name == symbolTable:
			ok = symbols(content, 4, total)
		case name == symbolTable64:
			ok = symbols(content, 8, total)
		case name == nameTable: // each name has an end
			names = size
			ok = size == 0 || content[size-1] == '\n' || content[size-1] == 0
		default:
			if name[0] == '/' && name[1] >= '0' && name[1] <= '9' { // a place in the names
				at, plain := decimal(name[1:])
				if !plain || at >= names {
					return malformed("a member of an archive without a name")
				}
			}
			if err := k.object(content); err != nil {
				return err
			}
		}
		if !ok {
			return malformed("a table of an archive that is not all there")
		}
		data = data[memberHeader+size:]
		if size%2 != 0 && len(data) > 0 {
			data = data[1:]
		}
	}
	return nil
}

// decimal is a number as archives have it: digits, which no reader takes for octal ones, then
// blanks.
func decimal(field []byte) (uint64, bool) {
	s := string(bytes.TrimRight(field, " "))
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && (s == "0" || s[0] != '0')
}

// symbols reports whether a table of symbols holds as many places as it says, all within the
// archive, and as many names: numbers have the most significant of so many bytes first.
func symbols(table []byte, width int, total uint64) bool {
	number := func(b []byte) uint64 {
		if width == 8 {
			return binary.BigEndian.Uint64(b)
		}
		return uint64(binary.BigEndian.Uint32(b))
	}
	if len(table) < width {
		return false
	}
	n, rest := number(table), table[width:]
	if n > uint64(len(rest)/width) {
		return false
	}
	for i := range n {
		if number(rest[int(i)*width:]) >= total {
			return false
		}
	}
	return uint64(bytes.Count(rest[int(n)*width:], []byte{0})) >= n
}
