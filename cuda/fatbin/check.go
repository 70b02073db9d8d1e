package fatbin

import (
	"bytes"
	"encoding/binary"
)

// Code is an image for a driver, which takes no length: every length and offset in it that says
// where its parts lie holds. Check makes it.
type Code struct {
	bytes  []byte
	format Format
	parts  []Part
}

// Part is the code of one entry, or of an image that is no container.
type Part struct {
	Format Format // PTX, ELF or Unknown
	SM     int
	code   []byte // of an ELF image, unpacked; nil: it is unpacked when somebody asks
	entry  Entry
}

// Code is the image, or text, which is unpacked now unless it is still there.
func (p *Part) Code() ([]byte, error) {
	if p.code != nil {
		return p.code, nil
	}
	return p.entry.Payload()
}

// Bytes is the image. Nobody may change it any more.
func (c *Code) Bytes() []byte { return c.bytes }

// Format is what the image is: Container, ELF, PTX, or Unknown for other text.
func (c *Code) Format() Format { return c.format }

// Parts are the code of the entries that were looked into, in their order.
func (c *Code) Parts() []Part { return c.parts }

// Check looks at an image. Compressed entries are unpacked if they are no text and wants says that
// a driver would take them for a GPU of their architecture. Wrappers, which hold addresses, and
// binary formats that are not known here are refused.
func Check(data []byte, wants func(sm int) bool) (*Code, error) {
	k := checker{wants: wants, left: maxUnpacked}
	return k.check(data)
}

// maxUnpacked bounds the bytes that are unpacked of one input, all entries together: zeros take a
// 30,000th of that, and the time is the host's. Libraries with code for all GPUs come to some GiB.
var maxUnpacked uint64 = 16 << 30

// keptBeside is how much unpacked code stays beside the newest.
const keptBeside = 8 << 20

// checker looks at one input: an image, or an object or archive with many in it.
type checker struct {
	wants func(sm int) bool
	left  uint64 // bytes that may yet be unpacked
}

func (k *checker) check(data []byte) (*Code, error) {
	c := &Code{bytes: data, format: Detect(data)}
	switch c.format {
	case Container:
		return c, c.container(k)
	case ELF:
		size, err := CubinSize(data)
		if err != nil {
			return nil, err
		}
		c.bytes = data[:size]
	case PTX:
	default:
		if !plainText(data) {
			return nil, malformed("%s", c.format)
		}
	}
	c.parts = []Part{{Format: c.format, code: data}}
	return c, nil
}

// plainText reports whether data cannot be taken for a binary format: it begins as PTX may, or as
// no format does.
func plainText(data []byte) bool {
	if len(data) == 0 {
		return true
	}
	return data[0] == '.' || data[0] == '/' || data[0] == ' ' || data[0] >= '\t' && data[0] <= '\r' || data[0] == 0
}

func (c *Code) container(k *checker) error {
	newest, beside := -1, 0
	size, err := Size(c.bytes)
	if err != nil {
		return err
	}
	if size > uint64(len(c.bytes)) {
		return malformed("container of %d bytes in %d", size, len(c.bytes))
	}
	c.bytes = c.bytes[:size]
	return eachEntry(c.bytes, func(e *Entry) error {
		if err := e.options(e.header); err != nil {
			return err
		}
		if e.Kind == KindPTX {
			head, err := e.head()
			if err == nil && Detect(head) == ELF {
				err = malformed("machine code in an entry of text")
			}
			if err == nil && !e.Compressed && bytes.IndexByte(e.raw, 0) < 0 {
				err = malformed("text without an end") // the driver reads on; unpacked, it ends it
			}
			c.parts = append(c.parts, Part{Format: PTX, SM: e.SM, entry: *e})
			return err
		}
		if e.Compressed && !k.wants(e.SM) {
			return nil
		}
		code, err := k.unpack(e)
		if err != nil || e.Kind != KindELF && Detect(code) != ELF {
			return err
		}
		if _, err := CubinSize(code); err != nil {
			return err
		}
		c.parts = append(c.parts, Part{Format: ELF, SM: e.SM, code: code, entry: *e})
		if !e.Compressed {
			return nil // it is the container's own bytes
		}
		// What the budget knows of is the largest entry: of many that would be unpacked one stays.
		last := len(c.parts) - 1
		older := last
		if newest < 0 || c.parts[newest].SM < e.SM {
			newest, older = last, newest
		}
		if older >= 0 {
			p := &c.parts[older]
			if beside+len(p.code) > keptBeside {
				p.code = nil
			} else {
				beside += len(p.code)
			}
		}
		return nil
	})
}

// unpack is an entry's content.
func (k *checker) unpack(e *Entry) ([]byte, error) {
	if e.Compressed {
		if e.Size > k.left {
			return nil, malformed("more than %d bytes of code", maxUnpacked)
		}
		k.left -= e.Size
	}
	return e.Payload()
}

// CubinSize returns the length of the ELF image at the start of data, which may be followed by
// anything, and an error if a table, a segment or a section of it lies beyond. The program headers
// may come after the section headers, so the end is the furthest of all.
func CubinSize(data []byte) (uint64, error) {
	if len(data) >= 20 {
		if m := binary.LittleEndian.Uint16(data[18:]); m != elfCUDA {
			return 0, malformed("ELF machine %d, not CUDA", m)
		}
	}
	return elfSize(data)
}

// Sizes of an ELF image's headers (64 bits), and what they say.
const (
	elfHeader  = 64
	elfSegment = 56
	elfSection = 64

	noBits      = 8      // SHT_NOBITS: a section without bytes in the file
	stringTable = 3      // SHT_STRTAB
	manyNames   = 0xffff // SHN_XINDEX: the first section header has the index
	manySegment = 0xffff // PN_XNUM: the first section header has the count
)

func elfSize(data []byte) (uint64, error) {
	le := binary.LittleEndian
	if len(data) < elfHeader || le.Uint32(data) != elfMagic || data[4] != 2 || data[5] != 1 {
		return 0, malformed("no 64-bit ELF image")
	}
	total, end := uint64(len(data)), uint64(elfHeader)
	within := func(what string, off, n uint64) error {
		if off > total || n > total-off {
			return malformed("ELF %s at %d, %d bytes, beyond %d", what, off, n, total)
		}
		end = max(end, off+n)
		return nil
	}
	segments, sections := le.Uint64(data[32:]), le.Uint64(data[40:])
	segmentSize, segmentCount := uint64(le.Uint16(data[54:])), uint64(le.Uint16(data[56:]))
	sectionSize, sectionCount, names := uint64(le.Uint16(data[58:])), uint64(le.Uint16(data[60:])), uint64(le.Uint16(data[62:]))
	if sections != 0 {
		if err := within("section header", sections, elfSection); err != nil {
			return 0, err
		}
		first := data[sections:]
		if sectionCount == 0 {
			sectionCount = le.Uint64(first[32:])
		}
		if names == manyNames {
			names = uint64(le.Uint32(first[40:]))
		}
		if segmentCount == manySegment {
			segmentCount = uint64(le.Uint32(first[44:]))
		}
	}
	if segmentCount > 0 && segmentSize < elfSegment || sectionCount > 0 && (sectionSize < elfSection || names >= sectionCount) ||
		segmentCount > total || sectionCount > total {
		return 0, malformed("ELF tables of %d and %d entries", segmentCount, sectionCount)
	}
	if err := within("segments", segments, segmentSize*segmentCount); err != nil {
		return 0, err
	}
	if err := within("sections", sections, sectionSize*sectionCount); err != nil {
		return 0, err
	}
	for i := range segmentCount {
		p := data[segments+i*segmentSize:]
		if err := within("segment", le.Uint64(p[8:]), le.Uint64(p[32:])); err != nil {
			return 0, err
		}
	}
	for i := range sectionCount {
		s := data[sections+i*sectionSize:]
		kind, off, n := le.Uint32(s[4:]), le.Uint64(s[24:]), le.Uint64(s[32:])
		if kind == noBits || i == 0 { // of the first, the size may be the count
			continue
		}
		if err := within("section", off, n); err != nil {
			return 0, err
		}
		if (kind == stringTable || i == names) && n > 0 && data[off+n-1] != 0 {
			return 0, malformed("ELF strings at %d without an end", off)
		}
	}
	return end, nil
}

// CheckObject looks at an input of a linker that is an object or an archive of them: every table,
// segment and section must be there, and so must those of the code within.
func CheckObject(data []byte) error {
	k := checker{wants: func(int) bool { return true }, left: maxUnpacked}
	if !bytes.HasPrefix(data, []byte(archiveMagic)) {
		return k.object(data)
	}
	return k.archive(data)
}

// object looks at an ELF image for any machine, and at the containers in its sections.
func (k *checker) object(data []byte) error {
	if Detect(data) == Container {
		_, err := k.check(data)
		return err
	}
	if _, err := elfSize(data); err != nil {
		return err
	}
	le := binary.LittleEndian
	sections, size, count := le.Uint64(data[40:]), uint64(le.Uint16(data[58:])), uint64(le.Uint16(data[60:]))
	if sections != 0 && count == 0 {
		count = le.Uint64(data[sections+32:]) // as elfSize has it
	}
	left := len(data) // bytes of containers: sections do not share them
	for i := range count {
		s := data[sections+i*size:]
		if le.Uint32(s[4:]) == noBits || i == 0 {
			continue
		}
		content := data[le.Uint64(s[24:]):][:le.Uint64(s[32:])]
		for Detect(content) == Container { // one behind the other, at multiples of 8
			c, err := k.check(content)
			if err != nil {
				return err
			}
			if left -= len(c.bytes); left < 0 {
				return malformed("an object's sections lie within each other")
			}
			content = content[min(len(content), (len(c.bytes)+7)&^7):]
		}
	}
	return nil
}
