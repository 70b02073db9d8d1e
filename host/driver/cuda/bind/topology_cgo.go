package bind

/*
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// The table that cuBLASLt asks for (guest/libcuda/api/librarytables.c): function 4 gives two arrays from malloc, one byte for each
// pair of multiprocessors of the current device; function 13 takes them back. Their length is not told: what malloc holds bounds it.
static int cw_tpc_map(uint64_t get_table, uint8_t *out, size_t room, size_t *each) {
	static const uint8_t id[16] = {0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca};
	const void *const *table = NULL;
	int res = ((int (*)(const void *, const void *))(uintptr_t)get_table)(&table, id);
	if (res || !table || (size_t)table[0] < 14 * sizeof(void *)) return 801;
	uint8_t *cluster = NULL, *place = NULL;
	res = ((int (*)(uint8_t **, uint8_t **))table[4])(&cluster, &place);
	if (res) return res;
	if (!cluster || !place) return 801;
	size_t n = malloc_usable_size(cluster), m = malloc_usable_size(place);
	if (m < n) n = m;
	if (n > room / 2) n = room / 2;
	memcpy(out, cluster, n);
	memcpy(out + n, place, n);
	*each = n;
	((int (*)(uint8_t *, uint8_t *))table[13])(cluster, place);
	return 0;
}
*/
import "C"

import (
	"unsafe"

	"causeway/cuda"
)

// TpcMap says where the current device's pairs of multiprocessors lie, as the driver tells
// cuBLASLt.
func (d *Driver) TpcMap() ([]byte, cuda.Result) {
	if d.fn.cuGetExportTable == 0 {
		return nil, cuda.ErrorNotSupported
	}
	var out [512]byte
	var each C.size_t
	if res := C.cw_tpc_map(C.uint64_t(d.fn.cuGetExportTable), (*C.uint8_t)(unsafe.Pointer(&out[0])), C.size_t(len(out)), &each); res != 0 {
		return nil, cuda.Result(res)
	}
	return append([]byte(nil), out[:2*each]...), cuda.Success
}
