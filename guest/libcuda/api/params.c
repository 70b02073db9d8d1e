/* The packed form of kernel arguments. */
#include "params.h"

enum { PAIRS_MAX = 8, INVALID_VALUE = 1 };

int cw_params_packed(void *const *extra, uint32_t need, struct cw_packed *out)
{
	int have_size = 0;

	*out = (struct cw_packed){NULL, 0};
	for (int i = 0;; i += 2) {
		uintptr_t key = (uintptr_t)extra[i];

		if (key == CW_PACKED_END)
			break;
		if (i == 2 * PAIRS_MAX || !extra[i + 1])
			return INVALID_VALUE;
		if (key == CW_PACKED_BUFFER) {
			out->data = extra[i + 1];
		} else if (key == CW_PACKED_SIZE) {
			memcpy(&out->size, extra[i + 1], sizeof out->size);
			have_size = 1;
		} else {
			return INVALID_VALUE;
		}
	}
	if (out->size > CW_PARAM_BYTES_MAX || (out->size && !out->data) || (out->data && !have_size) || (need && !out->size))
		return INVALID_VALUE;
	return 0;
}
