package cuda

import (
	"bytes"
	"encoding/binary"
)

// mayPrint reports whether an image can call device printf: its code then names vprintf. What cannot be looked into
// (compressed containers) counts as printing.
func mayPrint(img []byte) bool {
	if len(img) >= 4 && binary.LittleEndian.Uint32(img) == fatbinMagic {
		return true
	}
	return bytes.Contains(img, []byte("vprintf"))
}
