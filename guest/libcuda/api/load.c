/* Sending images and reading lists of names: what modules and libraries have in common. */
#include "api/api.h"
#include "api/image.h"
#include "api/jit.h"

#include <stdlib.h>

static CUresult load(uint16_t op, uint32_t id, const struct cw_jit *jit, const struct cw_image *img, uint64_t *managed)
{
	size_t room = (size_t)jit->info_cap + jit->error_cap, len = 0;
	size_t pairs = (size_t)jit->count * 2 * sizeof *jit->pairs;
	uint32_t info_len = 0, error_len = 0;
	char *logs = calloc(1, room + 1);
	float wall_ms = 0;
	CUresult res;

	if (!logs)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (op == CW_OP_MODULE_LOAD)
		res = cwop_ModuleLoad(id, jit->info_cap, jit->error_cap, jit->pairs, pairs, img->data, img->len, &wall_ms, &info_len,
				      &error_len, managed, logs, room, &len);
	else
		res = cwop_LibraryLoad(id, jit->info_cap, jit->error_cap, jit->pairs, pairs, img->data, img->len, &wall_ms, &info_len,
				       &error_len, managed, logs, room, &len);
	cw_jit_finish(jit, wall_ms, logs, len < room ? len : room, info_len, error_len);
	free(logs);
	return res;
}

/* Code that was linked for other GPUs only is linked again from its parts, as far as they are
 * PTX. */
CUresult cw_load(uint16_t op, uint32_t id, const struct cw_jit *jit, const struct cw_image *img, uint64_t *managed)
{
	CUresult res = load(op, id, jit, img, managed), again;
	struct cw_image parts;

	if (res != CUDA_ERROR_NO_BINARY_FOR_GPU || !img->inputs)
		return res;
	parts = cw_image_inputs(img);
	if (!parts.data)
		return res;
	again = load(op, id, jit, &parts, managed);
	free((void *)parts.data);
	return again == CUDA_ERROR_INVALID_IMAGE ? res : again;
}

CUresult cw_names(uint16_t op, uint32_t id, char **names, size_t *len)
{
	size_t room = 16384;

	for (;;) {
		char *buf = malloc(room);
		CUresult res;

		if (!buf)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*len = 0;
		res = op == CW_OP_MODULE_LIST_FUNCTIONS ? cwop_ModuleListFunctions(id, buf, room, len)
							: cwop_LibraryListKernels(id, buf, room, len);
		if (!res && *len <= room) {
			*names = buf;
			return CUDA_SUCCESS;
		}
		free(buf);
		if (res)
			return res;
		room = *len;
	}
}
