/*
 * What is asked about stream capture. Capturing is not forwarded (cuStreamBeginCapture is refused), so no stream ever captures, and
 * these answers are true; libraries ask before nearly everything they do.
 */
#include "api/api.h"

enum { STATUS_NONE = 0, MODE_GLOBAL = 0, MODE_RELAXED = 2 };

static CUresult status(int ptds, CUstream stream, CUstreamCaptureStatus *out)
{
	uint32_t id;
	CUresult res = cw_stream_id(stream, ptds, &id);

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*out = (CUstreamCaptureStatus)STATUS_NONE;
	return res;
}

CUresult cwi_cuStreamIsCapturing(int ptds, CUstream stream, CUstreamCaptureStatus *out)
{
	return status(ptds, stream, out);
}

CUresult cwi_cuStreamGetCaptureInfo(int ptds, CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id)
{
	(void)id; /* written only while capturing */
	return status(ptds, stream, out);
}

CUresult cwi_cuStreamGetCaptureInfo_v2(int ptds, CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
				       const CUgraphNode **deps, size_t *count)
{
	(void)id, (void)graph, (void)deps, (void)count;
	return status(ptds, stream, out);
}

CUresult cwi_cuStreamGetCaptureInfo_v3(int ptds, CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
				       const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *count)
{
	(void)id, (void)graph, (void)deps, (void)edges, (void)count;
	return status(ptds, stream, out);
}

/* The calling thread's mode, which only matters to captures. */
CUresult cwi_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	static __thread int current = MODE_GLOBAL;
	int old = current;

	if (!mode || (int)*mode < MODE_GLOBAL || (int)*mode > MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	current = (int)*mode;
	*mode = (CUstreamCaptureMode)old;
	return CUDA_SUCCESS;
}
