/* Executable graphs. A launch is one record without a reply. */
#include "api/capture.h"
#include "api/callback.h"
#include "api/graph.h"
#include "session/ahead.h"

#include <string.h>

enum { FLAG_UPLOAD = 2, INSTANTIATE_SUCCESS = 0, INSTANTIATE_ERROR = 1 };

static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags, uint32_t form, uint32_t upload, uint32_t *result,
			    uint32_t *node)
{
	struct cw_graph *g = cw_graph_get(graph);
	struct cw_graph_exec *x;
	CUresult res;

	if (!out || !g)
		return CUDA_ERROR_INVALID_VALUE;
	x = (struct cw_graph_exec *)cw_handle_new(CW_KIND_GRAPHEXEC);
	if (!x)
		return CUDA_ERROR_OUT_OF_MEMORY;
	x->flags = flags & ~(uint64_t)FLAG_UPLOAD; /* as the driver reports them */
	res = cwop_GraphInstantiate(x->o.id, g->o.id, form, upload, flags, result, node);
	if (res)
		cw_handle_free(CW_KIND_GRAPHEXEC, &x->o);
	else
		*out = (CUgraphExec)x;
	return res;
}

CUresult cwi_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	return instantiate(exec, graph, flags, CW_GRAPH_FORM_FLAGS, 0, NULL, NULL);
}

/* The first form, which tells the offending node and would explain it in a log; the driver leaves
 * that empty. */
CUresult cwi_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	uint32_t node = 0, result;
	CUresult res = instantiate(exec, graph, 0, CW_GRAPH_FORM_PARAMS, 0, &result, &node);

	if (log && size)
		*log = 0;
	if (error_node)
		*error_node = cw_graph_node_of(node);
	return res;
}

CUresult cwi_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	return cwi_cuGraphInstantiate_v2(exec, graph, error_node, log, size);
}

CUresult cwi_cuGraphInstantiateWithParams(int ptds, CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	uint32_t upload = 0, node = 0, result = INSTANTIATE_ERROR;
	CUresult res;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	if ((p->flags & FLAG_UPLOAD) && (res = cw_stream_id(p->upload, ptds, &upload)))
		return res;
	res = instantiate(exec, graph, p->flags, CW_GRAPH_FORM_PARAMS, upload, &result, &node);
	p->result = res && result == INSTANTIATE_SUCCESS ? INSTANTIATE_ERROR : (int)result;
	p->error_node = cw_graph_node_of(node);
	return res;
}

CUresult cwi_cuGraphExecDestroy(CUgraphExec exec)
{
	struct cw_graph_exec *x = cw_graph_exec_get(exec);
	uint32_t id = x ? x->o.id : 0;

	if (!x || !cw_handle_free(CW_KIND_GRAPHEXEC, &x->o))
		return CUDA_ERROR_INVALID_VALUE;
	return cwop_GraphExecDestroy(id);
}

CUresult cwi_cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
	struct cw_graph_exec *x = cw_graph_exec_get(exec);

	if (!x || !flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = x->flags;
	return CUDA_SUCCESS;
}

static CUresult target(CUgraphExec exec, int ptds, CUstream stream, struct cw_graph_exec **x, uint32_t *id)
{
	*x = cw_graph_exec_get(exec);
	if (cw_unlikely(!*x))
		return CUDA_ERROR_INVALID_VALUE;
	return cw_stream_id(stream, ptds, id);
}

CUresult cwi_cuGraphLaunch(int ptds, CUgraphExec exec, CUstream stream)
{
	struct cw_graph_exec *x;
	uint32_t id;
	CUresult res = target(exec, ptds, stream, &x, &id);

	if (res)
		return res;
	res = cwop_GraphLaunch(x->o.id, id);
	if (cw_unlikely(cw_hostfns_kept()))
		cw_host_in_graph();
	return cw_settle(res, id);
}

CUresult cwi_cuGraphUpload(int ptds, CUgraphExec exec, CUstream stream)
{
	struct cw_graph_exec *x;
	uint32_t id;
	CUresult res = target(exec, ptds, stream, &x, &id);

	return res ? res : cw_settle(cwop_GraphUpload(x->o.id, id), id);
}

/* --- updates ---------------------------------------------------------------------------------- */

CUresult cwi_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	struct cw_graph_exec *x = cw_graph_exec_get(exec);
	struct cw_graph *g = cw_graph_get(graph);
	uint32_t result = 1 /* CU_GRAPH_EXEC_UPDATE_ERROR */, node = 0, from = 0;
	CUresult res;

	if (!x || !g || !info)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_GraphExecUpdate(x->o.id, g->o.id, &result, &node, &from);
	*info = (CUgraphExecUpdateResultInfo){(CUgraphExecUpdateResult)result, cw_graph_node_of(node), cw_graph_node_of(from)};
	return res;
}

CUresult cwi_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *result)
{
	CUgraphExecUpdateResultInfo info = {0};
	CUresult res = cwi_cuGraphExecUpdate_v2(exec, graph, &info);

	if (error_node)
		*error_node = info.node;
	if (result)
		*result = info.result;
	return res;
}

CUresult cwi_cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
	struct cw_graph_exec *x = cw_graph_exec_get(exec);
	struct cw_graph_node *n = cw_graph_node_get(node);

	return x && n ? cwop_GraphNodeSetEnabled(x->o.id, n->o.id, enabled) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
	struct cw_graph_exec *x = cw_graph_exec_get(exec);
	struct cw_graph_node *n = cw_graph_node_get(node);

	return x && n && enabled ? cwop_GraphNodeGetEnabled(x->o.id, n->o.id, enabled) : CUDA_ERROR_INVALID_VALUE;
}

/* --- graph memory ----------------------------------------------------------------------------- */

CUresult cwi_cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attr, void *value)
{
	uint64_t v = 0;
	CUresult res;

	if (!cw_device_get(dev))
		return cw_no_device();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_GraphMemGetAttribute((uint32_t)dev, (uint32_t)attr, &v);
	if (!res)
		memcpy(value, &v, sizeof v);
	return res;
}

CUresult cwi_cuDeviceSetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attr, void *value)
{
	uint64_t v;

	if (!cw_device_get(dev))
		return cw_no_device();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&v, value, sizeof v);
	return cwop_GraphMemSetAttribute((uint32_t)dev, (uint32_t)attr, v);
}

CUresult cwi_cuDeviceGraphMemTrim(CUdevice dev) { return cw_device_get(dev) ? cwop_GraphMemTrim((uint32_t)dev) : cw_no_device(); }
