/*
 * Linking at run time. The worker's driver links; names, logs and the result's bytes are the
 * guest's. Files are read here: the worker does not see the guest's file system.
 *
 * A link's options name buffers and value slots of the application that must live until the link
 * ends; they are written after every step that may add to the logs, as the real driver does.
 */
#include "api/api.h"
#include "api/image.h"
#include "api/jit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_TYPES = CU_JIT_INPUT_NVVM + 1, REPLY_GUESS = 1 << 20 /* bytes */ };

struct cw_link {
	struct cw_obj o;
	struct cw_jit *jit; /* steps of one link are the application's to order */
	void *image;	    /* NULL until it is completed */
	size_t size;
};
CW_OBJ_FITS(struct cw_link);

static struct cw_link *get(CUlinkState state) { return (struct cw_link *)cw_handle_get(CW_KIND_LINK, state); }

static CUresult create(unsigned int count, CUjit_option *options, void **values, CUlinkState *out)
{
	struct cw_link *l;
	struct cw_jit *jit;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	jit = malloc(sizeof *jit);
	if (!jit)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cw_jit_parse(jit, count, (const int *)options, values);
	if (res) {
		free(jit);
		return res;
	}
	l = (struct cw_link *)cw_handle_alloc();
	if (!l) {
		free(jit);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	l->o.ctx = c->o.id;
	l->jit = jit;
	cw_handle_publish(&l->o, CW_KIND_LINK);
	res = cwop_LinkCreate(l->o.id, jit->info_cap, jit->error_cap, jit->pairs, jit->count * 2 * sizeof *jit->pairs);
	if (res) {
		cw_handle_free(CW_KIND_LINK, &l->o);
		free(jit);
		return res;
	}
	/* nothing was logged yet, and the sizes say so */
	cw_jit_finish(jit, 0, "", 0, 0, 0);
	*out = (CUlinkState)l;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *out)
{
	return create(count, options, values, out);
}

CUresult cwi_cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values, CUlinkState *out)
{
	return create(count, options, values, out);
}

/* PTX may come with its NUL or without, and with a size that reaches beyond it. CuPy hands machine
 * code over as PTX, which the driver takes for what it is. */
static size_t text_length(const char *text, size_t size) { return cw_image_is_code(text, size) ? size : strnlen(text, size); }

static CUresult add(CUlinkState state, CUjitInputType type, const void *data, size_t size, const char *name, unsigned int count,
		    CUjit_option *options, void **values)
{
	struct cw_link *l = get(state);
	uint32_t info_len = 0, error_len = 0;
	struct cw_jit own;
	size_t room, len = 0;
	float wall_ms = 0;
	char *logs;
	CUresult res;

	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!data || size == 0 || (int)type < 0 || (int)type >= INPUT_TYPES)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_jit_parse(&own, count, (const int *)options, values);
	if (res)
		return res;
	if ((int)type == CU_JIT_INPUT_PTX)
		size = text_length(data, size);
	room = (size_t)l->jit->info_cap + l->jit->error_cap;
	logs = calloc(1, room + 1);
	if (!logs)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cwop_LinkAdd(l->o.id, (uint32_t)type, name ? name : "", name ? strlen(name) : 0, own.pairs, own.count * 2 * sizeof *own.pairs,
			   data, size, &wall_ms, &info_len, &error_len, logs, room, &len);
	cw_jit_finish(l->jit, wall_ms, logs, len < room ? len : room, info_len, error_len);
	free(logs);
	return res;
}

CUresult cwi_cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int count,
			      CUjit_option *options, void **values)
{
	return add(state, type, data, size, name, count, options, values);
}

CUresult cwi_cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int count,
			   CUjit_option *options, void **values)
{
	return add(state, type, data, size, name, count, options, values);
}

/* All of a file; *data is malloced. CUDA_ERROR_FILE_NOT_FOUND if it cannot be read. */
static CUresult read_whole(const char *path, char **data, size_t *size)
{
	size_t room = 0, n = 0;
	char *buf = NULL;
	FILE *f = fopen(path, "rb");

	if (!f)
		return CUDA_ERROR_FILE_NOT_FOUND;
	for (;;) {
		if (n == room) {
			char *more = room < (size_t)1 << 30 ? realloc(buf, room = room ? room * 2 : 65536) : NULL;

			if (!more) {
				free(buf);
				fclose(f);
				return CUDA_ERROR_OUT_OF_MEMORY;
			}
			buf = more;
		}
		size_t got = fread(buf + n, 1, room - n, f);
		if (got == 0)
			break;
		n += got;
	}
	int bad = ferror(f);
	fclose(f);
	if (bad) {
		free(buf);
		return CUDA_ERROR_FILE_NOT_FOUND;
	}
	*data = buf;
	*size = n;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options,
			      void **values)
{
	char *data = NULL;
	size_t size = 0;
	CUresult res;

	if (!get(state))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!path || get(state)->image)
		return CUDA_ERROR_INVALID_VALUE;
	res = read_whole(path, &data, &size);
	if (!res)
		res = add(state, type, data, size, path, count, options, values);
	free(data);
	return res;
}

CUresult cwi_cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options,
			   void **values)
{
	return cwi_cuLinkAddFile_v2(state, type, path, count, options, values);
}

/* Result of a completed link: one reply of unknown length; fetched again only if the guess was too
 * small. */
static CUresult complete(struct cw_link *l, char **reply, size_t *len, uint32_t *info_len, uint32_t *error_len)
{
	size_t room = REPLY_GUESS + (size_t)l->jit->info_cap + l->jit->error_cap;
	float wall_ms = 0;
	CUresult res;

	for (uint32_t again = 0;; again = 1) {
		char *buf = malloc(room);

		if (!buf)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*len = 0;
		res = cwop_LinkComplete(l->o.id, again, &wall_ms, info_len, error_len, buf, room, len);
		if (*len <= room) {
			uint64_t logs = (uint64_t)*info_len + *error_len;

			cw_jit_finish(l->jit, wall_ms, buf, logs < *len ? logs : *len, *info_len, *error_len);
			*reply = buf;
			return res;
		}
		free(buf);
		room = *len;
	}
}

CUresult cwi_cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
	struct cw_link *l = get(state);
	uint32_t info_len = 0, error_len = 0;
	char *reply = NULL;
	size_t len = 0, skip;
	CUresult res;

	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	res = complete(l, &reply, &len, &info_len, &error_len);
	skip = (size_t)info_len + error_len;
	if (res || skip > len) {
		free(reply);
		return res ? res : CUDA_ERROR_UNKNOWN;
	}
	memmove(reply, reply + skip, len - skip);
	l->image = reply;
	l->size = len - skip;
	*image = reply;
	if (size)
		*size = l->size;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLinkDestroy(CUlinkState state)
{
	struct cw_link *l = get(state);
	struct cw_jit *jit;
	void *image;
	uint32_t id;

	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	id = l->o.id;
	jit = l->jit;
	image = l->image;
	if (!cw_handle_free(CW_KIND_LINK, &l->o))
		return CUDA_ERROR_INVALID_HANDLE;
	free(jit);
	free(image);
	return cwop_LinkDestroy(id);
}
