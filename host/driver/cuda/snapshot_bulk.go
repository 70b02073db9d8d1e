package cuda

import (
	"errors"
	"io"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// Large memory passes through two pieces of pinned memory: while one is read or written on this
// side, the GPU is at the other. Threads share a piece and wait for each other at its end, which
// with 16 of them costs a sixth of the time in small pieces; large ones take longer to make.
const (
	bulkPiece = 16 << 20
	largest   = 4 * bulkPiece // of a piece, for
	ofLargest = 16 * largest  // so much memory
	bulkLeast = 4 * bulkPiece // below that what the pieces cost is not worth it
)

// pieces are what so much memory passes through, for one mover until it closes: they take long to
// make.
func (m *mover) pieces(size uint64) (two [2]bind.Host, piece uint64, err error) {
	piece = bulkPiece
	if size >= ofLargest {
		piece = largest
	}
	if has := m.large.Host().Size() / 2; has >= piece {
		piece = has
	} else {
		m.endPieces()
		both, res := m.s.drv.AllocHost(2 * piece)
		if res != cuda.Success {
			return two, 0, res
		}
		m.large = both
	}
	for i := range two {
		two[i], _ = m.large.Host().Slice(uint64(i)*piece, piece)
	}
	return two, piece, nil
}

func (m *mover) endPieces() {
	if !m.large.IsZero() {
		m.s.note(m.s.drv.FreeHost(m.large))
		m.large = bind.Registered{}
	}
}

// WriteTo implements io.WriterTo: what w gets is no copy.
func (d *memReader) WriteTo(w io.Writer) (done int64, err error) {
	size := d.mem.Size()
	if size < bulkLeast || d.done > 0 {
		return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{d}, make([]byte, min(size, pieceSize)+1))
	}
	two, piece, err := d.m.pieces(size)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.m.wait(cuda.Success)) }() // before the pieces pass on
	fetch := func(at uint64) (bind.Host, error) {
		n := min(size-at, piece)
		from, _ := d.mem.Slice(at, n)
		to, _ := two[at/piece%2].Slice(0, n)
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
	two, piece, err := m.pieces(mem.Size())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.wait(cuda.Success)) }()
	for done := uint64(0); done < mem.Size(); {
		n := min(mem.Size()-done, piece)
		to, _ := mem.Slice(done, n)
		from, _ := two[done/piece%2].Slice(0, n)
		if _, err := io.ReadFull(r, from.Bytes()); err != nil {
			// While the GPU is at the other piece.
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
