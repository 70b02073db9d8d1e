/*
 * Tables that cuBLASLt and cuFFT ask for. What their functions do was learnt by watching calls
 * between those libraries and driver 580 from outside (docs/RATIONALE.md); sizes are that driver's.
 * Functions that no library was seen to call refuse.
 */
#include "api/librarytables.h"

#include "api/api.h"

#include <stdlib.h>
#include <string.h>

typedef void (*slot)(void);
#define SLOT(f) ((slot)(f))

static CUresult refuse(void) { return CUDA_ERROR_NOT_SUPPORTED; }

#define R1 SLOT(refuse)
#define R2 R1, R1
#define R3 R2, R1
#define R4 R2, R2
#define R8 R4, R4
#define R16 R8, R8
#define R64 R16, R16, R16, R16

/* --- contexts and streams as cuBLAS sees them ------------------------------------------------- */

/* Driver 580 writes 1 for a context and 0 for none, and succeeds. */
static CUresult context_question(const void *ctx, uint64_t *out)
{
	if (out)
		*out = ctx != NULL;
	return CUDA_SUCCESS;
}

/* What the driver keeps for a stream. cuBLAS only hands it to stream_number. */
enum { LEGACY = 1, PER_THREAD = 2 }; /* CU_STREAM_LEGACY, CU_STREAM_PER_THREAD */
static uint64_t legacy_object[8], thread_object[8];

static CUresult stream_object(const void *ctx, CUstream stream, const void **object)
{
	uint32_t id;
	CUresult res = cw_check();

	(void)ctx;
	if (res)
		return res;
	if (!object)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_stream_id(stream, 0, &id);
	if (!res)
		*object = id == LEGACY ? legacy_object : id == PER_THREAD ? thread_object : (const void *)stream;
	return res;
}

static CUresult stream_number(const void *ctx, const void *object, unsigned long long *number)
{
	CUstream stream = (CUstream)(uintptr_t)object;

	(void)ctx;
	if (!number)
		return CUDA_ERROR_INVALID_VALUE;
	if (object == legacy_object)
		stream = (CUstream)LEGACY;
	else if (object == thread_object)
		stream = (CUstream)PER_THREAD;
	return cwi_cuStreamGetId(0, stream, number);
}

static const struct {
	size_t size;
	slot fn[92];
} context_question_words = {
	93 * sizeof(slot),
	{R3, SLOT(context_question), R16, R16, R2, SLOT(stream_number), R8, R3, SLOT(stream_object), R16, R16, R8, R1},
};

/* --- where multiprocessors lie ---------------------------------------------------------------- */

/* For the current device: two arrays from malloc, one byte for each pair of multiprocessors, which
 * topology_free takes back. */
static CUresult topology_get(uint8_t **cluster, uint8_t **place)
{
	CUresult res = cw_check();
	uint8_t map[512];
	size_t len = 0;

	if (res)
		return res;
	if (!cluster || !place)
		return CUDA_ERROR_INVALID_VALUE;
	*cluster = *place = NULL;
	res = cwop_DeviceTpcMap(map, sizeof map, &len);
	if (res)
		return res;
	if (len == 0 || len > sizeof map || len % 2)
		return CUDA_ERROR_UNKNOWN;
	*cluster = malloc(len / 2);
	*place = malloc(len / 2);
	if (!*cluster || !*place) {
		free(*cluster);
		free(*place);
		*cluster = *place = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(*cluster, map, len / 2);
	memcpy(*place, map + len / 2, len / 2);
	return CUDA_SUCCESS;
}

static CUresult topology_free(uint8_t *cluster, uint8_t *place)
{
	free(cluster);
	free(place);
	return CUDA_SUCCESS;
}

static const struct {
	size_t size;
	slot fn[16];
} topology_words = {17 * sizeof(slot), {R3, SLOT(topology_get), R8, SLOT(topology_free), R3}};

/* --- the functions of a module ---------------------------------------------------------------- */

typedef void (*visit)(void *user, CUfunction func, const char *name);

/* Calls fn with each function; 1 if there was one. A function's object carries its name
 * (cw_obj). */
static int module_walk(CUcontext ctx, CUmodule module, visit fn, void *user)
{
	unsigned count = 0;
	CUfunction *list;
	int visited = 0;

	(void)ctx;
	if (cw_check() || !fn || cwi_cuModuleGetFunctionCount(&count, module) || count == 0)
		return 0;
	list = calloc(count, sizeof *list);
	if (list && !cwi_cuModuleEnumerateFunctions(list, count, module))
		for (unsigned i = 0; i < count; i++)
			if (list[i]) {
				fn(user, list[i], ((const struct cw_obj *)list[i])->name);
				visited = 1;
			}
	free(list);
	return visited;
}

static const struct {
	size_t size;
	slot fn[98];
} module_walk_words = {99 * sizeof(slot), {R4, R2, SLOT(module_walk), R64, R16, R8, R3}};

const void *const cw_context_question_table = &context_question_words;
const void *const cw_topology_table = &topology_words;
const void *const cw_module_walk_table = &module_walk_words;
