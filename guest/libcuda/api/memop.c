/* Stream memory operations: writes and waits of 32 and 64 bit values in device memory, one by one
 * or in a batch. */
#include "api/api.h"

#include <string.h>

/* CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER belongs to the first version of this interface: a driver
 * of 580 takes no flag of a write. */
enum { WAIT_GEQ = 0, WAIT_NOR = 3, WAIT_FLUSH = 1 << 30 };
enum { OP_WAIT_32 = 1, OP_WRITE_32 = 2, OP_FLUSH = 3, OP_WAIT_64 = 4, OP_WRITE_64 = 5, OP_BARRIER = 6, BATCH_MAX = 256 };

struct memop {
	int wait;
	uint32_t width;
	uint64_t addr;
	uint64_t value;
	uint32_t flags;
};

static CUresult check(const struct memop *m)
{
	if (!m->addr || m->addr % m->width)
		return CUDA_ERROR_INVALID_VALUE;
	/* No device says that it can flush: CAN_FLUSH_REMOTE_WRITES. */
	if (m->wait && (m->flags & ~(uint32_t)WAIT_FLUSH) <= WAIT_NOR)
		return m->flags & WAIT_FLUSH ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
	return m->flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult send(uint32_t stream, const struct memop *m)
{
	if (m->wait)
		return cwop_StreamWaitValue(stream, m->addr, m->value, m->width, m->flags);
	return cwop_StreamWriteValue(stream, m->addr, m->value, m->width, m->flags);
}

static CUresult one(int ptds, CUstream stream, struct memop m)
{
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);

	if (res || (res = cw_stream_id(stream, ptds, &id)) || (res = check(&m)))
		return res;
	return send(id, &m);
}

#define MEMOP(name, is_wait, type, bytes) \
	CUresult cwi_##name(int ptds, CUstream stream, CUdeviceptr addr, type value, unsigned int flags) \
	{ \
		return one(ptds, stream, (struct memop){is_wait, bytes, addr, value, flags}); \
	}

MEMOP(cuStreamWaitValue32, 1, cuuint32_t, 4)
MEMOP(cuStreamWaitValue32_v2, 1, cuuint32_t, 4)
MEMOP(cuStreamWaitValue64, 1, cuuint64_t, 8)
MEMOP(cuStreamWaitValue64_v2, 1, cuuint64_t, 8)
MEMOP(cuStreamWriteValue32, 0, cuuint32_t, 4)
MEMOP(cuStreamWriteValue32_v2, 0, cuuint32_t, 4)
MEMOP(cuStreamWriteValue64, 0, cuuint64_t, 8)
MEMOP(cuStreamWriteValue64_v2, 0, cuuint64_t, 8)

/* One operation of a batch: six 8-byte words, the union of cuda.h. */
struct batch_op {
	uint32_t op, pad0;
	uint64_t addr;
	uint64_t value;
	uint32_t flags, pad1;
	uint64_t rest[2];
};
_Static_assert(sizeof(struct batch_op) == 48, "CUstreamBatchMemOpParams");

/* Barriers between operations of a batch are what stream order gives anyway. */
static CUresult decode(const void *params, unsigned i, struct memop *m)
{
	struct batch_op b;

	memcpy(&b, (const uint8_t *)params + i * sizeof b, sizeof b);
	*m = (struct memop){.addr = b.addr, .value = b.value, .flags = b.flags};
	switch (b.op) {
	case OP_WAIT_32:
	case OP_WAIT_64:
		m->wait = 1;
		/* fall through */
	case OP_WRITE_32:
	case OP_WRITE_64:
		m->width = b.op >= OP_WAIT_64 ? 8 : 4;
		if (m->width == 4)
			m->value = (uint32_t)m->value;
		return check(m);
	case OP_BARRIER: return CUDA_SUCCESS;
	case OP_FLUSH: return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuStreamBatchMemOp_v2(int ptds, CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags)
{
	struct memop m;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);

	if (res || (res = cw_stream_id(stream, ptds, &id)))
		return res;
	if (!params || count > BATCH_MAX || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if ((res = decode(params, i, &m)))
			return res;
	for (unsigned i = 0; i < count; i++) {
		/* the array is the caller's: what is sent is what was just checked */
		if ((res = decode(params, i, &m)) || (m.width && (res = send(id, &m))))
			return res;
	}
	return CUDA_SUCCESS;
}

CUresult cwi_cuStreamBatchMemOp(int ptds, CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags)
{
	return cwi_cuStreamBatchMemOp_v2(ptds, stream, count, params, flags);
}
