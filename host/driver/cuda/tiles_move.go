package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

/*
The table of tiles that goes with a session: how much memory lies behind tiles that the guest has
released, {u64 size, u32 device, u32 types, u32 flags} each, and then what decides for tiles, in the
order in which it was done: {u32 whose memory: the guest's, which has a number, or one of those, by
its place in the table} and a CUarrayMapInfo each.
*/
const (
	releasedEntry  = 8 + 4 + 4 + 4
	tileEntry      = 4 + arrayMapSize
	mostReleased   = maxObjects
	memoryOfGuest  = 0
	memoryReleased = 1
)

var errTiles = errors.New("the table of tiles makes no sense")

// tileTable is nothing if nothing is mapped.
func (s *session) tileTable() []byte {
	var list []*tileMap
	for _, t := range s.tiles {
		for m := range t.maps {
			list = append(list, m)
		}
	}
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b *tileMap) int { return int(int64(a.order - b.order)) })
	le := binary.LittleEndian
	table := le.AppendUint32(nil, uint32(len(s.released)))
	place := map[*physical]int{}
	for i, p := range s.released {
		place[p] = i
		table = le.AppendUint32(le.AppendUint32(le.AppendUint32(le.AppendUint64(table, p.size), p.dev), p.handles), p.flags)
	}
	for _, m := range list {
		rec, whose := m.arrayMap, uint32(memoryOfGuest)
		if i, ok := place[m.mem]; ok {
			whose = memoryReleased
			rec.setMem(uint64(i))
		}
		table = append(le.AppendUint32(table, whose), rec[:]...)
	}
	return table
}

// setTiles maps what was mapped, in a session that is rebuilt. Its arrays and the memory that the
// guest has are there.
func (s *session) setTiles(size uint64, r io.Reader) error {
	if size < 4 || size > 4+mostReleased*releasedEntry+mostTiles*tileEntry {
		return errTiles
	}
	b, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil || uint64(len(b)) < size {
		return errors.Join(errTiles, err)
	}
	if len(s.tiles)+len(s.released) > 0 {
		return fmt.Errorf("%w: it comes twice", errTiles)
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if b = b[4:]; n > mostReleased || n*releasedEntry > uint64(len(b)) || (uint64(len(b))-n*releasedEntry)%tileEntry != 0 {
		return errTiles
	}
	for ; n > 0; n-- {
		if err := s.createReleased(b[:releasedEntry]); err != nil {
			return err
		}
		b = b[releasedEntry:]
	}
	contexts := map[uint32]bool{}
	for ; len(b) > 0; b = b[tileEntry:] {
		m := arrayMap(b[4:tileEntry])
		ctx, err := s.mapAgain(binary.LittleEndian.Uint32(b), &m)
		if err != nil {
			return err
		}
		contexts[ctx] = true
	}
	for _, p := range s.released {
		if p.tiles == 0 {
			return fmt.Errorf("%w: memory that was released lies behind none", errTiles)
		}
	}
	for ctx := range contexts {
		res := s.useContext(ctx)
		if res == cuda.Success {
			res = s.note(s.drv.StreamSynchronize(bind.StreamLegacy))
		}
		if res != cuda.Success {
			return fmt.Errorf("map tiles: %w", res)
		}
	}
	return nil
}

// createReleased makes memory that the guest has released again.
func (s *session) createReleased(b []byte) error {
	le := binary.LittleEndian
	p := &physical{size: le.Uint64(b), dev: le.Uint32(b[8:]), handles: le.Uint32(b[12:]), flags: le.Uint32(b[16:])}
	res := s.charge(p.size)
	if res == cuda.Success {
		if p.handle, res = s.drv.MemCreate(p.size, allocationProp(p.dev, p.handles, p.flags), 0); s.note(res) != cuda.Success {
			s.refund(p.size)
		}
	}
	if res != cuda.Success {
		return fmt.Errorf("%d bytes behind tiles: %w", p.size, res)
	}
	s.created += p.size
	s.released = append(s.released, p)
	return nil
}

// mapAgain does an operation of the table, in the context of its array.
func (s *session) mapAgain(whose uint32, m *arrayMap) (ctx uint32, _ error) {
	find := func(id uint64) *physical { return s.mems.m[uint32(id)] }
	if whose == memoryReleased {
		find = func(i uint64) *physical {
			if i >= uint64(len(s.released)) {
				return nil
			}
			return s.released[i]
		}
	}
	list, ok := s.arrayMaps(m[:], find)
	key := m.of()
	if ctx = s.arrays.m[key.id].ctx; key.mipmap {
		ctx = s.mipmaps.m[key.id].ctx
	}
	if !ok || whose > memoryReleased {
		return 0, fmt.Errorf("%w: %v, or its memory, is not there", errTiles, key)
	}
	res := s.useContext(ctx)
	if res == cuda.Success {
		res = s.note(s.drv.MemMapArrayAsync(list, bind.StreamLegacy))
	}
	if res != cuda.Success {
		return 0, fmt.Errorf("map tiles of %v: %w", key, res)
	}
	s.tilesFollow(m[:], find)
	return ctx, nil
}
