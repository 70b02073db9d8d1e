package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Format is what an image is.
type Format uint8

// Formats that Detect tells apart.
const (
	Unknown   Format = iota
	Wrapper          // 24 bytes with a pointer to a container
	Container        // a fatbin
	ELF              // a cubin
	PTX              // text
)

var formatNames = [...]string{"unknown", "fatbin wrapper", "fatbin", "ELF", "PTX"}

func (f Format) String() string { return formatNames[f] }

const (
	wrapperMagic   = 0x466243b1
	containerMagic = 0xba55ed50
	elfMagic       = 0x464c457f
	elfCUDA        = 190 // e_machine
)

// Sizes of the headers in bytes.
const (
	WrapperSize   = 24
	ContainerSize = 16
	entrySize     = 64
)

// Limits on what Decode accepts.
const (
	MaxEntries = 4096
	MaxPayload = 1 << 30 // bytes of one entry after decompression
)

// ErrMalformed is wrapped by every error about bad bytes.
var ErrMalformed = errors.New("malformed fatbin")

// ErrCompression is wrapped when an entry uses a compression other than LZ4 and
// zstd.
var ErrCompression = errors.New("unsupported fatbin compression")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// Detect tells what an image is by its first bytes.
func Detect(data []byte) Format {
	if len(data) >= 4 {
		switch binary.LittleEndian.Uint32(data) {
		case wrapperMagic:
			return Wrapper
		case containerMagic:
			return Container
		case elfMagic:
			return ELF
		}
	}
	if looksLikePTX(data) {
		return PTX
	}
	return Unknown
}

// looksLikePTX accepts text whose first directive is .version, after blanks and
// comments.
func looksLikePTX(data []byte) bool {
	for len(data) > 0 {
		switch {
		case data[0] == ' ' || data[0] >= '\t' && data[0] <= '\r':
			data = data[1:]
		case bytes.HasPrefix(data, []byte("//")):
			i := bytes.IndexByte(data, '\n')
			if i < 0 {
				return false
			}
			data = data[i+1:]
		case bytes.HasPrefix(data, []byte("/*")):
			i := bytes.Index(data[2:], []byte("*/"))
			if i < 0 {
				return false
			}
			data = data[i+4:]
		default:
			return bytes.HasPrefix(data, []byte(".version"))
		}
	}
	return false
}

// WrapperHeader is the structure that programs register; its pointers are
// addresses in the program.
type WrapperHeader struct {
	Version uint32 // 1, or 2 for separately compiled programs
	Data    uint64 // address of the container
	// Version 1: file name; version 2: NULL-terminated array of containers linked into Data.
	Extra uint64
}

// DecodeWrapper decodes the first WrapperSize bytes.
func DecodeWrapper(data []byte) (WrapperHeader, error) {
	le := binary.LittleEndian
	if len(data) < WrapperSize || le.Uint32(data) != wrapperMagic {
		return WrapperHeader{}, malformed("no wrapper")
	}
	w := WrapperHeader{le.Uint32(data[4:]), le.Uint64(data[8:]), le.Uint64(data[16:])}
	if w.Version != 1 && w.Version != 2 {
		return w, malformed("wrapper version %d", w.Version)
	}
	return w, nil
}

// Size returns a container's length in bytes from its first ContainerSize
// bytes.
func Size(header []byte) (uint64, error) {
	le := binary.LittleEndian
	if len(header) < ContainerSize || le.Uint32(header) != containerMagic {
		return 0, malformed("no container")
	}
	if v := le.Uint16(header[4:]); v != 1 {
		return 0, malformed("container version %d", v)
	}
	hs, rest := uint64(le.Uint16(header[6:])), le.Uint64(header[8:])
	if hs < ContainerSize || rest > 1<<48 {
		return 0, malformed("container of %d + %d bytes", hs, rest)
	}
	return hs + rest, nil
}

// Kind is what an entry holds.
type Kind uint16

// Entry kinds.
const (
	KindPTX Kind = 1
	KindELF Kind = 2
)

// Entry is one image in a container.
type Entry struct {
	Kind       Kind
	SM         int  // 75, 90, ...
	PTXVersion int  // PTX: major*10 + minor of the ISA; else 0
	Compressed bool // LZ4 or zstd
	Debug      bool
	Size       uint64 // bytes after decompression; for stored entries with padding

	flags  uint64
	raw    []byte
	header []byte
}

const (
	flagDebug = 0x2
	flagOld   = 0x1000
	flagLZ4   = 0x2000
	flagZstd  = 0x8000
)

// Decode lists the entries of a container. Entries of unknown kind are left
// out. Bytes after the container are ignored.
func Decode(data []byte) ([]Entry, error) {
	size, err := Size(data)
	if err != nil {
		return nil, err
	}
	if size > uint64(len(data)) {
		return nil, malformed("container of %d bytes in %d", size, len(data))
	}
	var list []Entry
	err = eachEntry(data[:size], func(e *Entry) error {
		if e.Kind == KindPTX || e.Kind == KindELF {
			list = append(list, *e)
		}
		return nil
	})
	return list, err
}

// eachEntry goes through a whole container, entries of unknown kind too.
func eachEntry(data []byte, visit func(*Entry) error) error {
	head := int(binary.LittleEndian.Uint16(data[6:]))
	if head > len(data) {
		return malformed("header of %d bytes in %d", head, len(data))
	}
	data = data[head:]
	for n := 0; len(data) > 0; n++ {
		if n == MaxEntries {
			return malformed("more than %d entries", MaxEntries)
		}
		e, used, err := decodeEntry(data)
		if err == nil {
			err = visit(&e)
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", n, err)
		}
		data = data[used:]
	}
	return nil
}

// decodeEntry decodes the entry at the start of data and returns its length.
func decodeEntry(data []byte) (Entry, uint64, error) {
	le := binary.LittleEndian
	if len(data) < entrySize {
		return Entry{}, 0, malformed("%d bytes left", len(data))
	}
	header, payload := uint64(le.Uint32(data[4:])), le.Uint64(data[8:])
	total := uint64(len(data))
	if header < entrySize || header > total || payload > total-header {
		return Entry{}, 0, malformed("header of %d and payload of %d bytes in %d", header, payload, total)
	}
	e := Entry{Kind: Kind(le.Uint16(data)), SM: int(le.Uint32(data[28:])), flags: le.Uint64(data[40:])}
	if e.SM > 1000 {
		return Entry{}, 0, malformed("architecture %d", e.SM)
	}
	if e.Kind == KindPTX {
		v := le.Uint32(data[24:])
		e.PTXVersion = int(v>>16)*10 + int(v&0xffff)
	}
	e.Debug = e.flags&flagDebug != 0
	e.header, e.raw, e.Size = data[:header], data[header:header+payload], payload
	packed := uint64(le.Uint32(data[16:]))
	switch e.flags & (flagLZ4 | flagZstd | flagOld) {
	case 0:
		return e, header + payload, nil
	case flagLZ4, flagZstd, flagOld:
	default:
		return Entry{}, 0, malformed("compressed in two ways: flags %#x", e.flags)
	}
	if packed == 0 || packed > payload { // of none a driver makes something nevertheless
		return Entry{}, 0, malformed("%d compressed bytes in a payload of %d", packed, payload)
	}
	e.Compressed, e.raw, e.Size = true, e.raw[:packed], le.Uint64(data[56:])
	return e, header + payload, nil
}
