package virtio_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"causeway/virtio"
)

// cut is b in segments, some of them empty, at guest addresses that are their offsets.
func cut(rnd *rand.Rand, b []byte) (segs []virtio.Segment) {
	for at := 0; at < len(b) || rnd.IntN(3) == 0; {
		n := rnd.IntN(len(b) - at + 1)
		segs = append(segs, virtio.Segment{GPA: uint64(at), Data: b[at : at+n]})
		at += n
	}
	return segs
}

// TestCopiesByChance holds what chains read and write at an offset to the same of one slice.
func TestCopiesByChance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		sent, answer := make([]byte, rnd.IntN(40)), make([]byte, rnd.IntN(40))
		for j := range sent {
			sent[j] = byte(rnd.Uint32())
		}
		want := bytes.Clone(answer)
		c := virtio.Chain{Readable: cut(rnd, sent), Writable: cut(rnd, answer)}

		p, off := make([]byte, rnd.IntN(50)), rnd.IntN(50)
		n := c.ReadAt(p, off)
		if rest := sent[min(off, len(sent)):]; n != min(len(p), len(rest)) || !bytes.Equal(p[:n], rest[:n]) {
			t.Fatalf("%d: read %d bytes %x at %d of %x", i, n, p, off, sent)
		}

		p, off = make([]byte, rnd.IntN(50)), rnd.IntN(50)
		for j := range p {
			p[j] = byte(1 + rnd.IntN(255))
		}
		if n, m := c.WriteAt(p, off), copy(want[min(off, len(want)):], p); n != m || !bytes.Equal(answer, want) {
			t.Fatalf("%d: wrote %d bytes at %d, which are now %x, not %x", i, n, off, answer, want)
		}

		off, size := rnd.IntN(50), rnd.IntN(50)
		var part []byte
		at := off
		for _, s := range virtio.Slice(nil, c.Readable, off, size) {
			if len(s.Data) > 0 && s.GPA != uint64(at) {
				t.Fatalf("%d: bytes from %d on are said to be at %d", i, at, s.GPA)
			}
			part, at = append(part, s.Data...), at+len(s.Data)
		}
		if want := sent[min(off, len(sent)):min(off+size, len(sent))]; !bytes.Equal(part, want) {
			t.Fatalf("%d: [%d, %d) of %x is %x", i, off, off+size, sent, part)
		}
	}
}
