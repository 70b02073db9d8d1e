/* Modules: loading, unloading, and the names in them. */
#include "api/api.h"
#include "api/image.h"
#include "api/jit.h"
#include "memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cw_lock cw_module_lock;

static struct cw_module *get(CUmodule module) { return (struct cw_module *)cw_handle_get(CW_KIND_MODULE, module); }

/* --- loading ---------------------------------------------------------------------------------- */

CUresult cw_module_load(CUmodule *module, const void *image, unsigned count, const int *options, void **values)
{
	struct cw_image img;
	struct cw_jit jit;
	struct cw_module *m;
	struct cw_ctx *c;
	uint64_t managed = 0;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_jit_parse(&jit, count, options, values);
	if (res)
		return res;
	img = cw_image_probe(image);
	if (img.kind == CW_IMAGE_INVALID)
		return CUDA_ERROR_INVALID_IMAGE;
	m = (struct cw_module *)cw_handle_alloc();
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->o.ctx = c->o.id;
	cw_handle_publish(&m->o, CW_KIND_MODULE);
	res = cw_load(CW_OP_MODULE_LOAD, m->o.id, &jit, &img, &managed);
	if (res) {
		cw_handle_free(CW_KIND_MODULE, &m->o);
		return res;
	}
	m->managed = cw_managed_move(CW_OP_MODULE_MANAGE, m->o.id, managed);
	*module = (CUmodule)m;
	return CUDA_SUCCESS;
}

CUresult cwi_cuModuleLoadData(CUmodule *module, const void *image) { return cw_module_load(module, image, 0, NULL, NULL); }

CUresult cwi_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values)
{
	return cw_module_load(module, image, count, (const int *)options, values);
}

CUresult cwi_cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cw_module_load(module, image, 0, NULL, NULL); }

CUresult cw_read_file(const char *path, void **data)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *buf = NULL;
	size_t got = 0;
	off_t size;

	if (fd < 0)
		return CUDA_ERROR_FILE_NOT_FOUND;
	size = lseek(fd, 0, SEEK_END);
	if (size < 0 || (uint64_t)size > CW_IMAGE_MAX || lseek(fd, 0, SEEK_SET) < 0)
		goto fail;
	/* zeros behind the end: PTX needs its NUL */
	buf = calloc(1, (size_t)size + 64);
	while (buf && got < (size_t)size) {
		ssize_t n = read(fd, buf + got, (size_t)size - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			goto fail;
		got += (size_t)n;
	}
	close(fd);
	*data = buf;
	return buf ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
fail:
	close(fd);
	free(buf);
	return CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cwi_cuModuleLoad(CUmodule *module, const char *path)
{
	void *data = NULL;
	CUresult res;

	if (!module || !path)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_read_file(path, &data);
	if (!res)
		res = cw_module_load(module, data, 0, NULL, NULL);
	free(data);
	return res;
}

/* A library's module ends with its library. */
CUresult cwi_cuModuleUnload(CUmodule module)
{
	struct cw_module *m = get(module);
	struct cw_home *managed;
	uint32_t id;
	CUresult res;

	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	if (m->library)
		return CUDA_ERROR_NOT_PERMITTED;
	id = m->o.id;
	managed = m->managed;
	cw_lock_acquire(&cw_module_lock);
	cw_module_names_free(m);
	cw_lock_release(&cw_module_lock);
	if (!cw_handle_free(CW_KIND_MODULE, &m->o))
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_ModuleUnload(id);
	cw_managed_drop(managed);
	return res;
}

CUresult cwi_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = (CUmoduleLoadingMode)(cw_settings.eager ? 1 : 2);
	return CUDA_SUCCESS;
}

/* --- names ------------------------------------------------------------------------------------ */

static CUresult fetch(struct cw_obj *owner, uint32_t id, const char *name, void *info, size_t cap, size_t *len)
{
	return cwop_ModuleGetFunction(id, owner->id, name, strlen(name), info, cap, len);
}

CUresult cwi_cuModuleGetFunction(CUfunction *func, CUmodule module, const char *name)
{
	struct cw_module *m = get(module);
	struct cw_func *f;
	CUresult res;

	if (!func || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cw_func_lookup(&m->o, &m->funcs, CW_KIND_FUNC, m->o.ctx, name, fetch, &f);
	if (!res)
		*func = (CUfunction)f;
	return res;
}

CUresult cwi_cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name)
{
	struct cw_module *m = get(module);
	uint64_t p = 0, size = 0;
	CUresult res;

	if (!name || (!ptr && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cw_managed_refused(name, cwop_ModuleGetGlobal(m->o.id, name, strlen(name), &p, &size));
	if (res)
		return res;
	cw_managed_note(m->library ? ((struct cw_library *)m->library)->managed : m->managed, p, size);
	if (ptr)
		*ptr = p;
	if (bytes)
		*bytes = size;
	return CUDA_SUCCESS;
}

/* The ABI of CUDA 3.1 and older had 32-bit device pointers, which ours do not fit. */
CUresult cwi_cuModuleGetGlobal(CUdeviceptr_v1 *ptr, unsigned int *bytes, CUmodule module, const char *name)
{
	(void)ptr, (void)bytes, (void)module, (void)name;
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult list_one(const char *name, struct cw_listing *l)
{
	CUresult res = CUDA_SUCCESS;

	if (l->count < l->room)
		res = l->lookup(l->out, l->count, l->owner, name);
	l->count++;
	return res;
}

static CUresult each_name(const char *names, size_t len, struct cw_listing *l)
{
	for (size_t at = 0; at < len;) {
		size_t n = strnlen(names + at, len - at);
		CUresult res;

		if (n == len - at) /* not terminated: the worker's reply is malformed */
			return CUDA_ERROR_UNKNOWN;
		res = list_one(names + at, l);
		if (res)
			return res;
		at += n + 1;
	}
	return CUDA_SUCCESS;
}

CUresult cw_list(struct cw_listing *l)
{
	char *names = NULL;
	size_t len = 0;
	CUresult res;

	if (!l->owner)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cw_names(l->op, l->owner->id, &names, &len);
	if (!res)
		res = each_name(names, len, l);
	free(names);
	return res;
}

CUresult cw_list_count(struct cw_listing *l, unsigned *count)
{
	CUresult res;

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_list(l);
	if (!res)
		*count = l->count;
	return res;
}

static CUresult function_at(void *out, unsigned i, struct cw_obj *module, const char *name)
{
	return cwi_cuModuleGetFunction((CUfunction *)out + i, (CUmodule)module, name);
}

static struct cw_listing functions_of(CUmodule module, CUfunction *out, unsigned room)
{
	struct cw_module *m = get(module);

	return (struct cw_listing){CW_OP_MODULE_LIST_FUNCTIONS, m ? &m->o : NULL, function_at, out, room, 0};
}

CUresult cwi_cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	struct cw_listing l = functions_of(module, NULL, 0);

	return cw_list_count(&l, count);
}

CUresult cwi_cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room, CUmodule module)
{
	struct cw_listing l = functions_of(module, functions, room);

	return functions && room ? cw_list(&l) : CUDA_ERROR_INVALID_VALUE;
}
