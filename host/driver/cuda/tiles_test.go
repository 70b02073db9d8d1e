package cuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// tileRig is a session with sparse arrays, on a driver that says what lies behind their tiles.
type tileRig struct {
	t    *testing.T
	s    *session
	rng  *rand.Rand
	made map[uint32]wire.Args // what a record would have
	id   uint32
}

const tileCtx = 5

var tileSeed = maphash.MakeSeed()

func newTileRig(t *testing.T, seed uint64) *tileRig {
	t.Helper()
	cudatest.RestartTiles()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	r := &tileRig{t: t, rng: rand.New(rand.NewPCG(7, seed)), made: map[uint32]wire.Args{}, id: 100}
	r.s = r.open()
	t.Cleanup(func() { r.close(r.s) })
	return r
}

func (r *tileRig) open() *session {
	r.t.Helper()
	entries := map[string]uint64{}
	for _, name := range []string{"cuMemCreate", "cuMemRelease", "cuMemMap", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuArrayDestroy", "cuMipmappedArrayDestroy", "cuArrayGetSparseProperties",
		"cuMipmappedArrayGetSparseProperties", "cuMemMapArrayAsync", "cuMemcpy3DAsync_v2"} {
		entries[name] = cudatest.Tiles(name)
	}
	s := newSession(agreeingDriver(entries), drivertest.NewHost(), driver.Options{MemoryLimit: 1 << 30})
	s.warm = &warmth{version: 13000, devices: make([]deviceInfo, 1)}
	s.arenas.on = true
	r.want(cuda.Success, s.CtxCreate(r.call(), &wire.CtxCreateArgs{Ctx: tileCtx}), "context")
	return s
}

func (r *tileRig) close(s *session) {
	r.t.Helper()
	if err := s.Close(); err != nil {
		r.t.Error(err)
	}
	s.letGo(func(uint32) bool { return true })
}

func (*tileRig) call() *wire.Call { return &wire.Call{Ctx: tileCtx, Thread: 1, Replier: silent{}} }

func (r *tileRig) want(want, got cuda.Result, what string) {
	r.t.Helper()
	if got != want {
		r.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// make makes an object of a session.
func (r *tileRig) make(s *session, a wire.Args) {
	r.t.Helper()
	var res cuda.Result
	switch a := a.(type) {
	case *wire.ArrayCreateArgs:
		res = s.ArrayCreate(r.call(), a)
	case *wire.MipmapCreateArgs:
		res = s.MipmapCreate(r.call(), a)
	case *wire.MemCreateArgs:
		res = s.MemCreate(r.call(), a)
	}
	r.want(cuda.Success, res, a.Op().String())
}

func (r *tileRig) add(make func(id uint32) wire.Args) uint32 {
	r.t.Helper()
	r.id++
	r.made[r.id] = make(r.id)
	r.make(r.s, r.made[r.id])
	return r.id
}

// memory is some for tiles, with bytes of its own.
func (r *tileRig) memory(size uint64) uint32 {
	r.t.Helper()
	id := r.add(func(id uint32) wire.Args { return &wire.MemCreateArgs{Memhandle: id, Size: size, Flags: 1 << 16} })
	b := cudatest.TileMemory(number(r.s.mems.m[id].handle))
	for i := 0; i < len(b); i += 512 {
		binary.LittleEndian.PutUint64(b[i:], r.rng.Uint64())
	}
	return id
}

// tileMapping is an operation on a box of tiles, or on a part of the tail; mem 0: it unmaps.
func tileMapping(key shapedKey, words [8]uint32, tail bool, mem uint32, offset uint64) []byte {
	b := make([]byte, arrayMapSize)
	le := binary.LittleEndian
	if key.mipmap {
		le.PutUint32(b, ofMipmaps)
	}
	le.PutUint64(b[8:], uint64(key.id))
	if tail {
		le.PutUint32(b[16:], inTail)
		le.PutUint32(b[24:], words[0])
		le.PutUint64(b[32:], uint64(words[1])*tileBytes)
		le.PutUint64(b[40:], uint64(words[2])*tileBytes)
	} else {
		for i, w := range words {
			le.PutUint32(b[24+4*i:], w)
		}
	}
	le.PutUint32(b[56:], 2)
	if mem != 0 {
		le.PutUint32(b[56:], mapsMemory)
		le.PutUint64(b[64:], uint64(mem))
		le.PutUint64(b[72:], offset)
	}
	le.PutUint32(b[80:], 1)
	return b
}

func (r *tileRig) do(list ...[]byte) cuda.Result {
	return r.s.MemMapArray(r.call(), &wire.MemMapArrayArgs{Stream: wire.StreamLegacy, Count: uint32(len(list)), List: slices.Concat(list...)})
}

// ids are those of living objects of a kind.
func idsOf[A wire.Args](r *tileRig) (list []uint32) {
	for id, a := range r.made {
		if _, is := a.(A); is {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

func pick(rng *rand.Rand, list []uint32) (uint32, bool) {
	if len(list) == 0 {
		return 0, false
	}
	return list[rng.IntN(len(list))], true
}

// shown is what lies behind each tile of a session's arrays, by its bytes.
func shown(s *session) map[string]uint64 {
	names := map[uint64]string{}
	for id, x := range s.arrays.m {
		names[number(x.handle)] = fmt.Sprint("array ", id)
	}
	for id, x := range s.mipmaps.m {
		names[number(x.handle)] = fmt.Sprint("mipmap ", id)
	}
	list := map[string]uint64{}
	for _, t := range cudatest.AllTiles() {
		if name, ok := names[t.Of]; ok {
			t.Of = 0
			b := cudatest.TileMemory(t.Mem)
			end := min(t.Offset+tileBytes, uint64(len(b)))
			t.Mem, t.Offset = 0, 0
			list[fmt.Sprintf("%s %+v", name, t)] = maphash.Bytes(tileSeed, b[t.Offset:end])
		}
	}
	for id, p := range s.mems.m {
		list[fmt.Sprint("memory ", id)] = maphash.Bytes(tileSeed, cudatest.TileMemory(number(p.handle)))
	}
	return list
}

// end ends an object as the guest does.
func (r *tileRig) end(s *session, id uint32, a wire.Args) {
	r.t.Helper()
	var res cuda.Result
	switch a.(type) {
	case *wire.ArrayCreateArgs:
		res = s.ArrayDestroy(r.call(), &wire.ArrayDestroyArgs{Array: id})
	case *wire.MipmapCreateArgs:
		res = s.MipmapDestroy(r.call(), &wire.MipmapDestroyArgs{Mipmap: id})
	case *wire.MemCreateArgs:
		res = s.MemRelease(r.call(), &wire.MemReleaseArgs{Memhandle: id})
	}
	r.want(cuda.Success, res, "end")
}

// clear ends all of a session.
func (r *tileRig) clear(s *session, made map[uint32]wire.Args) {
	r.t.Helper()
	for id, a := range made {
		r.end(s, id, a)
	}
	if s.used != 0 || s.tileCount != 0 || len(s.tiles)+len(s.released) != 0 {
		r.t.Errorf("%d bytes in use, %d tiles of %d arrays, %d pieces released when all has ended", s.used, s.tileCount, len(s.tiles), len(s.released))
	}
}

// moved has all go to another session.
func (r *tileRig) moved() {
	r.t.Helper()
	before := shown(r.s)
	n := r.open()
	for _, id := range slices.Sorted(maps.Keys(r.made)) {
		r.make(n, r.made[id])
	}
	sent := 0
	err := r.s.ExportMemory(func(addr, size uint64, b io.Reader) error {
		sent++
		return n.ImportMemory(addr, size, b)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if now := shown(n); !maps.Equal(now, before) {
		for k := range now {
			if before[k] != now[k] {
				r.t.Errorf("%s is %x, was %x", k, now[k], before[k])
			}
		}
		r.t.Fatalf("%d things are there, %d were", len(now), len(before))
	}
	if n.used != r.s.used || len(n.released) != len(r.s.released) || n.tileCount != r.s.tileCount {
		r.t.Fatalf("%d bytes in use, %d pieces released, %d tiles; before %d, %d, %d", n.used, len(n.released), n.tileCount, r.s.used, len(r.s.released), r.s.tileCount)
	}
	r.clear(r.s, r.made)
	r.close(r.s)
	r.s = n
}

// turn does something at random.
func (r *tileRig) turn() {
	r.t.Helper()
	rng := r.rng
	n := func(most int) uint32 { return uint32(rng.IntN(most)) }
	switch rng.IntN(12) {
	case 0:
		if len(idsOf[*wire.ArrayCreateArgs](r)) < 4 {
			a := [...]wire.ArrayCreateArgs{{Width: 512, Height: 384, Flags: arraySparse}, {Width: 256, Height: 256, Depth: 3, Flags: arraySparse | arrayLayered},
				{Width: 64, Height: 96, Depth: 32, Flags: arraySparse}, {Width: 200, Height: 100, Flags: 0x80}}[rng.IntN(4)]
			a.Format, a.Channels = 0x20, 1
			r.add(func(id uint32) wire.Args { a.Array = id; return &a })
		}
	case 1:
		if len(idsOf[*wire.MipmapCreateArgs](r)) < 2 {
			r.add(func(id uint32) wire.Args {
				return &wire.MipmapCreateArgs{Mipmap: id, Width: 512, Height: 512, Format: 0x20, Channels: 1, Levels: 10, Flags: arraySparse}
			})
		}
	case 2, 3:
		if len(r.s.mems.m)+len(r.s.released) < 4 {
			r.memory(2 << 20 * (1 + uint64(n(4))))
		}
	case 4:
		if all := slices.Sorted(maps.Keys(r.made)); len(all) > 0 {
			id := all[rng.IntN(len(all))]
			r.end(r.s, id, r.made[id])
			delete(r.made, id)
		}
	default:
		var list [][]byte
		for range 1 + n(3) {
			mem, _ := pick(rng, append(idsOf[*wire.MemCreateArgs](r), 0))
			offset := uint64(n(8)) * tileBytes
			if id, ok := pick(rng, idsOf[*wire.MipmapCreateArgs](r)); ok && n(2) == 0 {
				if key := (shapedKey{true, id}); n(3) == 0 {
					list = append(list, tileMapping(key, [8]uint32{0, n(2), 1}, true, mem, offset))
				} else {
					level := n(2)
					x, y, most := n(4>>level), n(4>>level), 4>>level
					list = append(list, tileMapping(key, [8]uint32{level, 0, x * 128, y * 128, 0, 128 * (1 + n(most-int(x))), 128 * (1 + n(most-int(y))), 1}, false, mem, offset))
				}
			} else if id, ok := pick(rng, idsOf[*wire.ArrayCreateArgs](r)); ok {
				a := r.made[id].(*wire.ArrayCreateArgs)
				w, h, d := uint32(128), uint32(128), uint32(1)
				if a.Depth == 32 {
					w, h, d = 32, 32, 16
				}
				words := [8]uint32{}
				box := func(i int, all, tile uint32) {
					from := n(int(all / tile))
					words[2+i], words[5+i] = from*tile, tile*(1+n(int(all/tile-from)))
				}
				if a.Flags&arraySparse != 0 {
					box(0, uint32(a.Width), w)
					box(1, uint32(a.Height), h)
					words[7] = 1
					if d > 1 {
						box(2, uint32(a.Depth), d)
					} else if a.Depth > 0 {
						words[1] = n(int(a.Depth))
					}
				}
				list = append(list, tileMapping(shapedKey{id: id}, words, false, mem, offset))
			}
		}
		if len(list) > 0 {
			r.want(cuda.Success, r.do(list...), "map")
		}
	}
}

// TestTilesMove: what lies behind tiles of arrays, layers, levels and tails, mapped over and
// unmapped in parts, in whatever order, by memory that the guest has or has released, is the same
// after a move, and what is counted is what there is.
func TestTilesMove(t *testing.T) {
	for seed := range uint64(4) {
		r := newTileRig(t, seed)
		for n := range 400 {
			r.turn()
			if n%25 == 24 {
				r.moved()
			}
		}
		r.clear(r.s, r.made)
		if memory, arrays, mipmaps, wrong := cudatest.TileThings(); memory+arrays+mipmaps != 0 || wrong != 0 {
			t.Errorf("%d pieces of memory, %d and %d arrays are left, %d calls made no sense", memory, arrays, mipmaps, wrong)
		}
	}
}

// TestTilesOfADay: what is kept of tiles is what they need, however often they change: also in
// parts, never the same twice.
func TestTilesOfADay(t *testing.T) {
	r := newTileRig(t, 1)
	array := r.add(func(id uint32) wire.Args {
		return &wire.ArrayCreateArgs{Array: id, Width: 1024, Height: 1024, Format: 0x20, Channels: 1, Flags: arraySparse}
	})
	mems := []uint32{r.memory(2 << 20), r.memory(2 << 20), 0}
	var early map[string]int
	for n := range 20000 {
		x, y := uint32(r.rng.IntN(8)), uint32(r.rng.IntN(8))
		words := [8]uint32{0, 0, x * 128, y * 128, 0, 128 * (1 + uint32(r.rng.IntN(int(8-x)))), 128 * (1 + uint32(r.rng.IntN(int(8-y)))), 1}
		r.want(cuda.Success, r.do(tileMapping(shapedKey{id: array}, words, false, mems[r.rng.IntN(3)], 0)), "map")
		if n%7 == 0 { // released while it is mapped, and another in its place
			i := r.rng.IntN(2)
			r.end(r.s, mems[i], r.made[mems[i]])
			delete(r.made, mems[i])
			mems[i] = r.memory(2 << 20)
		}
		if n == 2000 {
			early = drivertest.Weigh(r.s)
		}
		if kept := r.s.tiles[shapedKey{id: array}]; kept != nil && (len(kept.maps) > 64 || len(kept.cells) > 64 || len(r.s.released) > 64) {
			t.Fatalf("%d operations for %d tiles, %d pieces released after %d turns", len(kept.maps), len(kept.cells), len(r.s.released), n)
		}
	}
	if said := drivertest.Grown(early, drivertest.Weigh(r.s), 64); said != "" {
		t.Errorf("after 20000 turns there is more than after 2000:\n%s", said)
	}
	r.moved()
	all := [8]uint32{0, 0, 0, 0, 0, 1024, 1024, 1}
	r.want(cuda.Success, r.do(tileMapping(shapedKey{id: array}, all, false, 0, 0)), "unmap all")
	if kept := r.s.tiles[shapedKey{id: array}]; len(kept.maps)+len(kept.cells)+len(r.s.released) != 0 || r.s.used != 4<<20 || r.s.tilesNamed != 0 {
		t.Errorf("%d operations, %d tiles, %d pieces when all is unmapped, %d bytes in use", len(kept.maps), len(kept.cells), len(r.s.released), r.s.used)
	}
	r.clear(r.s, r.made)
}

// FuzzTileTable: a table of tiles from elsewhere maps what is there, or nothing: nothing else goes
// wrong.
func FuzzTileTable(f *testing.F) {
	le := binary.LittleEndian
	one := tileMapping(shapedKey{id: 101}, [8]uint32{0, 0, 0, 0, 0, 128, 128, 1}, false, 102, 0)
	f.Add(append(le.AppendUint32(le.AppendUint32(nil, 0), memoryOfGuest), one...))
	released := le.AppendUint32(le.AppendUint32(le.AppendUint32(le.AppendUint64(le.AppendUint32(nil, 1), 2<<20), 0), 0), 1<<16)
	f.Add(append(le.AppendUint32(released, memoryReleased), tileMapping(shapedKey{id: 101}, [8]uint32{0, 0, 0, 0, 0, 256, 128, 1}, false, 0, 0)...))
	f.Fuzz(func(t *testing.T, table []byte) {
		r := newTileRig(t, 3)
		r.add(func(id uint32) wire.Args {
			return &wire.ArrayCreateArgs{Array: id, Width: 512, Height: 512, Format: 0x20, Channels: 1, Flags: arraySparse}
		})
		r.memory(2 << 20)
		err := r.s.ImportMemory(ofTiles, uint64(len(table)), bytes.NewReader(table))
		if err == nil && r.s.Movable() == nil && len(r.s.tiles) > 0 {
			if again := r.s.tileTable(); len(again) > len(table) {
				t.Errorf("%d bytes of %d", len(again), len(table))
			}
		}
		r.want(cuda.Success, r.s.MemRelease(r.call(), &wire.MemReleaseArgs{Memhandle: 102}), "release")
		r.want(cuda.Success, r.s.ArrayDestroy(r.call(), &wire.ArrayDestroyArgs{Array: 101}), "destroy")
		for _, p := range r.s.released { // of a table that was refused
			if p.tiles > 0 {
				t.Errorf("%d operations map what was released, and no array is there", p.tiles)
			}
		}
	})
}

// TestTilesOfParts: what is mapped by way of a part of an array is not followed twice, so the
// session stays, until the array ends; nothing is kept of it then.
func TestTilesOfParts(t *testing.T) {
	r := newTileRig(t, 1)
	whole := r.add(func(id uint32) wire.Args {
		return &wire.ArrayCreateArgs{Array: id, Width: 8192, Height: 128, Format: 0x03, Channels: 1, Flags: arraySparse}
	})
	mem := r.memory(tileBytes)
	const part = 90
	r.want(cuda.Success, r.s.arrays.add(part, array{handle: r.s.arrays.m[whole].handle, ctx: tileCtx, owner: whole}), "part")
	r.want(cuda.Success, r.do(tileMapping(shapedKey{id: part}, [8]uint32{5: 1, 6: 1, 7: 1}, false, mem, 0)), "map")
	if err := r.s.Movable(); err == nil || !strings.Contains(err.Error(), "array 90") {
		t.Errorf("with tiles of a part: %v", err)
	}
	r.clear(r.s, r.made)
	if err := r.s.Movable(); err != nil {
		t.Errorf("without the array: %v", err)
	}
}
