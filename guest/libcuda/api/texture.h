/* Descriptors of textures and surfaces, with the layouts of the public headers. */
#ifndef CW_API_TEXTURE_H
#define CW_API_TEXTURE_H

#include "api/api.h"

#pragma GCC visibility push(hidden)

enum { CW_RESOURCE_ARRAY = 0, CW_RESOURCE_MIPMAP = 1, CW_RESOURCE_LINEAR = 2, CW_RESOURCE_PITCH2D = 3 };

/* A texture or surface object. The application knows it by the driver's own 64-bit value, which its
 * kernels use. */
struct cw_texture {
	struct cw_obj o;
	uint64_t value;
	struct cw_texture *next; /* of the same hash */
	struct cw_texture_descs *descs;
};
CW_OBJ_FITS(struct cw_texture);

/* A texture or surface reference: of a module, where it has a name, ends with it, and is one object
 * however often it is looked up; or made by cuTexRefCreate. */
struct cw_ref {
	struct cw_obj o;
	struct cw_ref *next; /* of the module */
	char *name;
	CUarray array; /* as they were set */
	CUmipmappedArray mipmap;
};
CW_OBJ_FITS(struct cw_ref);

/* How the worker finds a module's reference. */
typedef CUresult cw_ref_fetch(uint32_t id, uint32_t module, const void *name, size_t len);
/* The reference of this name in a module, fetched at most once. kind: TEXREF or SURFREF. */
CUresult cw_ref_lookup(enum cw_kind kind, struct cw_ref **out, CUmodule module, const char *name, cw_ref_fetch *fetch);

struct cw_texture_descs {
	struct CUDA_RESOURCE_DESC_st resource;
	struct CUDA_TEXTURE_DESC_st texture;
	struct CUDA_RESOURCE_VIEW_DESC_st view;
	int has_view;
};

/* Objects of a kind by value, of the current context before those of others. find and take return
 * NULL if there is none; take removes it from the table and leaves ending it to the caller. read
 * copies what it was made from, under the table's lock. */
/* A texture (CW_KIND_TEX) or surface (CW_KIND_SURF) object of the current context that the worker
 * does not know yet; NULL: no memory. */
struct cw_texture *cw_texture_new(enum cw_kind kind, struct cw_ctx *c, const CUDA_RESOURCE_DESC *resource);
/* Ends one, and answers with its id. */
uint32_t cw_texture_free(enum cw_kind kind, struct cw_texture *t);
/* Takes the object of a value that the application gives back: its id, or 0 if there is none. */
CUresult cw_texture_drop(enum cw_kind kind, uint64_t value, uint32_t *id);
CUresult cw_texture_add(enum cw_kind kind, uint64_t value, struct cw_texture *t);
struct cw_texture *cw_texture_take(enum cw_kind kind, uint64_t value);
int cw_texture_read(enum cw_kind kind, uint64_t value, struct cw_texture_descs *out);
/* The wire's view of a resource: ids of its array, and the descriptor without the handle. */
CUresult cw_texture_resource(const CUDA_RESOURCE_DESC *r, struct CUDA_RESOURCE_DESC_st *plain, uint32_t *array, uint32_t *mipmap);
/* Ends the objects of a context. */
void cw_textures_context_gone(uint32_t ctx);

#pragma GCC visibility pop
#endif
