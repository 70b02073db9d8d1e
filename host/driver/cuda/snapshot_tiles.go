package cuda

import (
	"errors"
	"fmt"
	"io"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

/*
Memory that is made to lie behind tiles is copied as just that: as tiles of an array that is there
for the copy. That gives its bytes in an order that follows from the array, and puts them where they
were in the next process, by an array of the same shape; which arrays have it, or none, does not
matter. Addresses for it a driver may have or not: that such memory is for anything else is not
written anywhere.
*/

// tileWindow is an array, some of the memory behind it, and, of an export, what was read and not
// taken yet.
type tileWindow struct {
	m          *mover
	p          *physical
	dev        uint32
	array      bind.Array
	wide, high uint64 // bytes, and rows, of a tile
	across     uint64 // tiles beside each other
	done       uint64
	rest       []byte
}

// The array: as many tiles as a piece has bytes, if tiles are as documented.
const (
	windowWide   = 8192
	windowHigh   = 128
	windowPixel  = 4
	windowFormat = 0x03 // 32 bits
)

// throughTiles has an array for a piece of memory at a time while use runs.
func (m *mover) throughTiles(p *physical, use func(*tileWindow) error) (err error) {
	d := m.s.drv
	if p.size%tileBytes != 0 {
		return fmt.Errorf("%d bytes are no tiles", p.size)
	}
	w := &tileWindow{m: m, p: p, dev: p.dev}
	if err := m.contextOn(p.dev); err != nil {
		return err
	}
	var res cuda.Result
	w.array, res = d.Array3DCreate(&bind.Array3DDescriptor{Width: windowWide, Height: windowHigh, Format: windowFormat, NumChannels: 1, Flags: arraySparse})
	if res != cuda.Success {
		return fmt.Errorf("an array to copy tiles through: %w", res)
	}
	defer func() { err = errors.Join(err, errorOf(d.ArrayDestroy(w.array))) }()
	var t bind.ArraySparseProperties
	if res := d.ArrayGetSparseProperties(&t, w.array); res != cuda.Success {
		return fmt.Errorf("an array to copy tiles through: %w", res)
	}
	w.wide, w.high = uint64(t.Width)*windowPixel, uint64(t.Height)
	if w.wide*w.high != tileBytes || t.Depth != 1 || windowWide%t.Width != 0 || windowHigh%t.Height != 0 {
		return fmt.Errorf("tiles of %d x %d x %d are not known", t.Width, t.Height, t.Depth)
	}
	w.across = windowWide * windowPixel / w.wide
	return use(w)
}

// contextOn makes some context of a device current.
func (m *mover) contextOn(dev uint32) error {
	for id, c := range m.s.ctxs.m {
		if c.dev == dev && m.s.useContext(id) == cuda.Success {
			return nil
		}
	}
	return fmt.Errorf("no context is on device %d", dev)
}

// piece copies the next bytes of the memory, as many as buf has or are left, to buf or from it.
func (w *tileWindow) piece(buf bind.Host, up bool) error {
	d, n := w.m.s.drv, buf.Size()/tileBytes
	maps, unmaps := make([]bind.ArrayMapInfo, n), make([]bind.ArrayMapInfo, n)
	pixels := uint32(w.wide / windowPixel)
	for i := range n {
		x, y := uint32(i%w.across)*pixels, uint32(i/w.across*w.high)
		maps[i] = bind.TileMap(w.array, x, y, pixels, uint32(w.high), w.p.handle, w.done+i*tileBytes, w.dev)
		unmaps[i] = maps[i].Unmapped()
	}
	res := d.MemMapArrayAsync(maps, bind.StreamLegacy)
	for i := uint64(0); i < n && res == cuda.Success; i++ {
		part, _ := buf.Slice(i*tileBytes, tileBytes)
		dst, src := bind.HostOperand(part, bind.Placement{Pitch: w.wide, Height: w.high}), bind.ArrayOperand(w.array, bind.Placement{X: i % w.across * w.wide, Y: i / w.across * w.high})
		if up {
			dst, src = src, dst
		}
		var c bind.Memcpy3D
		if c, res = bind.Copy3D(dst, src, bind.Box{Width: w.wide, Height: w.high, Depth: 1}); res == cuda.Success {
			res = d.Memcpy3DAsync(&c, bind.StreamLegacy)
		}
	}
	if res == cuda.Success {
		res = d.MemMapArrayAsync(unmaps, bind.StreamLegacy)
	}
	w.done += n * tileBytes
	if err := w.m.wait(res); err != nil {
		return fmt.Errorf("copy tiles: %w", err)
	}
	return nil
}

// next is memory for the next piece.
func (w *tileWindow) next() (bind.Host, error) {
	all, err := w.m.room()
	if err != nil {
		return all, err
	}
	if all.Size() < tileBytes {
		return all, errors.New("less room than for a tile")
	}
	buf, _ := all.Slice(0, min(all.Size()/tileBytes*tileBytes, windowWide*windowHigh*windowPixel, w.p.size-w.done))
	return buf, nil
}

// Read implements io.Reader.
func (w *tileWindow) Read(p []byte) (int, error) {
	if len(w.rest) == 0 {
		if w.done == w.p.size {
			return 0, io.EOF
		}
		buf, err := w.next()
		if err == nil {
			err = w.piece(buf, false)
		}
		if err != nil {
			return 0, err
		}
		w.rest = buf.Bytes()
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// fill writes all of the memory.
func (w *tileWindow) fill(r io.Reader) error {
	for w.done < w.p.size {
		buf, err := w.next()
		if err == nil {
			_, err = io.ReadFull(r, buf.Bytes())
		}
		if err == nil {
			err = w.piece(buf, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
