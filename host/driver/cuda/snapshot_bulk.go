package cuda

import (
	"errors"
	"io"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// Large memory passes through two pieces of pinned memory: while one is read or written on this side, the GPU is at the other.
const (
	bulkPiece = 16 << 20
	bulkLeast = 4 * bulkPiece // below that what the pieces cost is not worth it
)

// pieces are what large memory passes through, for one mover until it closes: they take long to make.
func (m *mover) pieces() (two [2]bind.Host, err error) {
	if m.large.IsZero() {
		both, res := m.s.drv.AllocHost(2 * bulkPiece)
		if res != cuda.Success {
			return two, res
		}
		m.large = both
	}
	for i := range two {
		two[i], _ = m.large.Host().Slice(uint64(i)*bulkPiece, bulkPiece)
	}
	return two, nil
}

// WriteTo implements io.WriterTo: what w gets is no copy.
func (d *memReader) WriteTo(w io.Writer) (done int64, err error) {
	size := d.mem.Size()
	if size < bulkLeast || d.done > 0 {
		return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{d}, make([]byte, min(size, pieceSize)+1))
	}
	two, err := d.m.pieces()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.m.wait(cuda.Success)) }() // before the pieces pass on
	fetch := func(at uint64) (bind.Host, error) {
		n := min(size-at, bulkPiece)
		from, _ := d.mem.Slice(at, n)
		to, _ := two[at/bulkPiece%2].Slice(0, n)
		return to, errorOf(d.m.s.note(d.m.s.drv.MemcpyDtoHAsync(to, from, bind.StreamLegacy)))
	}
	next, err := fetch(0)
	for err == nil && d.done < size {
		if err = d.m.wait(cuda.Success); err != nil {
			break
		}
		now := next
		d.done += uint64(len(now.Bytes()))
		if d.done < size {
			if next, err = fetch(d.done); err != nil {
				break
			}
		}
		var n int
		n, err = w.Write(now.Bytes())
		done += int64(n)
	}
	return done, err
}

// fillBulk is fill for large memory.
func (m *mover) fillBulk(mem bind.Mem, r io.Reader) (err error) {
	two, err := m.pieces()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.wait(cuda.Success)) }()
	for done := uint64(0); done < mem.Size(); {
		n := min(mem.Size()-done, bulkPiece)
		to, _ := mem.Slice(done, n)
		from, _ := two[done/bulkPiece%2].Slice(0, n)
		if _, err := io.ReadFull(r, from.Bytes()); err != nil { // while the GPU is at the other piece
			return err
		}
		if err := m.wait(cuda.Success); err != nil {
			return err
		}
		if res := m.s.note(m.s.drv.MemcpyHtoDAsync(to, from, bind.StreamLegacy)); res != cuda.Success {
			return res
		}
		done += n
	}
	return nil
}
