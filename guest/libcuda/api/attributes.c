/* Stream attributes, events of whole contexts, and questions about devices that are asked too
 * rarely to be known beforehand. */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

enum { VALUE_SIZE = 64, QUESTIONS_MAX = 1024, PER_THREAD = 2 };
enum { ATTR_WINDOW = 1, ATTR_SYNC_POLICY = 3, ATTR_PRIORITY = 8, ATTR_DOMAIN_MAP = 9, ATTR_DOMAIN = 10 };

/* What the real driver writes of the 64 bytes; 0: not an attribute of streams. */
static size_t value_size(int attr)
{
	switch (attr) {
	case ATTR_WINDOW: return 32;
	case ATTR_SYNC_POLICY:
	case ATTR_PRIORITY:
	case ATTR_DOMAIN: return 4;
	case ATTR_DOMAIN_MAP: return 2;
	}
	return 0;
}

/* The wire id of a stream, and its object unless it is a default stream, which needs a current
 * context. */
static CUresult resolve(CUstream stream, int ptds, uint32_t *id, struct cw_stream **s)
{
	struct cw_ctx *c;
	CUresult res = cw_stream_id(stream, ptds, id);

	*s = NULL;
	if (res)
		return res;
	if (*id <= PER_THREAD)
		return cw_ctx_current(&c);
	*s = (struct cw_stream *)stream;
	return CUDA_SUCCESS;
}

CUresult cwi_cuStreamGetAttribute(int ptds, CUstream stream, CUstreamAttrID attr, CUstreamAttrValue *value)
{
	size_t size = value_size((int)attr), len = 0;
	uint8_t bytes[VALUE_SIZE];
	struct cw_stream *s;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s);

	if (res)
		return res;
	if (!value || !size)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_StreamGetAttribute(id, (uint32_t)attr, bytes, sizeof bytes, &len);
	if (!res && len != sizeof bytes)
		res = CUDA_ERROR_UNKNOWN;
	if (!res)
		memcpy(value, bytes, size);
	return res;
}

/* The priority is answered by cuStreamGetPriority without asking: what was set comes back as the
 * driver took it. */
static CUresult refresh_priority(struct cw_stream *s)
{
	uint8_t bytes[VALUE_SIZE];
	size_t len = 0;
	CUresult res = cwop_StreamGetAttribute(s->o.id, ATTR_PRIORITY, bytes, sizeof bytes, &len);

	if (!res && len == sizeof bytes)
		memcpy(&s->priority, bytes, sizeof s->priority);
	return res;
}

CUresult cwi_cuStreamSetAttribute(int ptds, CUstream stream, CUstreamAttrID attr, const CUstreamAttrValue *value)
{
	uint8_t bytes[VALUE_SIZE] = {0};
	size_t size = value_size((int)attr);
	struct cw_stream *s;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s);

	if (res)
		return res;
	if (!value || !size)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(bytes, value, size);
	res = cwop_StreamSetAttribute(id, (uint32_t)attr, bytes, sizeof bytes);
	if (!res && s && (int)attr == ATTR_PRIORITY)
		res = refresh_priority(s);
	return res;
}

CUresult cwi_cuStreamCopyAttributes(int ptds, CUstream dst, CUstream src)
{
	struct cw_stream *d, *s;
	uint32_t to, from;
	CUresult res = resolve(dst, ptds, &to, &d);

	if (!res)
		res = resolve(src, ptds, &from, &s);
	if (!res)
		res = cwop_StreamCopyAttributes(to, from);
	if (!res && d)
		res = refresh_priority(d);
	return res;
}

/* --- contexts --------------------------------------------------------------------------------- */

CUresult cwi_cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
	struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event);
	struct cw_ctx *c;
	CUresult res = ctx ? cw_ctx_resolve(ctx, &c) : CUDA_ERROR_INVALID_CONTEXT;

	if (res)
		return res;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_CtxRecordEvent(c->o.id, e->o.id);
	if (!res)
		atomic_store(&e->recorded, 1);
	return res;
}

CUresult cwi_cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
	struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event);
	struct cw_ctx *c;
	CUresult res = ctx ? cw_ctx_resolve(ctx, &c) : CUDA_ERROR_INVALID_CONTEXT;

	if (res)
		return res;
	return e ? cwop_CtxWaitEvent(c->o.id, e->o.id) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cwi_cuCtxGetExecAffinity(CUexecAffinityParam *out, CUexecAffinityType type)
{
	struct cw_ctx *c;
	uint32_t value = 0;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_CtxGetExecAffinity((uint32_t)type, &value);
	if (!res) {
		out->type = type;
		out->param.smCount.val = value;
	}
	return res;
}

CUresult cwi_cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!res && !cw_device_attr(c->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS))
		res = CUDA_ERROR_NOT_SUPPORTED;
	return res ? res : cwop_FlushRDMAWrites((uint32_t)target, (uint32_t)scope);
}

/* --- devices ---------------------------------------------------------------------------------- */

static CUresult ask(uint32_t what, CUdevice dev, uint32_t a, uint32_t b, const void *list, size_t size, void *out, size_t want)
{
	size_t len = 0;
	CUresult res;

	if (!cw_device_get(dev))
		return cw_no_device();
	res = cwop_DeviceAsk(what, (uint32_t)dev, a, b, list, size, out, want, &len);
	return !res && len != want ? CUDA_ERROR_UNKNOWN : res;
}

CUresult cwi_cuDeviceGetExecAffinitySupport(int *out, CUexecAffinityType type, CUdevice dev)
{
	return out ? ask(CW_ASK_EXEC_AFFINITY, dev, (uint32_t)type, 0, NULL, 0, out, sizeof *out) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuDeviceGetTexture1DLinearMaxWidth(size_t *out, CUarray_format format, unsigned int channels, CUdevice dev)
{
	return out ? ask(CW_ASK_TEXTURE1D_WIDTH, dev, (uint32_t)format, channels, NULL, 0, out, sizeof *out) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult atomics(uint32_t what, unsigned *out, const CUatomicOperation *ops, unsigned count, CUdevice dev, uint32_t peer)
{
	if (!out || !ops || !count || count > QUESTIONS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return ask(what, dev, peer, 0, ops, count * sizeof *ops, out, count * sizeof *out);
}

CUresult cwi_cuDeviceGetHostAtomicCapabilities(unsigned int *out, const CUatomicOperation *ops, unsigned int count, CUdevice dev)
{
	return atomics(CW_ASK_HOST_ATOMICS, out, ops, count, dev, 0);
}

CUresult cwi_cuDeviceGetP2PAtomicCapabilities(unsigned int *out, const CUatomicOperation *ops, unsigned int count, CUdevice src,
					      CUdevice dst)
{
	if (!cw_device_get(dst))
		return cw_no_device();
	return atomics(CW_ASK_P2P_ATOMICS, out, ops, count, src, (uint32_t)dst);
}
