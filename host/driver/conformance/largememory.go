package conformance

import (
	"bytes"
	"io"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/driver"
)

// testLargeMemory: what a session exports of a large allocation, read or written by the driver, is
// what another import makes of it.
func testLargeMemory(t *testing.T, g *Guest) {
	const size = 80<<20 + 12<<10
	if m, ok := g.Session.(driver.Movable); ok && m.Movable() != nil {
		t.Skip("the session does not move")
	}
	at, noise := g.alloc(size), random(3000)
	places := []uint64{0, 1<<20 - 777, 16<<20 - 1500, 64<<20 + 3, size - uint64(len(noise))}
	fill := func(value uint32) {
		a := &wire.MemsetArgs{Dst: at, Element: 4, Value: value, Width: size / 4, Height: 1, Stream: 1}
		g.ok(g.Session.Memset(g.call(wire.OpMemset), a), "Memset")
		g.ok(g.sync(), "CtxSynchronize")
	}
	fill(0x01020304)
	for _, p := range places {
		g.put(at+p, noise)
	}
	g.ok(g.sync(), "CtxSynchronize")
	var read, written bytes.Buffer
	for _, to := range []io.Writer{struct{ io.Writer }{&read}, &written} {
		plain := to != io.Writer(&written)
		if err := g.Session.ExportMemory(func(addr, n uint64, r io.Reader) error {
			if addr != at {
				return nil
			}
			if plain {
				r = struct{ io.Reader }{r}
			}
			_, err := io.Copy(to, r)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if read.Len() != size || !bytes.Equal(read.Bytes(), written.Bytes()) {
		t.Fatalf("%d bytes read, %d written, or not the same", read.Len(), written.Len())
	}
	fill(0)
	if err := g.Session.ImportMemory(at, size, &read); err != nil {
		t.Fatal(err)
	}
	for _, p := range places {
		if !bytes.Equal(g.get(at+p, len(noise)), noise) {
			t.Errorf("memory at %d is not what it was", p)
		}
	}
	if b := g.get(at+32<<20, 4); !bytes.Equal(b, []byte{4, 3, 2, 1}) {
		t.Errorf("between them lies %x", b)
	}
	if g.Session.ImportMemory(at, size, bytes.NewReader(written.Bytes()[:size-1])) == nil {
		t.Error("memory that ends early is taken for whole")
	}
}
