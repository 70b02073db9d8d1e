/* Libraries and kernels: images that are not tied to a context. */
#include "api/api.h"
#include "api/image.h"
#include "api/jit.h"
#include "memory/memory.h"

#include <stdlib.h>
#include <string.h>

enum { OPT_HOST_TABLE = 0, OPT_BINARY_PRESERVED = 1 };

static struct cw_library *get(CUlibrary library) { return (struct cw_library *)cw_handle_get(CW_KIND_LIBRARY, library); }

static struct cw_func *get_kernel(CUkernel kernel) { return (struct cw_func *)cw_handle_get(CW_KIND_KERNEL, kernel); }

/* --- loading ---------------------------------------------------------------------------------- */

/* BINARY_IS_PRESERVED only permits the driver to keep pointers into the image; the worker has a
 * copy of its own. The value array may be NULL (cuBLASLt passes that). A host table holds the
 * application's addresses, which mean nothing to a worker. */
static CUresult check_options(const CUlibraryOption *options, unsigned count)
{
	if (count && !options)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if ((int)options[i] == OPT_HOST_TABLE)
			return CUDA_ERROR_NOT_SUPPORTED;
		if ((int)options[i] != OPT_BINARY_PRESERVED)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cwi_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values, unsigned int jit_count,
			       CUlibraryOption *options, void **values, unsigned int count)
{
	struct cw_image img;
	struct cw_jit jit;
	struct cw_library *l;
	uint64_t managed = 0;
	CUresult res;

	(void)values;
	if (!library || !code)
		return CUDA_ERROR_INVALID_VALUE;
	if ((res = check_options(options, count)) || (res = cw_jit_parse(&jit, jit_count, (const int *)jit_options, jit_values)))
		return res;
	img = cw_image_probe(code);
	if (img.kind == CW_IMAGE_INVALID)
		return CUDA_ERROR_INVALID_IMAGE;
	l = (struct cw_library *)cw_handle_new(CW_KIND_LIBRARY);
	if (!l)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cw_load(CW_OP_LIBRARY_LOAD, l->o.id, &jit, &img, &managed);
	if (res) {
		cw_handle_free(CW_KIND_LIBRARY, &l->o);
		return res;
	}
	l->managed = cw_managed_move(CW_OP_LIBRARY_MANAGE, l->o.id, managed);
	l->unmoved = managed && !l->managed;
	*library = (CUlibrary)l;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options, void **jit_values,
				   unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
	void *data = NULL;
	CUresult res;

	if (!library || !path)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_read_file(path, &data);
	if (!res)
		res = cwi_cuLibraryLoadData(library, data, jit_options, jit_values, jit_count, options, values, count);
	free(data);
	return res;
}

CUresult cwi_cuLibraryUnload(CUlibrary library)
{
	struct cw_library *l = get(library);
	struct cw_home *managed;
	uint32_t id;
	CUresult res;

	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	id = l->o.id;
	managed = l->managed;
	cw_lock_acquire(&cw_module_lock);
	for (struct cw_func *k = l->kernels; k; k = k->next)
		cw_funcs_free(&k->functions);
	cw_funcs_free(&l->kernels);
	while (l->modules) {
		struct cw_module *m = l->modules;

		l->modules = m->next;
		cw_module_names_free(m);
		cw_handle_free(CW_KIND_MODULE, &m->o);
	}
	cw_lock_release(&cw_module_lock);
	if (!cw_handle_free(CW_KIND_LIBRARY, &l->o))
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_LibraryUnload(id);
	cw_managed_drop(managed);
	return res;
}

/* --- contents --------------------------------------------------------------------------------- */

CUresult cw_library_module(struct cw_library *l, struct cw_module **out)
{
	struct cw_module *m;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	cw_lock_acquire(&cw_module_lock);
	for (m = l->modules; m && m->o.ctx != c->o.id; m = m->next)
		;
	if (!m) {
		m = (struct cw_module *)cw_handle_alloc();
		if (!m) {
			cw_lock_release(&cw_module_lock);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		m->o.ctx = c->o.id;
		m->library = &l->o;
		cw_handle_publish(&m->o, CW_KIND_MODULE);
		res = cwop_LibraryGetModule(m->o.id, l->o.id);
		if (res) {
			cw_handle_free(CW_KIND_MODULE, &m->o);
		} else {
			m->next = l->modules;
			l->modules = m;
		}
	}
	cw_lock_release(&cw_module_lock);
	if (!res)
		*out = m;
	return res;
}

CUresult cwi_cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	struct cw_library *l = get(library);
	struct cw_module *m;
	CUresult res;

	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cw_library_module(l, &m);
	if (!res)
		*module = (CUmodule)m;
	return res;
}

static CUresult fetch(struct cw_obj *owner, uint32_t id, const char *name, void *info, size_t cap, size_t *len)
{
	return cwop_LibraryGetKernel(id, owner->id, name, strlen(name), info, cap, len);
}

CUresult cwi_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	struct cw_library *l = get(library);
	struct cw_func *k;
	CUresult res;

	if (!kernel || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cw_func_lookup(&l->o, &l->kernels, CW_KIND_KERNEL, 0, name, fetch, &k);
	if (!res)
		*kernel = (CUkernel)k;
	return res;
}

static CUresult get_global(uint64_t *ptr, size_t *bytes, CUlibrary library, const char *name)
{
	struct cw_library *l = get(library);
	uint64_t p = 0, size = 0;
	CUresult res;

	if (!name || (!ptr && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cw_managed_refused(name, cwop_LibraryGetGlobal(l->o.id, 0, name, strlen(name), &p, &size));
	if (res)
		return res;
	cw_managed_note(l->managed, p, size);
	if (ptr)
		*ptr = p;
	if (bytes)
		*bytes = size;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
	struct cw_ctx *c;
	uint64_t p = 0;
	CUresult res = cw_ctx_current(&c);

	if (!res && !(res = get_global(&p, bytes, library, name)) && ptr)
		*ptr = p;
	return res;
}

static CUresult kernel_at(void *out, unsigned i, struct cw_obj *library, const char *name)
{
	return cwi_cuLibraryGetKernel((CUkernel *)out + i, (CUlibrary)library, name);
}

static struct cw_listing kernels_of(CUlibrary library, CUkernel *out, unsigned room)
{
	struct cw_library *l = get(library);

	return (struct cw_listing){CW_OP_LIBRARY_LIST_KERNELS, l ? &l->o : NULL, kernel_at, out, room, 0};
}

CUresult cwi_cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	struct cw_listing l = kernels_of(library, NULL, 0);

	return cw_list_count(&l, count);
}

CUresult cwi_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room, CUlibrary library)
{
	struct cw_listing l = kernels_of(library, kernels, room);

	return kernels && room ? cw_list(&l) : CUDA_ERROR_INVALID_VALUE;
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* What a kernel is like, in the form in which the worker describes a function. 0: no room. */
static size_t describe(const struct cw_func *k, uint8_t *out, size_t cap)
{
	struct cw_function_info w = {.attr_count = k->info->attr_count, .param_count = k->info->param_count};
	size_t params = w.param_count * sizeof(struct cw_param_info);

	if (cap < sizeof w || cap - sizeof w < params)
		return 0;
	for (uint32_t i = 0; i < w.attr_count; i++)
		w.attrs[i] = cw_func_attr(k, (int)i);
	memcpy(out, &w, sizeof w);
	memcpy(out + sizeof w, k->info->params, params);
	return sizeof w + params;
}

/* A kernel's function in a context is like the kernel: nobody is asked, so that a first launch
 * waits for nobody, unless the context is another device's than the one that was asked about. */
static CUresult fetch_function(struct cw_obj *owner, uint32_t id, const char *name, void *info, size_t cap, size_t *len)
{
	const struct cw_func *k = (const struct cw_func *)owner;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	(void)name;
	if (res)
		return res;
	*len = 0;
	if (c->device->ordinal == k->device && !atomic_load_explicit(&k->mixed, memory_order_relaxed))
		*len = describe(k, info, cap);
	return *len ? cwop_KernelFunction(id, owner->id) : cwop_KernelGetFunction(id, owner->id, info, cap, len);
}

CUresult cwi_cuKernelGetFunction(CUfunction *func, CUkernel kernel)
{
	struct cw_func *k = get_kernel(kernel), *f;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!func)
		return CUDA_ERROR_INVALID_VALUE;
	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!res)
		res = cw_func_lookup(&k->o, &k->functions, CW_KIND_FUNC, c->o.id, k->name, fetch_function, &f);
	if (!res)
		*func = (CUfunction)f;
	return res;
}

CUresult cwi_cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	struct cw_func *k = get_kernel(kernel);

	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	*library = (CUlibrary)k->owner;
	return CUDA_SUCCESS;
}

CUresult cwi_cuKernelGetName(const char **name, CUkernel kernel)
{
	struct cw_func *k = get_kernel(kernel);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	*name = k->name;
	return CUDA_SUCCESS;
}
