package cuda

import (
	"fmt"
	"io"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// pixelBytes are the bytes of an element of an array by its format and channels; 0: one made of
// planes or blocks.
func pixelBytes(format, channels uint32) uint64 {
	switch format {
	case 0x01, 0x08: // 8 bits
		return uint64(channels)
	case 0x02, 0x09, 0x10: // 16 bits, half
		return 2 * uint64(channels)
	case 0x03, 0x0a, 0x20: // 32 bits, float
		return 4 * uint64(channels)
	}
	return 0
}

// plainArray is an array, or a level of one, as a box of bytes.
func (s *session) plainArray(h bind.Array) (bind.Box, error) {
	var d bind.Array3DDescriptor
	if res := s.drv.Array3DGetDescriptor(&d, h); res != cuda.Success {
		return bind.Box{}, res
	}
	pixel := pixelBytes(d.Format, d.NumChannels)
	if pixel == 0 || d.Flags&arrayUnbacked != 0 {
		return bind.Box{}, immovable("an array of format %#x and flags %#x is not copied", d.Format, d.Flags)
	}
	return bind.Box{Width: d.Width * pixel, Height: max(d.Height, 1), Depth: max(d.Depth, 1)}, nil
}

// slices copies an array slice by slice, of as many as fit the buffer, through host memory that use
// reads or writes.
func (m *mover) slices(h bind.Array, e bind.Box, up bool, use func(b []byte) error) error {
	rows := max(pieceSize/e.Width, 1)
	if e.Width > pieceSize {
		return immovable("an array has rows of %d bytes", e.Width)
	}
	all, err := m.room()
	if err != nil {
		return err
	}
	for z := range e.Depth {
		for y := uint64(0); y < e.Height; y += rows {
			part := bind.Box{Width: e.Width, Height: min(rows, e.Height-y), Depth: 1}
			buf, _ := all.Slice(0, part.Width*part.Height)
			host, array := bind.HostOperand(buf, bind.Placement{Pitch: part.Width, Height: part.Height}), bind.ArrayOperand(h, bind.Placement{Y: y, Z: z})
			if up {
				if err := use(buf.Bytes()); err != nil {
					return err
				}
				host, array = array, host
			}
			c, res := bind.Copy3D(host, array, part)
			if res == cuda.Success {
				res = m.s.drv.Memcpy3DAsync(&c, bind.StreamLegacy)
			}
			if err := m.wait(res); err != nil {
				return err
			}
			if !up {
				if err := use(buf.Bytes()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// eachLevel calls f for every array that has memory of its own: those that are no part of another,
// and the levels of mipmapped arrays. What lies behind tiles is other memory.
func (m *mover) eachLevel(f func(name uint64, h bind.Array) error) error {
	s := m.s
	for id, a := range s.arrays.m {
		if a.owner != 0 || a.flags&arrayUnbacked != 0 {
			continue
		}
		if res := s.useContext(a.ctx); res != cuda.Success {
			return fmt.Errorf("array %d: %w", id, res)
		}
		if err := f(ofArray|uint64(id)<<levelBits, a.handle); err != nil {
			return fmt.Errorf("array %d: %w", id, err)
		}
	}
	for id, x := range s.mipmaps.m {
		if x.flags&arrayUnbacked != 0 {
			continue
		}
		if res := s.useContext(x.ctx); res != cuda.Success {
			return fmt.Errorf("mipmapped array %d: %w", id, res)
		}
		for level := range uint64(maxMipmapLevels) {
			h, res := s.drv.MipmappedArrayGetLevel(x.handle, uint32(level))
			if res != cuda.Success {
				break // there are no more
			}
			if err := f(ofArray|uint64(id)<<levelBits|level, h); err != nil {
				return fmt.Errorf("level %d of mipmapped array %d: %w", level, id, err)
			}
		}
	}
	return nil
}

func (m *mover) exportArrays(fn func(addr, size uint64, r io.Reader) error) error {
	return m.eachLevel(func(name uint64, h bind.Array) error {
		e, err := m.s.plainArray(h)
		if err != nil {
			return err
		}
		r, w := io.Pipe()
		sent := make(chan error, 1)
		go func() {
			err := fn(name, e.Width*e.Height*e.Depth, r)
			_ = r.CloseWithError(err) // the copies end
			sent <- err
		}()
		err = m.slices(h, e, false, func(b []byte) error { _, err := w.Write(b); return err })
		_ = w.CloseWithError(err)
		if failed := <-sent; failed != nil {
			return failed
		}
		return err
	})
}

func (m *mover) importArray(name, size uint64, r io.Reader) error {
	found := false
	err := m.eachLevel(func(n uint64, h bind.Array) error {
		if n != name {
			return nil
		}
		found = true
		e, err := m.s.plainArray(h)
		if err != nil {
			return err
		}
		if e.Width*e.Height*e.Depth != size {
			return fmt.Errorf("it has %d bytes, and %d come", e.Width*e.Height*e.Depth, size)
		}
		return m.slices(h, e, true, func(b []byte) error { _, err := io.ReadFull(r, b); return err })
	})
	if err == nil && !found {
		err = fmt.Errorf("import: no array %d", name&numberMask>>levelBits)
	}
	return err
}
