/* References that modules name. */
#include "api/texture.h"

#include <stdlib.h>
#include <string.h>

/* Called with cw_module_lock held. */
static CUresult fetch_new(struct cw_module *m, enum cw_kind kind, const char *name, cw_ref_fetch *fetch, struct cw_ref **out)
{
	struct cw_ref *r = (struct cw_ref *)cw_handle_alloc();
	char *copy = strdup(name);
	CUresult res = CUDA_ERROR_OUT_OF_MEMORY;

	if (r) {
		r->o.ctx = m->o.ctx;
		r->name = copy;
		cw_handle_publish(&r->o, kind);
		if (copy)
			res = fetch(r->o.id, m->o.id, name, strlen(name));
		if (!res) {
			r->next = m->refs;
			*out = m->refs = r;
			return res;
		}
		cw_handle_free(kind, &r->o);
	}
	free(copy);
	return res;
}

CUresult cw_ref_lookup(enum cw_kind kind, struct cw_ref **out, CUmodule module, const char *name, cw_ref_fetch *fetch)
{
	struct cw_module *m = (struct cw_module *)cw_handle_get(CW_KIND_MODULE, module);
	struct cw_ref *r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	cw_lock_acquire(&cw_module_lock);
	for (r = m->refs; r && (atomic_load(&r->o.kind) != (uint32_t)kind || strcmp(r->name, name)); r = r->next)
		;
	if (!r)
		res = fetch_new(m, kind, name, fetch, &r);
	cw_lock_release(&cw_module_lock);
	if (!res)
		*out = r;
	return res;
}

void cw_module_names_free(struct cw_module *m)
{
	cw_funcs_free(&m->funcs);
	while (m->refs) {
		struct cw_ref *r = m->refs;

		m->refs = r->next;
		free(r->name);
		cw_handle_free((enum cw_kind)atomic_load(&r->o.kind), &r->o);
	}
}
