/* Texture objects. Values come from the worker's driver; what an object was made from is remembered
 * here and answered from here. */
#include "api/texture.h"
#include "memory/array.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024, ADDRESS_BORDER = 3 };

static struct cw_lock lock; /* guards the table and the descriptors of what is in it */
static struct cw_texture *table[BUCKETS];

static struct cw_texture **bucket(uint64_t value) { return &table[(value ^ value >> 10 ^ value >> 32) % BUCKETS]; }

/* Under the lock: where the link to the object is, or NULL. */
static struct cw_texture **locate(enum cw_kind kind, uint64_t value)
{
	struct cw_texture **other = NULL;
	uint32_t ctx = cw_current_ctx_id();

	for (struct cw_texture **at = bucket(value); *at; at = &(*at)->next) {
		if ((*at)->value != value || atomic_load(&(*at)->o.kind) != (uint32_t)kind)
			continue;
		if ((*at)->o.ctx == ctx)
			return at;
		other = at;
	}
	return other;
}

CUresult cw_texture_add(enum cw_kind kind, uint64_t value, struct cw_texture *t)
{
	struct cw_texture **at = bucket(value);

	(void)kind;
	t->value = value;
	cw_lock_acquire(&lock);
	t->next = *at;
	*at = t;
	cw_lock_release(&lock);
	return CUDA_SUCCESS;
}

struct cw_texture *cw_texture_take(enum cw_kind kind, uint64_t value)
{
	struct cw_texture **at, *t = NULL;

	cw_lock_acquire(&lock);
	at = locate(kind, value);
	if (at) {
		t = *at;
		*at = t->next;
	}
	cw_lock_release(&lock);
	return t;
}

int cw_texture_read(enum cw_kind kind, uint64_t value, struct cw_texture_descs *out)
{
	struct cw_texture **at;

	cw_lock_acquire(&lock);
	at = locate(kind, value);
	if (at)
		*out = *(*at)->descs;
	cw_lock_release(&lock);
	return at != NULL;
}

void cw_textures_context_gone(uint32_t ctx)
{
	cw_lock_acquire(&lock);
	for (int i = 0; i < BUCKETS; i++)
		for (struct cw_texture **at = &table[i]; *at;) {
			struct cw_texture *t = *at;

			if (t->o.ctx != ctx) {
				at = &t->next;
				continue;
			}
			*at = t->next;
			free(t->descs);
			cw_handle_free((enum cw_kind)atomic_load(&t->o.kind), &t->o);
		}
	cw_lock_release(&lock);
}

struct cw_texture *cw_texture_new(enum cw_kind kind, struct cw_ctx *c, const CUDA_RESOURCE_DESC *resource)
{
	struct cw_texture *t = (struct cw_texture *)cw_handle_new(kind);

	if (!t)
		return NULL;
	t->o.ctx = c->o.id;
	t->descs = calloc(1, sizeof *t->descs);
	if (!t->descs) {
		cw_handle_free(kind, &t->o);
		return NULL;
	}
	t->descs->resource = *resource;
	return t;
}

uint32_t cw_texture_free(enum cw_kind kind, struct cw_texture *t)
{
	uint32_t id = t->o.id;

	free(t->descs);
	cw_handle_free(kind, &t->o);
	return id;
}

CUresult cw_texture_drop(enum cw_kind kind, uint64_t value, uint32_t *id)
{
	struct cw_texture *t;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	*id = 0;
	if (!res && (t = cw_texture_take(kind, value)))
		*id = cw_texture_free(kind, t);
	return res;
}

CUresult cw_texture_resource(const CUDA_RESOURCE_DESC *r, struct CUDA_RESOURCE_DESC_st *plain, uint32_t *array, uint32_t *mipmap)
{
	struct cw_array *a;
	struct cw_mipmap *m;

	*array = *mipmap = 0;
	memcpy(plain, r, sizeof *plain);
	switch (r->type) {
	case CW_RESOURCE_ARRAY:
		a = cw_array_get(r->res.handle);
		if (!a)
			return CUDA_ERROR_INVALID_VALUE;
		*array = a->o.id;
		break;
	case CW_RESOURCE_MIPMAP:
		m = cw_mipmap_get(r->res.handle);
		if (!m)
			return CUDA_ERROR_INVALID_VALUE;
		*mipmap = m->o.id;
		break;
	case CW_RESOURCE_LINEAR:
	case CW_RESOURCE_PITCH2D: return CUDA_SUCCESS;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	memset(&plain->res, 0, sizeof plain->res);
	return CUDA_SUCCESS;
}

CUresult cwi_cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
			       const CUDA_RESOURCE_VIEW_DESC *view)
{
	struct CUDA_RESOURCE_DESC_st plain;
	uint32_t array, mipmap;
	uint64_t value = 0;
	struct cw_texture *t;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out || !resource || !texture)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_texture_resource(resource, &plain, &array, &mipmap);
	if (res)
		return res;
	t = cw_texture_new(CW_KIND_TEX, c, resource);
	if (!t)
		return CUDA_ERROR_OUT_OF_MEMORY;
	t->descs->texture = *texture;
	t->descs->has_view = view != NULL;
	if (view)
		t->descs->view = *view;
	res = cwop_TexObjectCreate(t->o.id, array, mipmap, &plain, sizeof plain, texture, sizeof *texture, view, view ? sizeof *view : 0,
				   &value);
	if (res) {
		cw_texture_free(CW_KIND_TEX, t);
		return res;
	}
	*out = value;
	return cw_texture_add(CW_KIND_TEX, value, t);
}

CUresult cwi_cuTexObjectDestroy(CUtexObject object)
{
	uint32_t id;
	CUresult res = cw_texture_drop(CW_KIND_TEX, object, &id);

	/* an object that is not there: success, as the real driver answers */
	return res || !id ? res : cwop_TexObjectDestroy(id);
}

CUresult cwi_cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject object)
{
	struct cw_texture_descs d;

	if (!out || !cw_texture_read(CW_KIND_TEX, object, &d))
		return CUDA_ERROR_INVALID_VALUE;
	*out = d.resource;
	return CUDA_SUCCESS;
}

CUresult cwi_cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject object)
{
	struct cw_texture_descs d;

	if (!out || !cw_texture_read(CW_KIND_TEX, object, &d))
		return CUDA_ERROR_INVALID_VALUE;
	/* The real driver leaves the reserved tail as it was, and the border colour where none is
	 * used. */
	int border =
		d.texture.address[0] == ADDRESS_BORDER || d.texture.address[1] == ADDRESS_BORDER || d.texture.address[2] == ADDRESS_BORDER;
	memcpy(out, &d.texture, border ? offsetof(struct CUDA_TEXTURE_DESC_st, reserved) : offsetof(struct CUDA_TEXTURE_DESC_st, border));
	return CUDA_SUCCESS;
}

CUresult cwi_cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject object)
{
	struct cw_texture_descs d;

	if (!out || !cw_texture_read(CW_KIND_TEX, object, &d))
		return CUDA_ERROR_INVALID_VALUE;
	if (d.has_view) /* else untouched, as by the real driver */
		*out = d.view;
	return CUDA_SUCCESS;
}
