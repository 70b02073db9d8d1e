package fatbin

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// leastWindow is the memory that a zstd decoder may use even for small entries: a frame may ask for
// a window larger than its content (RFC 8878 recommends to support 8 MiB).
const leastWindow = 8 << 20

// maxRatio is the most that LZ4 can expand a byte.
const maxRatio = 255

// Payload returns the entry's content: an ELF image, or PTX text without its
// trailing zeros. A stored payload is a slice of the container.
func (e *Entry) Payload() ([]byte, error) {
	out, err := e.decompress()
	if err != nil {
		return nil, err
	}
	if e.Kind == KindPTX {
		if i := bytes.IndexByte(out, 0); i >= 0 {
			out = out[:i]
		}
	}
	return out, nil
}

func (e *Entry) decompress() ([]byte, error) {
	if !e.Compressed {
		return e.raw, nil
	}
	if e.Size > MaxPayload {
		return nil, malformed("entry of %d bytes, more than %d", e.Size, MaxPayload)
	}
	switch {
	case e.flags&flagLZ4 != 0:
		if e.Size > uint64(len(e.raw))*maxRatio+64 {
			return nil, malformed("%d bytes cannot hold %d", len(e.raw), e.Size)
		}
		out := make([]byte, e.Size)
		n, err := lz4.UncompressBlock(e.raw, out)
		if err != nil {
			return nil, fmt.Errorf("%w: LZ4: %w", ErrMalformed, err)
		}
		if uint64(n) != e.Size {
			return nil, malformed("LZ4 gave %d of %d bytes", n, e.Size)
		}
		return out, nil
	case e.flags&flagZstd != 0:
		return e.zstd()
	}
	return nil, fmt.Errorf("%w: flags %#x", ErrCompression, e.flags)
}

// headSize is as much as tells an ELF image from text.
const headSize = 4

// head is the beginning of the entry's content, without unpacking the rest. Nothing, if it is
// packed in a way that is not known here.
func (e *Entry) head() ([]byte, error) {
	if e.Compressed && e.Size > MaxPayload {
		return nil, malformed("entry of %d bytes, more than %d", e.Size, MaxPayload)
	}
	switch {
	case !e.Compressed:
		return e.raw[:min(len(e.raw), headSize)], nil
	case e.flags&flagLZ4 != 0:
		// LZ4 block format: a token, whose upper half counts literals (15: more bytes count on),
		// then they. Four different bytes, as ELF's are, can only be literals of the first
		// sequence.
		if len(e.raw) < 1 || e.raw[0]>>4 < headSize {
			return nil, nil
		}
		b := e.raw[1:]
		if e.raw[0]>>4 == 15 {
			b = bytes.TrimLeft(b, "\xff")
			b = b[min(len(b), 1):]
		}
		return b[:min(len(b), headSize)], nil
	case e.flags&flagZstd != 0:
		d, err := zstd.NewReader(bytes.NewReader(e.raw), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(max(e.Size, leastWindow)))
		if err != nil {
			return nil, fmt.Errorf("%w: zstd: %w", ErrMalformed, err)
		}
		defer d.Close()
		b := make([]byte, headSize)
		n, err := io.ReadFull(d, b)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: zstd: %w", ErrMalformed, err)
		}
		return b[:n], nil
	}
	return nil, nil
}

func (e *Entry) zstd() ([]byte, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(max(e.Size, leastWindow)))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	defer d.Close()
	out, err := d.DecodeAll(e.raw, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: zstd: %w", ErrMalformed, err)
	}
	if uint64(len(out)) != e.Size {
		return nil, malformed("zstd gave %d of %d bytes", len(out), e.Size)
	}
	return out, nil
}

// Unpacked is how many bytes whoever loads an image gets out of it, by what it says of itself: the
// largest entry of a container, of each where several follow one another, or the image as it is.
// Entries of other kinds than kind, unless that is 0, are nothing to whoever loads it. What says
// more than MaxPayload is refused when it is unpacked, and counts for that.
func Unpacked(image []byte, kind Kind) uint64 {
	if Detect(image) != Container {
		return uint64(len(image))
	}
	total := uint64(0)
	for Detect(image) == Container {
		list, err := Decode(image)
		if err != nil {
			break // nobody unpacks it
		}
		most := uint64(0)
		for i := range list {
			if kind == 0 || list[i].Kind == kind {
				most = max(most, min(list[i].Size, MaxPayload))
			}
		}
		total += most
		size, _ := Size(image) // Decode has checked it
		image = image[size:]
	}
	return total
}

// BestPTX returns the PTX entry for a device of the given architecture: the
// highest that is not above it.
func BestPTX(list []Entry, sm int) (*Entry, bool) {
	var best *Entry
	for i := range list {
		e := &list[i]
		if e.Kind == KindPTX && e.SM <= sm && (best == nil || e.SM > best.SM) {
			best = e
		}
	}
	return best, best != nil
}
