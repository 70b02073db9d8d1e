/* User objects: counted by the worker's driver; the destructor is a host function of ours, run once
 * by the callback thread. */
#include "api/callback.h"
#include "api/graph.h"

static struct cw_obj *get(CUuserObject object) { return cw_handle_get(CW_KIND_USEROBJ, object); }

CUresult cwi_cuUserObjectCreate(CUuserObject *out, void *ptr, CUhostFn destroy, unsigned int count, unsigned int flags)
{
	struct cw_obj *u;
	uint64_t id;
	CUresult res;

	if (!out || !destroy || count == 0 || count > INT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	u = cw_handle_new(CW_KIND_USEROBJ);
	if (!u)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cw_hostfn_new(destroy, ptr, 0, &id);
	if (!res && (res = cwop_UserObjectCreate(u->id, id, count, flags)))
		cw_hostfn_drop(id);
	if (res)
		cw_handle_free(CW_KIND_USEROBJ, u);
	else
		*out = (CUuserObject)u;
	return res;
}

/* How many of the references that the application gives up end the object, the worker's driver
 * knows; handles are few and stay. */
static CUresult count(CUuserObject object, unsigned n, uint32_t release)
{
	struct cw_obj *u = get(object);

	if (!u || n == 0 || n > INT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return cwop_UserObjectCount(u->id, release, n);
}

CUresult cwi_cuUserObjectRetain(CUuserObject object, unsigned int n) { return count(object, n, 0); }

CUresult cwi_cuUserObjectRelease(CUuserObject object, unsigned int n) { return count(object, n, 1); }

CUresult cwi_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int n, unsigned int flags)
{
	struct cw_obj *u = get(object);
	struct cw_graph *g = cw_graph_get(graph);

	if (!u || !g || n == 0 || n > INT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return cwop_GraphUserObject(g->o.id, u->id, 0, n, flags);
}

CUresult cwi_cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int n)
{
	struct cw_obj *u = get(object);
	struct cw_graph *g = cw_graph_get(graph);

	if (!u || !g || n == 0 || n > INT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return cwop_GraphUserObject(g->o.id, u->id, 1, n, 0);
}
