/*
 * cuGetExportTable: tables of functions beside the public interface, by which the runtime library
 * and cuBLAS find the driver. Each table's first word is its size in bytes, except in context-local
 * storage, which ends with a zero word. Sizes are those of driver 580; every word is a callable
 * function, because a library that calls an empty one would crash. The tables that profilers ask
 * for are not given: they then report that profiling is unavailable.
 */
#include "api/api.h"
#include "api/compilecache.h"
#include "api/integrity.h"
#include "api/librarytables.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*slot)(void);
#define SLOT(f) ((slot)(f))

/* A size word and its functions. */
#define TABLE(name, words) \
	static const struct { \
		size_t size; \
		slot fn[(words) - 1]; \
	} name = {(words) * sizeof(slot),

static CUresult refuse(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void nothing(void) {}

/* --- the runtime's own interface -------------------------------------------------------------- */

static CUresult load_wrapper(CUmodule *module, const void *wrapper)
{
	CUresult res = cw_check();

	return res ? res : cw_module_load(module, wrapper, 0, NULL, NULL);
}

static CUresult load_wrapper_options(CUmodule *module, const void *wrapper, const int *options, void **values, unsigned count)
{
	CUresult res = cw_check();

	return res ? res : cw_module_load(module, wrapper, count, options, values);
}

static CUresult load_fatbin(const void *fatbin, CUmodule *module, const int *options, void **values, unsigned count)
{
	return load_wrapper_options(module, fatbin, options, values, count);
}

/* The primary context's handle, neither retained nor made current. */
static CUresult primary_handle(CUcontext *ctx, CUdevice dev)
{
	CUresult res = cw_check_alive();
	struct cw_device *d;
	struct cw_ctx *c;

	if (res)
		return res;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	d = cw_device_get(dev);
	if (!d)
		return cw_no_device();
	c = cw_ctx_primary(d);
	*ctx = (CUcontext)c;
	return c ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A launch whose arguments are packed. */
static CUresult launch_packed(CUfunction func, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			      unsigned shared, CUstream stream, void **extra)
{
	CUresult res = cw_check();

	return res ? res : cwi_cuLaunchKernel(0, func, gx, gy, gz, bx, by, bz, shared, stream, NULL, extra);
}

/* Compilers are the worker's business: there is nothing to load here. */
static CUresult load_compilers(void) { return CUDA_SUCCESS; }

TABLE(cudart_interface, 13)
{
	SLOT(load_wrapper), SLOT(primary_handle), SLOT(refuse), SLOT(refuse), SLOT(refuse), SLOT(load_wrapper_options), SLOT(nothing),
		SLOT(load_fatbin), SLOT(launch_packed), SLOT(refuse), SLOT(refuse), SLOT(load_compilers),
}
}
;

/* --- hooks for tools: none is ever attached --------------------------------------------------- */

enum { CALLBACK_IDS = 1024, RESOURCE_EVENTS = 14 };

/* One 32-bit flag for each callback id and each resource event. */
static uint32_t callback_flags[CALLBACK_IDS];
static uint32_t resource_flags[RESOURCE_EVENTS];

static void get_callback_flags(void **flags, size_t *count)
{
	*flags = callback_flags;
	*count = CALLBACK_IDS;
}

static void get_resource_flags(void **flags, size_t *count)
{
	*flags = resource_flags;
	*count = RESOURCE_EVENTS;
}

TABLE(callback_hooks, 7) { SLOT(nothing), SLOT(get_callback_flags), SLOT(nothing), SLOT(nothing), SLOT(nothing), SLOT(get_resource_flags), }
}
;

/* A tool's thread-local value: 0, no tool. */
static CUresult tls_get(uint64_t *out)
{
	if (out)
		*out = 0;
	return CUDA_SUCCESS;
}

static CUresult tls_object(void *object)
{
	(void)object;
	return CUDA_SUCCESS;
}

TABLE(tools_tls, 3) { SLOT(tls_object), SLOT(tls_get) }
}
;

/* --- contexts --------------------------------------------------------------------------------- */

static const slot context_storage[4] = {SLOT(cw_cls_put), SLOT(cw_cls_delete), SLOT(cw_cls_get), NULL};

/* Does the context wrap another one? Ours never do. */
static CUresult context_check(CUcontext ctx, uint32_t *flag, void **other)
{
	(void)ctx;
	if (flag)
		*flag = 0;
	if (other)
		*other = NULL;
	return CUDA_SUCCESS;
}

static uint32_t context_switch_mode(void) { return 0; }

TABLE(context_checks, 15)
{
	SLOT(refuse), SLOT(context_check), SLOT(context_switch_mode), SLOT(refuse), SLOT(refuse), SLOT(refuse), SLOT(refuse), SLOT(refuse),
		SLOT(refuse), SLOT(refuse), SLOT(refuse), SLOT(refuse), SLOT(refuse), SLOT(refuse),
}
}
;

/* --- integrity -------------------------------------------------------------------------------- */

#ifndef CAUSEWAY_NO_INTEGRITY

static CUresult integrity_answer(uint32_t version, uint64_t seconds, uint64_t out[2]);

TABLE(integrity_check, 3) { SLOT(integrity_answer), SLOT(refuse) }
}
;

static CUresult integrity_answer(uint32_t version, uint64_t seconds, uint64_t out[2])
{
	CUresult res = cw_check_alive();
	struct cw_integrity_device *list;
	struct cw_integrity_process p;
	int count = cw_device_count();

	if (res)
		return res;
	list = calloc((size_t)count + 1, sizeof *list);
	if (!list)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (int i = 0; i < count; i++) {
		const struct cw_device *d = cw_device_get(i);

		memcpy(list[i].uuid, d->info->uuid, sizeof list[i].uuid);
		list[i].pci_domain = (uint32_t)cw_device_attr(d, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
		list[i].pci_bus = (uint32_t)cw_device_attr(d, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
		list[i].pci_device = (uint32_t)cw_device_attr(d, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
	}
	p = (struct cw_integrity_process){
		.driver_version = (uint32_t)cw_session_info()->driver_version,
		.version = version,
		.pid = (uint32_t)getpid(),
		.thread = (uint32_t)(uintptr_t)pthread_self(),
		.cudart_table = (uint64_t)(uintptr_t)&cudart_interface,
		.integrity_table = (uint64_t)(uintptr_t)&integrity_check,
		.function = (uint64_t)(uintptr_t)integrity_answer,
		.seconds = seconds,
	};
	cw_integrity_digest(&p, list, (uint32_t)count, out);
	free(list);
	return CUDA_SUCCESS;
}

#endif

/* --- the call --------------------------------------------------------------------------------- */

static const struct {
	uint8_t id[16];
	const void *table;
} runtime_tables[] = {
	{{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, &cudart_interface},
	{{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, &callback_hooks},
	{{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, &tools_tls},
	{{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, context_storage},
	{{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, &context_checks},
#ifndef CAUSEWAY_NO_INTEGRITY
	{{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}, &integrity_check},
#endif
};

static const struct {
	uint8_t id[16];
	const void *const *table;
} library_tables[] = {
	{{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}, &cw_context_question_table},
	{{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca}, &cw_topology_table},
	{{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e}, &cw_module_walk_table},
	{{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28}, &cw_compile_cache_table},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const void *find_table(const CUuuid *id)
{
	for (size_t i = 0; i < COUNT(runtime_tables); i++)
		if (!memcmp(runtime_tables[i].id, id, sizeof runtime_tables[i].id))
			return runtime_tables[i].table;
	for (size_t i = 0; i < COUNT(library_tables); i++)
		if (!memcmp(library_tables[i].id, id, sizeof library_tables[i].id))
			return *library_tables[i].table;
	return NULL;
}

/* Works before cuInit. An unknown id: CUDA_ERROR_INVALID_VALUE, and NULL in the result. */
CUresult cwi_cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = find_table(id);
	if (!*table && cw_log_enabled(CW_LOG_INFO)) {
		const uint8_t *b = (const uint8_t *)id;

		cw_log(CW_LOG_INFO, "cuGetExportTable: no table %02x%02x%02x%02x%02x%02x...", b[0], b[1], b[2], b[3], b[4], b[5]);
	}
	return *table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
