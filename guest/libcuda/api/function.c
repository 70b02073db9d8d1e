/* Functions and kernels: lookup, attributes, parameter layout. Attributes are answered from what
 * the lookup brought. */
#include "api/api.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { INFO_PARAMS_MAX = CW_PARAM_BYTES_MAX, INFO_HEAD = 104 };

/* --- lookup ----------------------------------------------------------------------------------- */

_Static_assert(sizeof(struct cw_function_info) == INFO_HEAD, "FuncInfo on the wire");
_Static_assert(sizeof(struct cw_param_info) == sizeof(struct cw_param), "ParamInfo on the wire");

struct cw_func_info *cw_func_info_parse(const void *p, size_t len)
{
	struct cw_function_info w;
	struct cw_func_info *info;

	if (len < sizeof w)
		return NULL;
	memcpy(&w, p, sizeof w);
	if (w.attr_count > 24 || w.param_count > INFO_PARAMS_MAX || len < sizeof w + (size_t)w.param_count * sizeof(struct cw_param))
		return NULL;
	info = calloc(1, sizeof *info + (size_t)w.param_count * sizeof(struct cw_param));
	if (!info)
		return NULL;
	info->attr_count = w.attr_count;
	info->param_count = w.param_count;
	for (uint32_t i = 0; i < w.attr_count; i++)
		atomic_store_explicit(&info->attrs[i], w.attrs[i], memory_order_relaxed);
	memcpy(info->params, (const uint8_t *)p + sizeof w, (size_t)w.param_count * sizeof(struct cw_param));
	for (uint32_t i = 0; i < w.param_count; i++) {
		const struct cw_param *q = &info->params[i];

		if (q->offset > CW_PARAM_BYTES_MAX || q->size > CW_PARAM_BYTES_MAX - q->offset) {
			free(info);
			return NULL;
		}
		if (q->offset + q->size > info->param_bytes)
			info->param_bytes = q->offset + q->size;
	}
	return info;
}

/* Called with cw_module_lock held, which also guards the buffer (pages of it are touched as far as
 * replies reach). */
static CUresult fetch_new(struct cw_obj *owner, enum cw_kind kind, uint32_t ctx, const char *name, cw_func_fetch *fetch,
			  struct cw_func **out)
{
	static uint8_t info[INFO_HEAD + (size_t)INFO_PARAMS_MAX * sizeof(struct cw_param)];
	struct cw_func *f = (struct cw_func *)cw_handle_alloc();
	struct cw_ctx *here;
	size_t len = 0;
	CUresult res;

	if (!f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->o.ctx = ctx;
	f->owner = owner;
	f->device = cw_ctx_current(&here) == CUDA_SUCCESS ? here->device->ordinal : 0;
	res = fetch(owner, f->o.id, name, info, sizeof info, &len);
	if (!res) {
		f->info = cw_func_info_parse(info, len < sizeof info ? len : sizeof info);
		f->o.name = f->name = strdup(name);
		if (!f->info || !f->name)
			res = CUDA_ERROR_OUT_OF_MEMORY;
		else
			cw_limits_kernel(cw_func_attr(f, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
	}
	cw_handle_publish(&f->o, kind);
	if (res) {
		free(f->info);
		free(f->name);
		cw_handle_free(kind, &f->o);
	} else {
		*out = f;
	}
	return res;
}

CUresult cw_func_lookup(struct cw_obj *owner, struct cw_func **list, enum cw_kind kind, uint32_t ctx, const char *name,
			cw_func_fetch *fetch, struct cw_func **out)
{
	CUresult res = CUDA_SUCCESS;
	struct cw_func *f;

	cw_lock_acquire(&cw_module_lock);
	for (f = *list; f && (f->o.ctx != ctx || strcmp(f->name, name)); f = f->next)
		;
	if (!f) {
		res = fetch_new(owner, kind, ctx, name, fetch, &f);
		if (!res) {
			f->next = *list;
			*list = f;
		}
	}
	cw_lock_release(&cw_module_lock);
	if (!res)
		*out = f;
	return res;
}

void cw_funcs_free(struct cw_func **list)
{
	while (*list) {
		struct cw_func *f = *list;
		enum cw_kind kind = (enum cw_kind)atomic_load(&f->o.kind);

		*list = f->next;
		free(f->name);
		free(f->info);
		free(f->legacy);
		cw_handle_free(kind, &f->o);
	}
}

/* --- attributes ------------------------------------------------------------------------------- */

static int settable(int attr)
{
	return attr == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || attr == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ||
	       (attr >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH && attr <= CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
}

CUresult cwi_cuFuncGetAttribute(int *value, CUfunction_attribute attr, CUfunction func)
{
	struct cw_func *f = cw_func_get(func);

	if (!value || (unsigned)attr >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if ((uint32_t)attr >= f->info->attr_count)
		return CUDA_ERROR_INVALID_VALUE;
	*value = cw_func_attr(f, (int)attr);
	return CUDA_SUCCESS;
}

/* CUTLASS and what is built on it set an attribute before each launch, to what it is: that asks
 * nobody. Only what was set on this very object counts: until then it follows another's, which to
 * set it ends. */
static int is_set(struct cw_func *f, int attr, int value, int dev)
{
	return dev == f->device && !atomic_load_explicit(&f->mixed, memory_order_relaxed) &&
	       atomic_load_explicit(&f->set, memory_order_acquire) >> attr & 1 &&
	       atomic_load_explicit(&f->info->attrs[attr], memory_order_relaxed) == value;
}

/* changed: it is not what it was. */
static CUresult set_attribute(struct cw_func *f, int attr, int value, int dev, int *changed)
{
	CUresult res;

	*changed = 0;
	if (!settable(attr))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_set(f, attr, value, dev))
		return CUDA_SUCCESS;
	if (dev != f->device)
		atomic_store_explicit(&f->mixed, 1, memory_order_relaxed);
	res = cwop_FuncSetAttribute(f->o.id, attr, value, dev);
	if (!res) {
		atomic_store_explicit(&f->info->attrs[attr], value, memory_order_relaxed);
		atomic_fetch_or_explicit(&f->set, 1u << attr, memory_order_release);
		cw_occupancy_forget(f->o.id);
		*changed = 1;
	}
	return res;
}

CUresult cwi_cuFuncSetAttribute(CUfunction func, CUfunction_attribute attr, int value)
{
	struct cw_func *f = cw_func_get(func);
	struct cw_ctx *c;
	int changed;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	return f ? set_attribute(f, (int)attr, value, c->device->ordinal, &changed) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cwi_cuFuncSetCacheConfig(CUfunction func, CUfunc_cache config)
{
	struct cw_func *f = cw_func_get(func);

	if ((unsigned)config > 3)
		return CUDA_ERROR_INVALID_VALUE;
	return f ? cwop_FuncSetCacheConfig(f->o.id, (uint32_t)config) : CUDA_ERROR_INVALID_HANDLE;
}

/* Bank width has been fixed since Maxwell; a real driver accepts the request. */
CUresult cwi_cuFuncSetSharedMemConfig(CUfunction func, CUsharedconfig config)
{
	if ((unsigned)config > 2)
		return CUDA_ERROR_INVALID_VALUE;
	return cw_func_get(func) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static struct cw_func *get_kernel(CUkernel kernel) { return (struct cw_func *)cw_handle_get(CW_KIND_KERNEL, kernel); }

/* A kernel's attributes are per device; with one device, what the lookup brought holds. */
CUresult cwi_cuKernelGetAttribute(int *value, CUfunction_attribute attr, CUkernel kernel, CUdevice dev)
{
	struct cw_func *k = get_kernel(kernel);

	if (!value || (unsigned)attr >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!cw_device_get(dev))
		return cw_no_device();
	if (cw_device_count() > 1)
		return cwop_FuncGetAttribute(k->o.id, (int)attr, dev, value);
	return cwi_cuFuncGetAttribute(value, attr, (CUfunction)kernel);
}

/* The kernel's functions follow it, unless an attribute was set on the function itself: the worker
 * is asked. */
CUresult cwi_cuKernelSetAttribute(CUfunction_attribute attr, int value, CUkernel kernel, CUdevice dev)
{
	struct cw_func *k = get_kernel(kernel);
	CUresult res;
	int changed;

	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!cw_device_get(dev))
		return cw_no_device();
	res = set_attribute(k, (int)attr, value, dev, &changed);
	if (!changed)
		return res;
	cw_lock_acquire(&cw_module_lock);
	for (struct cw_func *f = k->functions; f; f = f->next) {
		int now = 0;

		if (cwop_FuncGetAttribute(f->o.id, (int)attr, dev, &now) == CUDA_SUCCESS)
			atomic_store_explicit(&f->info->attrs[attr], now, memory_order_relaxed);
		cw_occupancy_forget(f->o.id);
	}
	cw_lock_release(&cw_module_lock);
	return CUDA_SUCCESS;
}

CUresult cwi_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
	struct cw_func *k = get_kernel(kernel);

	if ((unsigned)config > 3)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_device_get(dev))
		return cw_no_device();
	return k ? cwop_FuncSetCacheConfig(k->o.id, (uint32_t)config) : CUDA_ERROR_INVALID_HANDLE;
}

/* --- layout and names ------------------------------------------------------------------------- */

static CUresult param_info(const struct cw_func *f, size_t index, size_t *offset, size_t *size)
{
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!offset || index >= f->info->param_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = f->info->params[index].offset;
	if (size)
		*size = f->info->params[index].size;
	return CUDA_SUCCESS;
}

CUresult cwi_cuFuncGetParamInfo(CUfunction func, size_t index, size_t *offset, size_t *size)
{
	return param_info((struct cw_func *)cw_handle_get(CW_KIND_FUNC, func), index, offset, size);
}

CUresult cwi_cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
	return param_info(get_kernel(kernel), index, offset, size);
}

CUresult cwi_cuFuncGetName(const char **name, CUfunction func)
{
	struct cw_func *f = cw_func_get(func);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	*name = f->name;
	return CUDA_SUCCESS;
}

CUresult cwi_cuFuncGetModule(CUmodule *module, CUfunction func)
{
	struct cw_func *f = cw_func_get(func);
	struct cw_obj *owner;
	struct cw_module *m;
	CUresult res;

	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	owner = f->owner;
	if (atomic_load(&owner->kind) == CW_KIND_MODULE) {
		*module = (CUmodule)owner;
		return CUDA_SUCCESS;
	}
	if (atomic_load(&owner->kind) == CW_KIND_KERNEL)
		owner = ((struct cw_func *)owner)->owner;
	res = cw_library_module((struct cw_library *)owner, &m);
	if (!res)
		*module = (CUmodule)m;
	return res;
}

/* The worker loads a function when it is looked up (its attributes are read then). */
CUresult cwi_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction func)
{
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_func_get(func))
		return CUDA_ERROR_INVALID_HANDLE;
	*state = (CUfunctionLoadingState)1;
	return CUDA_SUCCESS;
}

CUresult cwi_cuFuncLoad(CUfunction func) { return cw_func_get(func) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
