/*
 * Stream capture. While nothing captures, what libraries ask all the time is answered here, without
 * a request: cw_captures counts the captures that this process began and did not end. While
 * something does, the worker is asked, because a stream also joins a capture by waiting for an
 * event, and asynchronous operations are followed by a fence: their errors belong to their calls.
 */
#include "api/capture.h"
#include "api/graph.h"

#include <stdlib.h>
#include <string.h>

enum { STATUS_ACTIVE = 1, STATUS_INVALIDATED = 2, MODE_GLOBAL = 0, MODE_RELAXED = 2 };

_Atomic uint32_t cw_captures;

/* The calling thread's mode, which the worker learns when it changes. */
static __thread int thread_mode = MODE_GLOBAL;

static int quiet(void) { return cw_likely(!cw_capture_any()); }

CUresult cw_capture_settle(CUresult res) { return res ? res : cwop_CaptureSettle(); }

CUresult cw_capture_status(uint32_t stream, int *active)
{
	uint32_t status = 0;
	CUresult res = cwop_StreamCaptureInfo(stream, 0, 0, NULL, 0, &status, NULL, NULL, NULL, NULL, 0, NULL);

	*active = status == STATUS_ACTIVE;
	return !res && status == STATUS_INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : res;
}

/* --- beginning and ending --------------------------------------------------------------------- */

static CUresult begin(int ptds, CUstream stream, const struct cw_graph *g, const CUgraphNode *deps, const CUgraphEdgeData *edges,
		      size_t count, CUstreamCaptureMode mode)
{
	uint32_t id, *ids = NULL;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!res)
		res = cw_stream_id(stream, ptds, &id);
	if (res)
		return res;
	if ((unsigned)mode > MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if ((res = cw_graph_ids(g, deps, count, &ids)))
		return res;
	/* counted before it begins: nothing may look like no capture meanwhile */
	atomic_fetch_add(&cw_captures, 1);
	res = cwop_StreamBeginCapture(id, (uint32_t)mode, g ? g->o.id : 0, ids, count * sizeof *ids, edges, cw_edge_bytes(edges, count));
	if (res)
		atomic_fetch_sub(&cw_captures, 1);
	free(ids);
	return res;
}

CUresult cwi_cuStreamBeginCapture(int ptds, CUstream stream)
{
	return begin(ptds, stream, NULL, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cwi_cuStreamBeginCapture_v2(int ptds, CUstream stream, CUstreamCaptureMode mode)
{
	return begin(ptds, stream, NULL, NULL, NULL, 0, mode);
}

CUresult cwi_cuStreamBeginCaptureToGraph(int ptds, CUstream stream, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
					 size_t count, CUstreamCaptureMode mode)
{
	struct cw_graph *g = cw_graph_get(graph);

	if (!g || (count && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	return begin(ptds, stream, g, deps, edges, count, mode);
}

CUresult cwi_cuStreamEndCapture(int ptds, CUstream stream, CUgraph *graph)
{
	struct cw_graph *fresh = NULL, *g;
	uint32_t id, got = 0, ended = 0;
	CUresult res = cw_stream_id(stream, ptds, &id);

	if (res)
		return res;
	if (graph) {
		/* Without, a graph that the application began the capture into, or has seen, stays
		 * its own. */
		*graph = NULL;
		fresh = cw_graph_fresh();
		if (!fresh)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	res = cwop_StreamEndCapture(id, fresh ? fresh->o.id : 0, &got, &ended);
	if (ended)
		atomic_fetch_sub(&cw_captures, 1);
	if (!res && fresh && got == fresh->o.id) {
		cw_graph_publish(fresh, NULL);
		*graph = (CUgraph)fresh;
		return CUDA_SUCCESS;
	}
	if (fresh)
		cw_graph_discard(&fresh->o);
	g = (struct cw_graph *)cw_handle_by_id(CW_KIND_GRAPH, got);
	if (!res && graph)
		*graph = (CUgraph)g;
	else if (res && g) /* seen while it was captured, gone with the capture */
		cw_graph_free(g);
	return res;
}

/* --- questions -------------------------------------------------------------------------------- */

/* Until the thread's next question. */
static __thread struct {
	size_t cap;
	CUgraphNode *nodes;
	CUgraphEdgeData *edges;
} answer;

static CUresult answer_room(size_t n)
{
	if (n <= answer.cap)
		return CUDA_SUCCESS;
	CUgraphNode *nodes = realloc(answer.nodes, n * sizeof *nodes);
	if (nodes)
		answer.nodes = nodes;
	CUgraphEdgeData *edges = realloc(answer.edges, n * sizeof *edges);
	if (edges)
		answer.edges = edges;
	if (!nodes || !edges)
		return CUDA_ERROR_OUT_OF_MEMORY;
	answer.cap = n;
	return CUDA_SUCCESS;
}

struct info {
	uint32_t status, graph;
	uint64_t id;
	size_t count;
	int ported; /* an edge is not a plain one */
};

/* What the worker knows, with the graph and dependencies in answer. */
static CUresult ask(uint32_t stream, struct info *out)
{
	struct cw_graph *fresh = cw_graph_fresh(), *g = NULL;
	struct cw_graph_list l = {0};
	CUresult res = fresh ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	while (!res) {
		uint32_t unnamed = 0;
		size_t len = 0;
		res = cwop_StreamCaptureInfo(stream, CW_CAPTURE_WANT_GRAPH, fresh->o.id, l.names, cw_graph_names_bytes(&l), &out->status,
					     &out->graph, &out->id, &unnamed, l.edge, cw_graph_list_bytes(&l), &len);
		if (res)
			break;
		if (!g && out->graph == fresh->o.id) {
			cw_graph_publish(fresh, NULL);
			g = fresh;
		} else if (!g) {
			g = (struct cw_graph *)cw_handle_by_id(CW_KIND_GRAPH, out->graph);
		}
		int more = cw_graph_list_more(&l, len, unnamed, g);
		if (more < 0)
			res = CUDA_ERROR_OUT_OF_MEMORY;
		if (more <= 0)
			break;
	}
	if (!res)
		res = answer_room(l.count);
	for (size_t i = 0; !res && i < l.count; i++) {
		static const uint8_t plain[8];
		answer.nodes[i] = cw_graph_node_of(l.edge[i].from);
		memcpy(&answer.edges[i], l.edge[i].data, sizeof answer.edges[i]);
		out->ported |= memcmp(l.edge[i].data, plain, sizeof plain) != 0;
	}
	out->count = l.count;
	cw_graph_list_free(&l);
	if (fresh && fresh != g)
		cw_graph_discard(&fresh->o);
	return res;
}

/* want: also the graph and dependencies. */
static CUresult look(int ptds, CUstream stream, CUstreamCaptureStatus *out, int want, struct info *info)
{
	uint32_t id;
	CUresult res = cw_stream_id(stream, ptds, &id);

	memset(info, 0, sizeof *info);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res && !quiet())
		res = want ? ask(id, info) : cwop_StreamCaptureInfo(id, 0, 0, NULL, 0, &info->status, NULL, &info->id, NULL, NULL, 0, NULL);
	if (!res)
		*out = (CUstreamCaptureStatus)info->status;
	return res;
}

CUresult cwi_cuStreamIsCapturing(int ptds, CUstream stream, CUstreamCaptureStatus *out)
{
	struct info i;

	return look(ptds, stream, out, 0, &i);
}

CUresult cwi_cuStreamGetCaptureInfo_v3(int ptds, CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
				       const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *count)
{
	struct info i;
	CUresult res = look(ptds, stream, out, graph || deps || edges || count, &i);

	/* written only while capturing */
	if (res || i.status != STATUS_ACTIVE)
		return res;
	if (i.ported && deps && !edges)
		return CUDA_ERROR_LOSSY_QUERY;
	if (id)
		*id = i.id;
	if (graph)
		*graph = (CUgraph)cw_handle_by_id(CW_KIND_GRAPH, i.graph);
	if (deps)
		*deps = answer.nodes;
	if (edges)
		*edges = i.ported ? answer.edges : NULL;
	if (count)
		*count = i.count;
	return CUDA_SUCCESS;
}

CUresult cwi_cuStreamGetCaptureInfo_v2(int ptds, CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
				       const CUgraphNode **deps, size_t *count)
{
	return cwi_cuStreamGetCaptureInfo_v3(ptds, stream, out, id, graph, deps, NULL, count);
}

CUresult cwi_cuStreamGetCaptureInfo(int ptds, CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id)
{
	return cwi_cuStreamGetCaptureInfo_v3(ptds, stream, out, id, NULL, NULL, NULL, NULL);
}

/* --- changing --------------------------------------------------------------------------------- */

CUresult cwi_cuStreamUpdateCaptureDependencies_v2(int ptds, CUstream stream, CUgraphNode *deps, const CUgraphEdgeData *edges, size_t count,
						  unsigned int flags)
{
	uint32_t id, *ids;
	CUresult res = cw_stream_id(stream, ptds, &id);

	if (res)
		return res;
	if (count && !deps)
		return CUDA_ERROR_INVALID_VALUE;
	if (quiet())
		return CUDA_ERROR_ILLEGAL_STATE;
	if ((res = cw_graph_ids(NULL, deps, count, &ids)))
		return res;
	res = cwop_StreamUpdateCapture(id, flags, ids, count * sizeof *ids, edges, cw_edge_bytes(edges, count));
	free(ids);
	return res;
}

CUresult cwi_cuStreamUpdateCaptureDependencies(int ptds, CUstream stream, CUgraphNode *deps, size_t count, unsigned int flags)
{
	return cwi_cuStreamUpdateCaptureDependencies_v2(ptds, stream, deps, NULL, count, flags);
}

int cw_capture_mode(int mode)
{
	int old = thread_mode;

	if (mode != old && cwop_ThreadCaptureMode((uint32_t)mode) == CUDA_SUCCESS)
		thread_mode = mode;
	return old;
}

CUresult cwi_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	if (!mode || (unsigned)*mode > MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = (CUstreamCaptureMode)cw_capture_mode((int)*mode);
	return CUDA_SUCCESS;
}

CUresult cw_capture_unsafe(void) { return cwop_CaptureUnsafe(); }

CUresult cw_capture_copy(uint32_t stream, int direct, int wait, int *pageable)
{
	*pageable = 0;
	if (wait)
		return cwop_StreamCaptureCheck(stream);
	return direct ? CUDA_SUCCESS : cw_capture_status(stream, pageable);
}

CUresult cw_capture_graph(uint32_t stream, uint32_t *graph)
{
	struct info i;
	CUresult res;

	memset(&i, 0, sizeof i);
	res = ask(stream, &i);
	if (!res && i.status != STATUS_ACTIVE)
		res = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	*graph = i.graph;
	return res;
}
