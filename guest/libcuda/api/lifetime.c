/* The end of a context: its streams, events, modules and functions end with it; libraries and
 * kernels stay. */
#include "api/api.h"
#include "api/texture.h"
#include "memory/array.h"
#include "memory/memory.h"

#include <stddef.h>

struct ending {
	uint32_t ctx;
	enum cw_kind kind;
};

static int end_simple(struct cw_obj *o, void *arg)
{
	struct ending *e = arg;

	if (o->ctx == e->ctx)
		cw_handle_free(e->kind, o);
	return 0;
}

/* Modules that the application loaded. */
static int end_module(struct cw_obj *o, void *arg)
{
	struct ending *e = arg;
	struct cw_module *m = (struct cw_module *)o;

	if (o->ctx == e->ctx && !m->library) {
		cw_module_names_free(m);
		cw_handle_free(CW_KIND_MODULE, o);
	}
	return 0;
}

/* A library's module in the context, and its kernels' functions there. */
static int end_in_library(struct cw_obj *o, void *arg)
{
	struct cw_library *l = (struct cw_library *)o;
	struct ending *e = arg;

	for (struct cw_module **at = &l->modules; *at;) {
		struct cw_module *m = *at;

		if (m->o.ctx != e->ctx) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		cw_module_names_free(m);
		cw_handle_free(CW_KIND_MODULE, &m->o);
	}
	for (struct cw_func *k = l->kernels; k; k = k->next) {
		for (struct cw_func **at = &k->functions; *at;) {
			struct cw_func *f = *at;

			if (f->o.ctx != e->ctx) {
				at = &f->next;
				continue;
			}
			*at = f->next;
			f->next = NULL;
			cw_funcs_free(&f);
		}
	}
	return 0;
}

void cw_ctx_objects_gone(struct cw_ctx *c)
{
	struct ending e = {c->o.id, CW_KIND_STREAM};

	cw_limits_forget();
	cw_handle_each(CW_KIND_STREAM, end_simple, &e);
	e.kind = CW_KIND_EVENT;
	cw_handle_each(CW_KIND_EVENT, end_simple, &e);
	cw_lock_acquire(&cw_module_lock);
	cw_handle_each(CW_KIND_MODULE, end_module, &e);
	cw_handle_each(CW_KIND_LIBRARY, end_in_library, &e);
	cw_lock_release(&cw_module_lock);
	cw_textures_context_gone(c->o.id);
	e.kind = CW_KIND_TEXREF;
	cw_handle_each(CW_KIND_TEXREF, end_simple, &e);
	e.kind = CW_KIND_SURFREF;
	cw_handle_each(CW_KIND_SURFREF, end_simple, &e);
	cw_arrays_context_gone(c->o.id);
	cw_memory_context_gone(c->o.id);
}
