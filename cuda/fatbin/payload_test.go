package fatbin

import (
	"bytes"
	"errors"
	"testing"
)

// TestPayloadHasItsLength: what unpacks to more or less than its header says is refused, by each
// way to pack, and nothing is made for it that the packed bytes cannot hold.
func TestPayloadHasItsLength(t *testing.T) {
	for name, c := range map[string]struct {
		flags uint64
		pack  func(testing.TB, []byte) []byte
	}{"LZ4": {flagLZ4, packLZ4}, "zstd": {flagZstd, packZstd}} {
		t.Run(name, func(t *testing.T) {
			packed := c.pack(t, text)
			for size, ok := range map[int]bool{
				len(text): true, len(text) - 1: false, len(text) + 1: false, len(text) + 1000: false, 1: false, 0: false,
				len(packed)*255 + 65: false, 1 << 40: false,
			} {
				list, err := Decode(container(build(KindELF, 90, 0, 0x11|c.flags, packed, size)))
				if err != nil {
					if ok {
						t.Errorf("%d of %d bytes: %v", size, len(text), err)
					}
					continue
				}
				p, err := list[0].Payload()
				switch {
				case ok && (err != nil || !bytes.Equal(p, text)):
					t.Errorf("%d of %d bytes: %v", size, len(text), err)
				case !ok && !errors.Is(err, ErrMalformed):
					t.Errorf("%d of %d bytes unpack: %v", size, len(text), err)
				}
			}
			for cut := 1; cut < len(packed); cut++ { // an entry of no packed bytes is not packed
				list, err := Decode(container(build(KindELF, 90, 0, 0x11|c.flags, packed[:cut], len(text))))
				if err == nil {
					_, err = list[0].Payload()
				}
				if !errors.Is(err, ErrMalformed) {
					t.Errorf("%d of %d packed bytes: %v", cut, len(packed), err)
				}
			}
		})
	}
}

// TestPTXEndsAtItsZero: text ends before its padding; machine code has none.
func TestPTXEndsAtItsZero(t *testing.T) {
	for kind, want := range map[Kind]int{KindPTX: len(text), KindELF: len(text) + 5} {
		list, err := Decode(container(build(kind, 90, 80, 0x11|flagLZ4, packLZ4(t, append(bytes.Clone(text), make([]byte, 5)...)), len(text)+5)))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := list[0].Payload(); err != nil || len(p) != want {
			t.Errorf("kind %d: %d bytes, want %d: %v", kind, len(p), want, err)
		}
	}
}
