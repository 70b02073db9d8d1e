package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

/*
What lies behind the tiles of sparse arrays a driver does not tell. A session that may move follows
it: of everything that was mapped and unmapped it keeps, in order, what decides for at least one
tile still. Done again, that leaves the same. So what is kept is never more than there are tiles,
however often they change; and memory that the guest has released, of which tiles are left, lasts as
long as those, as on a bare driver, and counts as long.
*/

// arrayMap is a CUarrayMapInfo as guests send it, with numbers of objects in place of handles.
type arrayMap [arrayMapSize]byte

const (
	arrayMapSize = 96
	ofMipmaps    = 1        // type: of a mipmapped array
	inTail       = 1        // subresource: of the small levels, which have no tiles of their own
	mapsMemory   = 1        // operation
	tileBytes    = 64 << 10 // of memory behind a tile
	mostTiles    = 1 << 18  // that a session's arrays may have mapped for it to move
	// mostNamed is how many tiles all operations that count may name together, over one another,
	// and those of one request: a request takes no more steps than a few times that, whatever the
	// guest has asked for before.
	mostNamed = 4 * mostTiles
)

func (m *arrayMap) word(at int) uint32 { return binary.LittleEndian.Uint32(m[at:]) }
func (m *arrayMap) long(at int) uint64 { return binary.LittleEndian.Uint64(m[at:]) }

func (m *arrayMap) of() shapedKey { return shapedKey{m.word(0) == ofMipmaps, m.word(8)} }
func (m *arrayMap) maps() bool    { return m.word(56) == mapsMemory }
func (m *arrayMap) mem() uint64   { return m.long(64) }

// setMem names other memory.
func (m *arrayMap) setMem(id uint64) { binary.LittleEndian.PutUint64(m[64:], id) }

// shapedKey names an array or a mipmapped array.
type shapedKey struct {
	mipmap bool
	id     uint32
}

// tileCell is a tile, or as much of a tail.
type tileCell struct {
	tail                  bool
	level, layer, x, y, z uint32
}

// tiles are an array's.
type tiles struct {
	wide, high, deep uint32 // elements of a tile
	whole            bool   // memory comes for all of the array at once
	oneTail          bool   // of all layers
	cells            map[tileCell]tile
	maps             map[*tileMap]struct{}
	// They are followed no more: what is released of their memory is the driver's, and charged to
	// nobody.
	lost bool
}

// tile is what decides for it, and how many that map memory there count, if only for other tiles.
type tile struct {
	last *tileMap
	over int
}

// tileMap is an operation that decides for some tiles.
type tileMap struct {
	arrayMap
	order uint64
	mem   *physical // nil: it unmaps
	names uint64    // tiles
	last  int       // of them for which it decides
}

// tilesOf are those of an array, as from now on: the driver knows how large they are.
func (s *session) tilesOf(key shapedKey) *tiles {
	if t := s.tiles[key]; t != nil {
		return t
	}
	var p bind.ArraySparseProperties
	t, flags, res := &tiles{cells: map[tileCell]tile{}, maps: map[*tileMap]struct{}{}}, uint32(0), cuda.ErrorInvalidHandle
	if x, ok := s.mipmaps.get(key.id); ok && key.mipmap {
		flags, res = x.flags, s.drv.MipmappedArrayGetSparseProperties(&p, x.handle)
	} else if x, ok := s.arrays.get(key.id); ok && !key.mipmap {
		flags, res = x.flags, s.drv.ArrayGetSparseProperties(&p, x.handle)
		t.lost = x.owner != 0 // its tiles are those of what it is a part of, too
	}
	t.whole = flags&arraySparse == 0
	t.wide, t.high, t.deep, t.oneTail = p.Width, p.Height, p.Depth, p.Flags&1 != 0
	if !t.whole && (res != cuda.Success || t.wide == 0 || t.high == 0 || t.deep == 0) {
		t.lost = true
	}
	if s.tiles == nil {
		s.tiles = map[shapedKey]*tiles{}
	}
	s.tiles[key] = t
	return t
}

// tail is where an operation on one begins, and how many pieces it names.
func (m *arrayMap) tail() (from, n uint64) {
	from, n = m.long(32)/tileBytes, m.long(40)/tileBytes
	if m.long(40)%tileBytes != 0 {
		n++
	}
	return from, n
}

// box is where an operation on tiles begins and ends.
func (t *tiles) box(m *arrayMap) (from, to [3]uint64) {
	for i, size := range [3]uint64{uint64(t.wide), uint64(t.high), uint64(t.deep)} {
		begin, extent := uint64(m.word(32+4*i)), uint64(m.word(44+4*i))
		from[i], to[i] = begin/size, (begin+extent+size-1)/size
	}
	return from, to
}

// names is how many tiles an operation names; false: more than are followed.
func (t *tiles) names(m *arrayMap) (count uint64, followed bool) {
	switch {
	case t.whole:
		return 1, true
	case m.word(16) == inTail:
		from, n := m.tail()
		return n, n <= mostTiles && from <= 1<<31
	}
	from, to := t.box(m)
	count = 1
	for i := range from {
		if count *= to[i] - from[i]; count > mostTiles { // each factor has 32 bits
			return count, false
		}
	}
	return count, true
}

// each calls f for the tiles of an operation that is followed.
func (t *tiles) each(m *arrayMap, f func(tileCell)) {
	if t.whole {
		f(tileCell{})
		return
	}
	if m.word(16) == inTail {
		c := tileCell{tail: true, layer: m.word(24)}
		if t.oneTail {
			c.layer = 0
		}
		from, n := m.tail()
		for i := range n {
			c.x = uint32(from + i)
			f(c)
		}
		return
	}
	from, to := t.box(m)
	if from[0] == to[0] || from[1] == to[1] {
		// Of nothing in one direction, and perhaps of very much in the others.
		return
	}
	c := tileCell{level: m.word(24), layer: m.word(28)}
	for z := from[2]; z < to[2]; z++ {
		for y := from[1]; y < to[1]; y++ {
			for x := from[0]; x < to[0]; x++ {
				c.x, c.y, c.z = uint32(x), uint32(y), uint32(z)
				f(c)
			}
		}
	}
}

// tilesChanged follows an operation that the driver has taken; mem is what it maps, nil if it
// unmaps, left how many tiles its request may name yet.
func (s *session) tilesChanged(rec *arrayMap, mem *physical, left *uint64) {
	t := s.tilesOf(rec.of())
	if t.lost {
		return
	}
	n, followed := t.names(rec)
	if !followed || n > *left || s.tilesNamed+n > mostNamed {
		s.lose(t)
		return
	}
	*left -= n
	before := len(t.cells)
	m := &tileMap{arrayMap: *rec, order: s.tileOrder, mem: mem, names: n}
	s.tileOrder++
	s.tilesNamed += n
	if mem != nil {
		mem.tiles++
	}
	var gone []*tileMap
	t.each(rec, func(c tileCell) {
		at := t.cells[c]
		if at.last == m {
			return
		}
		if at.last != nil {
			if at.last.last--; at.last.last == 0 {
				gone = append(gone, at.last)
			}
		}
		m.last++
		at.last = m
		if mem != nil {
			at.over++
		}
		t.cells[c] = at
	})
	t.maps[m] = struct{}{}
	for _, g := range gone {
		s.endTileMap(t, g)
	}
	if mem == nil {
		t.each(rec, func(c tileCell) { s.bare(t, c) })
	}
	if m.last == 0 {
		s.endTileMap(t, m)
	}
	if s.tileCount += len(t.cells) - before; s.tileCount > mostTiles {
		s.lose(t)
	}
}

// bare forgets a tile that is unmapped, if nothing that counts maps it.
func (s *session) bare(t *tiles, c tileCell) {
	at, ok := t.cells[c]
	if !ok || at.over > 0 || at.last == nil || at.last.mem != nil {
		return
	}
	if at.last.last--; at.last.last == 0 {
		s.uncount(t, at.last)
	}
	delete(t.cells, c)
}

// uncount has an operation count no more.
func (s *session) uncount(t *tiles, m *tileMap) {
	delete(t.maps, m)
	s.tilesNamed -= m.names
}

// endTileMap forgets one that decides nothing any more.
func (s *session) endTileMap(t *tiles, m *tileMap) {
	if _, counts := t.maps[m]; !counts {
		return
	}
	s.uncount(t, m)
	if m.mem == nil {
		return
	}
	t.each(&m.arrayMap, func(c tileCell) {
		at := t.cells[c]
		at.over--
		t.cells[c] = at
		s.bare(t, c)
	})
	s.letGoTile(m.mem)
}

// lose follows an array's tiles no more.
func (s *session) lose(t *tiles) {
	s.tileCount -= len(t.cells)
	for m := range t.maps {
		s.tilesNamed -= m.names
		if m.mem != nil {
			s.letGoTile(m.mem)
		}
	}
	t.lost, t.cells, t.maps = true, nil, nil
}

// forgetTiles is for an array that has ended.
func (s *session) forgetTiles(key shapedKey) {
	if t := s.tiles[key]; t != nil {
		delete(s.tiles, key)
		s.lose(t)
	}
}

// letGoTile is for memory that one less maps. What the guest has released ends with the last.
func (s *session) letGoTile(mem *physical) {
	if mem.tiles--; mem.tiles > 0 {
		return
	}
	if i := slices.Index(s.released, mem); i >= 0 {
		s.released = slices.Delete(s.released, i, i+1)
		s.note(s.drv.MemRelease(mem.handle))
		s.chargedNoMore(mem)
	}
}

// immovableTiles says what of sparse arrays keeps a session.
func (s *session) immovableTiles() error {
	for key, t := range s.tiles {
		if t.lost {
			return immovable("the tiles of %v are not followed: it is a part of another, or they are more than %d, or more than %d with what was mapped over them or is mapped at once", key, mostTiles, mostNamed)
		}
	}
	for id, p := range s.mems.m {
		if p.foreign && p.tiles > 0 {
			return immovable("memory %d in sparse arrays is another process's", id)
		}
	}
	for _, p := range s.released {
		if p.foreign {
			return immovable("memory in sparse arrays is another process's, and was released here")
		}
	}
	return nil
}

// String names it as ids do.
func (k shapedKey) String() string {
	if k.mipmap {
		return fmt.Sprintf("mipmapped array %d", k.id)
	}
	return fmt.Sprintf("array %d", k.id)
}
