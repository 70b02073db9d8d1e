package cudatest

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// A driver with sparse arrays: which memory lies behind which tile, and bytes in it in an order that follows from the tiles' shape. Memory for tiles has no addresses.
enum { THINGS = 4096, TILES = 1 << 13, TILE = 64 << 10, SPARSE = 0x40, DEFERRED = 0x80, LAYERED = 1, INVALID = 1, REFUSED = 801 };
enum { MEMORY = 1, ARRAY, MIPMAP };

static struct thing {
	int kind, users; // users of memory: its handle, and tiles
	unsigned char *bytes;
	uint64_t size, width, height, depth;
	uint32_t flags, levels;
} things[THINGS];
static struct at { uint64_t of; uint32_t tail, level, layer, x, y, z; uint64_t mem, offset; } behind[TILES];
static int tile_count;
static unsigned wrong_calls, refusing;

static struct thing *thing(uint64_t handle, int kind) {
	uint64_t i = handle >> 12;
	return i && i < THINGS && things[i].kind == kind ? &things[i] : NULL;
}

static uint64_t new_thing(int kind) {
	for (uint64_t i = 1; i < THINGS; i++)
		if (!things[i].kind) {
			memset(&things[i], 0, sizeof things[i]);
			things[i].kind = kind;
			return i << 12;
		}
	abort();
}

static int memory(uint64_t *handle, uint64_t size, const char *prop) {
	*handle = new_thing(MEMORY);
	struct thing *t = thing(*handle, MEMORY);
	t->size = size, t->users = 1, t->bytes = calloc(1, size);
	if (!(*(uint16_t *)(prop + 26) & 1)) wrong_calls++; // not for tiles
	return 0;
}

static void leave(struct thing *t) {
	if (--t->users) return;
	free(t->bytes);
	t->kind = 0;
}

static int release(uint64_t handle) {
	struct thing *t = thing(handle, MEMORY);
	if (!t) { wrong_calls++; return INVALID; }
	leave(t);
	return 0;
}

static int map_address(void) { return REFUSED; }

static int make_shaped(uint64_t *handle, const uint64_t *desc, uint32_t levels, int kind) {
	*handle = new_thing(kind);
	struct thing *t = thing(*handle, kind);
	t->width = desc[0], t->height = desc[1], t->depth = desc[2], t->flags = ((uint32_t *)desc)[8], t->levels = levels;
	return 0;
}
static int array(uint64_t *handle, const uint64_t *desc) { return make_shaped(handle, desc, 1, ARRAY); }
static int mipmap(uint64_t *handle, const uint64_t *desc, uint32_t levels) { return make_shaped(handle, desc, levels, MIPMAP); }

static void unmap(int i) {
	leave(thing(behind[i].mem, MEMORY));
	behind[i] = behind[--tile_count];
}

static int end_shaped(uint64_t handle) {
	struct thing *t = thing(handle, ARRAY) ? thing(handle, ARRAY) : thing(handle, MIPMAP);
	if (!t) { wrong_calls++; return INVALID; }
	for (int i = tile_count - 1; i >= 0; i--)
		if (behind[i].of == handle) unmap(i);
	t->kind = 0;
	return 0;
}

static void shape(const struct thing *t, uint32_t of[3]) {
	int solid = t->depth && !(t->flags & LAYERED);
	of[0] = solid ? 32 : 128, of[1] = solid ? 32 : 128, of[2] = solid ? 16 : 1;
}

static uint32_t first_tail(const struct thing *t) {
	uint32_t s[3], level = 0;
	shape(t, s);
	while (level < t->levels && t->width >> level >= s[0] && t->height >> level >= s[1]) level++;
	return level;
}

static int properties(char *p, uint64_t handle) {
	struct thing *t = thing(handle, ARRAY) ? thing(handle, ARRAY) : thing(handle, MIPMAP);
	if (!t || !(t->flags & SPARSE)) return INVALID;
	shape(t, (uint32_t *)p);
	((uint32_t *)p)[3] = first_tail(t);
	*(uint64_t *)(p + 16) = 2 * TILE;
	*(uint32_t *)(p + 24) = 0;
	return 0;
}

static int find(const struct at *w) {
	for (int i = 0; i < tile_count; i++)
		if (behind[i].of == w->of && behind[i].tail == w->tail && behind[i].level == w->level && behind[i].layer == w->layer && behind[i].x == w->x && behind[i].y == w->y && behind[i].z == w->z)
			return i;
	return -1;
}

static void put(struct at w, int maps) {
	int i = find(&w);
	struct thing *m = maps ? thing(w.mem, MEMORY) : NULL;
	if (m) m->users++;
	if (i >= 0) unmap(i);
	if (!m) return;
	behind[tile_count++] = w;
}

// Tiles of a box have memory row by row. One of nothing, beyond any array, or of more tiles than there is room for is refused.
enum { MOST = 1 << 30 };
static int room(uint64_t n) { return n <= (uint64_t)(TILES - tile_count); }
static int map_one(const char *m) {
	const uint32_t *w = (const uint32_t *)m;
	uint32_t type = w[0], tail = w[4], maps = w[14] == 1;
	struct at a = { .of = *(uint64_t *)(m + 8), .tail = tail, .mem = *(uint64_t *)(m + 64), .offset = *(uint64_t *)(m + 72) };
	struct thing *t = thing(a.of, type == 0 ? ARRAY : MIPMAP);
	if (!t || (w[14] != 1 && w[14] != 2) || (maps ? !thing(a.mem, MEMORY) : a.mem) || w[20] != 1) return INVALID;
	if (!(t->flags & SPARSE)) {
		if (!room(1)) return INVALID;
		a.tail = 0;
		put(a, maps);
		return 0;
	}
	uint32_t s[3];
	shape(t, s);
	if (tail) {
		if (*(uint64_t *)(m + 32) > MOST || *(uint64_t *)(m + 40) > MOST || !room(*(uint64_t *)(m + 40) / TILE + 1)) return INVALID;
		a.layer = w[6];
		for (uint64_t at = *(uint64_t *)(m + 32), end = at + *(uint64_t *)(m + 40); at < end; at += TILE, a.offset += TILE) {
			a.x = at / TILE;
			put(a, maps);
		}
		return 0;
	}
	for (int i = 8; i < 14; i++)
		if (w[i] > MOST / TILE || (i > 10 && !w[i])) return INVALID;
	uint64_t n = 1; // of factors below 2^15
	for (int i = 0; i < 3; i++) n *= w[11 + i] / s[i] + 1;
	if (!room(n)) return INVALID;
	a.level = w[6], a.layer = w[7];
	for (uint32_t z = w[10]; z < w[10] + w[13]; z += s[2])
		for (uint32_t y = w[9]; y < w[9] + w[12]; y += s[1])
			for (uint32_t x = w[8]; x < w[8] + w[11]; x += s[0], a.offset += TILE) {
				a.x = x / s[0], a.y = y / s[1], a.z = z / s[2];
				put(a, maps);
			}
	return 0;
}

static int map_tiles(const char *list, uint32_t count) {
	if (refusing) return REFUSED;
	for (uint32_t i = 0; i < count; i++)
		if (map_one(list + 96 * i)) { wrong_calls++; return INVALID; }
	return 0;
}

// A copy of a whole tile, to or from packed memory of the host.
static int copy(const char *c) {
	enum { FROM = 0, TO = 88 }; // beginnings of either side
	const char *sides[2] = { c + FROM, c + TO };
	int in = *(uint32_t *)(sides[0] + 32) == 1; // from the host
	const char *h = sides[!in], *d = sides[in];
	const uint64_t *size = (const uint64_t *)(c + 2 * TO);
	struct at a = { .of = *(uint64_t *)(d + 56) };
	struct thing *t = thing(a.of, ARRAY);
	uint32_t s[3];
	if (!t) { wrong_calls++; return INVALID; }
	shape(t, s);
	if (size[0] != 4 * s[0] || size[1] != s[1] || size[2] != 1 || *(uint64_t *)(h + 72) != size[0]) { wrong_calls++; return INVALID; }
	a.x = *(uint64_t *)d / size[0], a.y = *(uint64_t *)(d + 8) / size[1];
	int i = find(&a);
	if (i < 0) { wrong_calls++; return INVALID; }
	unsigned char *mem = thing(behind[i].mem, MEMORY)->bytes + behind[i].offset, *host = *(unsigned char **)(h + 40);
	for (uint32_t n = 0; n < TILE; n++) {
		uint32_t there = n ^ s[0] * 40 % TILE; // its place in memory
		if (in) mem[there] = host[n]; else host[n] = mem[there];
	}
	return 0;
}

static uint64_t tiles_entry(int which) {
	switch (which) {
	case 1: return (uint64_t)(uintptr_t)memory;
	case 2: return (uint64_t)(uintptr_t)release;
	case 3: return (uint64_t)(uintptr_t)map_address;
	case 4: return (uint64_t)(uintptr_t)array;
	case 5: return (uint64_t)(uintptr_t)mipmap;
	case 6: case 7: return (uint64_t)(uintptr_t)end_shaped;
	case 8: case 9: return (uint64_t)(uintptr_t)properties;
	case 10: return (uint64_t)(uintptr_t)map_tiles;
	case 11: return (uint64_t)(uintptr_t)copy;
	}
	return 0;
}
static unsigned char *tile_bytes(uint64_t mem, uint64_t *size) { struct thing *t = thing(mem, MEMORY); *size = t ? t->size : 0; return t ? t->bytes : NULL; }
static struct at tile_at(int i) { return behind[i]; }
static int tiles_there(void) { return tile_count; }
static void tiles_refuse(unsigned on) { refusing = on; }
static void tiles_restart(void) {
	for (int i = 0; i < THINGS; i++) { if (things[i].kind == MEMORY) free(things[i].bytes); things[i].kind = 0; }
	tile_count = 0, wrong_calls = 0, refusing = 0;
}
static unsigned tiles_wrong(void) { return wrong_calls; }
static int tiles_things(int kind) { int n = 0; for (int i = 0; i < THINGS; i++) n += things[i].kind == kind; return n; }
*/
import "C"

import "unsafe"

// Tiles returns the address of the function that stands for the driver's of a name in a driver that
// has sparse arrays, 0 if it has none. One test at a time.
func Tiles(name string) uint64 {
	names := []string{"", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuArrayDestroy", "cuMipmappedArrayDestroy", "cuArrayGetSparseProperties",
		"cuMipmappedArrayGetSparseProperties", "cuMemMapArrayAsync", "cuMemcpy3DAsync_v2"}
	for i := 1; i < len(names); i++ {
		if names[i] == name {
			return uint64(C.tiles_entry(C.int(i)))
		}
	}
	return 0
}

// Tile is memory behind a tile: the array's handle, the tile, the memory's, and where in it.
type Tile struct {
	Of                          uint64
	Tail, Level, Layer, X, Y, Z uint32
	Mem, Offset                 uint64
}

// AllTiles are all that have memory.
func AllTiles() (list []Tile) {
	for i := range int(C.tiles_there()) {
		a := C.tile_at(C.int(i))
		list = append(list, Tile{uint64(a.of), uint32(a.tail), uint32(a.level), uint32(a.layer), uint32(a.x), uint32(a.y), uint32(a.z), uint64(a.mem), uint64(a.offset)})
	}
	return list
}

// TileMemory is the bytes of memory; nil: it is gone.
func TileMemory(handle uint64) []byte {
	var size C.uint64_t
	p := C.tile_bytes(C.uint64_t(handle), &size)
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), uint64(size))
}

// TileThings are how many pieces of memory, arrays and mipmapped arrays there are, and how many
// calls made no sense.
func TileThings() (memory, arrays, mipmaps, wrong int) {
	return int(C.tiles_things(1)), int(C.tiles_things(2)), int(C.tiles_things(3)), int(C.tiles_wrong())
}

// RefuseTiles has nothing be mapped any more.
func RefuseTiles(on bool) {
	n := C.uint(0)
	if on {
		n = 1
	}
	C.tiles_refuse(n)
}

// RestartTiles forgets all.
func RestartTiles() { C.tiles_restart() }
