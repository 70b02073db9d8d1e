/* Kernel arguments: from the caller's pointers or packed buffer into a record. */
#ifndef CW_API_PARAMS_H
#define CW_API_PARAMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Where one kernel argument lies in the packed buffer. */
struct cw_param {
	uint32_t offset;
	uint32_t size;
};

enum { CW_PARAM_BYTES_MAX = 32764 };

/* cw_params_gather copies each argument to its place. dst has room for every offset + size. The two
 * sizes of nearly all arguments get moves of fixed size. */
static inline void cw_params_gather(uint8_t *dst, const struct cw_param *p, uint32_t count, void *const *args)
{
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *to = dst + p[i].offset;

		switch (p[i].size) {
		case 8: memcpy(to, args[i], 8); break;
		case 4: memcpy(to, args[i], 4); break;
		default: memcpy(to, args[i], p[i].size);
		}
	}
}

struct cw_packed {
	const void *data;
	size_t size;
};

/* The keys in an `extra` array. */
enum { CW_PACKED_END = 0, CW_PACKED_BUFFER = 1, CW_PACKED_SIZE = 2 };

/* cw_params_packed reads the `extra` array of a launch: (key, value) pairs ended by key 0; 1 is the
 * buffer, 2 points to its size. need is the end of the kernel's last argument. 0, or 1
 * (CUDA_ERROR_INVALID_VALUE) for an unknown key, too many pairs, a missing half, no bytes for a
 * kernel with arguments, or more than a launch can carry. A buffer shorter than the arguments is
 * taken, as by driver 580: NCCL leaves out the unused end of its kernels' argument. */
int cw_params_packed(void *const *extra, uint32_t need, struct cw_packed *out);

#endif
