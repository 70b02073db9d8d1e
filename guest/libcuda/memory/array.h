/* Arrays and mipmapped arrays: their objects, and what copies and textures ask of them. Layouts are
 * those of the public headers. */
#ifndef CW_MEMORY_ARRAY_H
#define CW_MEMORY_ARRAY_H

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

/* An array of its own, a level of a mipmapped array, or a plane of another array. Levels and planes
 * end with what they are part of, and hang in its list. */
struct cw_array {
	struct cw_obj o;
	struct CUDA_ARRAY3D_DESCRIPTOR_st desc;
	struct cw_obj *owner; /* NULL: its own */
	struct cw_array *next, *parts;
	uint32_t index; /* level or plane */
};
CW_OBJ_FITS(struct cw_array);

struct cw_mipmap {
	struct cw_obj o;
	struct CUDA_ARRAY3D_DESCRIPTOR_st desc;
	struct cw_array *levels;
	uint32_t count;
};
CW_OBJ_FITS(struct cw_mipmap);

/* The array behind a handle, NULL if it is none. */
static inline struct cw_array *cw_array_get(const void *handle) { return (struct cw_array *)cw_handle_get(CW_KIND_ARRAY, handle); }
static inline struct cw_mipmap *cw_mipmap_get(const void *handle) { return (struct cw_mipmap *)cw_handle_get(CW_KIND_MIPMAP, handle); }

/* Bytes of an element; 0 for formats whose elements are not addressed one by one (blocks,
 * planes). */
uint32_t cw_array_element(const struct CUDA_ARRAY3D_DESCRIPTOR_st *d);
/* Whether a box (x and width in bytes) lies within the array: 0, or CUDA_ERROR_INVALID_VALUE. */
CUresult cw_array_holds(const struct cw_array *a, uint64_t x, uint64_t y, uint64_t z, uint64_t width, uint64_t height, uint64_t depth);
/* Ends the arrays of a context on the guest's side. */
void cw_arrays_context_gone(uint32_t ctx);

#pragma GCC visibility pop
#endif
