/*
 * Batches of copies. The copies of a batch are unordered among each other, so any order will do.
 * All of them are judged before the first is sent. Those between pinned and device memory travel
 * together, to the driver's own batch, with their attributes. Ordinary memory is read during the
 * call, which every access order allows, since nothing on a stream writes ordinary memory after the
 * call that asked for it.
 */
#include <stdlib.h>
#include <string.h>

#include "api/capture.h"
#include "memory/array.h"
#include "memory/resident.h"

/* Layouts of cuda.h. */

struct operand {
	int type;
	union {
		struct {
			CUdeviceptr ptr;
			size_t row_length, layer_height; /* in elements, 0: dense */
			CUmemLocation hint;
		} ptr;
		struct {
			CUarray array;
			size_t x, y, z; /* in elements */
		} array;
	} op;
};

struct CUDA_MEMCPY3D_BATCH_OP_st {
	struct operand src, dst;
	size_t width, height, depth; /* in elements if an array takes part, else width in bytes */
	int order;
	unsigned int flags;
};
_Static_assert(sizeof(struct operand) == 40, "CUmemcpy3DOperand");
_Static_assert(sizeof(struct CUDA_MEMCPY3D_BATCH_OP_st) == 112, "CUDA_MEMCPY3D_BATCH_OP");

enum {
	ORDER_FIRST = 1,
	ORDER_IN_CALL = 2,
	ORDER_LAST = 3,
	FLAGS = 1 /* prefer overlap with kernels */,
	OPERAND_POINTER = 1,
	OPERAND_ARRAY = 2
};
enum { LEGACY = 1 };

static int valid(int order, unsigned flags) { return order >= ORDER_FIRST && order <= ORDER_LAST && !(flags & ~(unsigned)FLAGS); }

/* The stream of a batch: the legacy stream is refused. */
static CUresult stream_of(CUstream stream, int ptds, uint32_t *id)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!res)
		res = cw_stream_id(stream, ptds, id);
	if (!res && *id == LEGACY)
		res = CUDA_ERROR_INVALID_VALUE;
	return res;
}

/* Attribute k holds for copies from first[k] on; the first must begin at 0, and they rise. */
static CUresult check_attributes(const CUmemcpyAttributes *attrs, const size_t *first, size_t count, size_t copies)
{
	if (!attrs || !first || count == 0 || count > copies || first[0] != 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!valid(attrs[i].order, attrs[i].flags) || first[i] >= copies || (i > 0 && first[i] <= first[i - 1]))
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* The copies of a call, and what is being gathered of those that are between addresses of the
 * worker: they travel together. */
struct batch {
	const CUdeviceptr *dst, *src;
	const size_t *size, *first;
	const CUmemcpyAttributes *attrs;
	size_t count, attr_count;
	uint32_t stream;
	struct cw_range near_dst, near_src;
	struct piece {
		uint64_t dst, src, size;
	} *pieces;
	uint32_t gathered, room;
	struct cw_area *area; /* one that is named, if any */
	/* A source that only the worker reads may not be read after the call. */
	int in_call;
};
_Static_assert(sizeof(struct piece) == CW_MEMCPY_BATCH_PIECE, "pieces of MemcpyBatch");

enum { PIECES_MOST = CW_MAX_INLINE_DATA / sizeof(struct piece) };

static CUresult operands(struct batch *b, size_t i, struct cw_operand *d, struct cw_operand *s)
{
	CUresult res;

	if (!b->dst[i] || !b->src[i] || !b->size[i])
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_operand_near(b->dst[i], b->size[i], &b->near_dst, d);
	return res ? res : cw_operand_near(b->src[i], b->size[i], &b->near_src, s);
}

static CUresult judge(struct batch *b, size_t *fail)
{
	struct cw_operand d, s;
	CUresult res = CUDA_SUCCESS;

	for (size_t i = 0; i < b->count && !res; i++) {
		res = operands(b, i, &d, &s);
		if (res)
			*fail = i;
	}
	return res;
}

/* Managed memory is used only here: the program's lists, which are read meanwhile, may lie in
 * some. */
static CUresult flush(struct batch *b, const CUmemcpyAttributes *a)
{
	struct cw_operand used = {.area = b->area}, d, s;
	uint32_t n = b->gathered;
	CUresult res = n ? cw_operands_use(&used, &used) : CUDA_SUCCESS;

	b->gathered = 0;
	if (n == 0)
		return res;
	int cut = 0;
	for (uint32_t i = 0; b->area && i < n && !res; i++) {
		const struct piece *p = &b->pieces[i];
		if (cw_operand_any(p->dst, p->size, &d) == 0 && cw_operand_any(p->src, p->size, &s) == 0) {
			res = cw_operands_use(&d, &s);
			cw_operands_done(&d, &s);
			cut |= cw_operand_reach(&d, d.addr) < p->size || cw_operand_reach(&s, s.addr) < p->size;
		}
	}
	for (uint32_t i = 0; cut && i < n && !res; i++) { /* where pieces meet */
		const struct piece *p = &b->pieces[i];
		res = cw_operand_any(p->dst, p->size, &d);
		if (!res)
			res = cw_operand_any(p->src, p->size, &s);
		if (!res)
			res = cw_copy_linear(&d, &s, p->size, b->stream, 0);
	}
	if (!res && !cut)
		res = cwop_MemcpyBatch(b->stream, (uint32_t)a->order, a->flags, b->pieces, n * sizeof *b->pieces);
	cw_operands_done(&used, &used);
	return res;
}

static CUresult gather(struct batch *b, const CUmemcpyAttributes *a, const struct cw_operand *d, const struct cw_operand *s, uint64_t size)
{
	if (d->area || s->area)
		b->area = d->area ? d->area : s->area;
	b->in_call |= a->order == ORDER_IN_CALL && !s->device;
	b->pieces[b->gathered++] = (struct piece){d->addr, s->addr, size};
	return b->gathered == b->room ? flush(b, a) : CUDA_SUCCESS;
}

/* Copies from on up to end, which have the attributes a. While something captures each is a copy of
 * its own. */
static CUresult send(struct batch *b, const CUmemcpyAttributes *a, size_t from, size_t end, size_t *fail)
{
	struct cw_operand d, s;
	CUresult res = CUDA_SUCCESS;
	int together = !cw_capture_any();

	for (size_t i = from; i < end && !res; i++) {
		res = operands(b, i, &d, &s);
		if (!res && together && d.worker && s.worker)
			res = gather(b, a, &d, &s, b->size[i]);
		else if (!res)
			res = cw_copy_linear(&d, &s, b->size[i], b->stream, 0);
		if (res)
			*fail = i;
	}
	return res ? res : flush(b, a);
}

static CUresult send_all(struct batch *b, size_t *fail)
{
	CUresult res = CUDA_SUCCESS;

	b->room = b->count < PIECES_MOST ? (uint32_t)b->count : PIECES_MOST;
	b->pieces = malloc(b->room * sizeof *b->pieces);
	if (!b->pieces)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t k = 0; k < b->attr_count && !res; k++)
		res = send(b, &b->attrs[k], b->first[k], k + 1 < b->attr_count ? b->first[k + 1] : b->count, fail);
	free(b->pieces);
	/* The driver's call reads such sources before it returns: so may this one when the worker
	 * has made it. */
	if (!res && b->in_call)
		res = cwop_SessionFence();
	return res;
}

static CUresult linear(int ptds, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
		       size_t *first, size_t attr_count, size_t *fail, CUstream stream)
{
	struct batch b = {
		.dst = dsts, .src = srcs, .size = sizes, .first = first, .attrs = attrs, .count = count, .attr_count = attr_count};
	CUresult res = stream_of(stream, ptds, &b.stream);

	if (res)
		return res;
	*fail = SIZE_MAX;
	if (!dsts || !srcs || !sizes || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	res = check_attributes(attrs, first, attr_count, count);
	if (!res)
		res = judge(&b, fail);
	if (!res)
		res = send_all(&b, fail);
	return cw_settle(res, b.stream);
}

CUresult cwi_cuMemcpyBatchAsync(int ptds, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
				size_t *first, size_t attr_count, size_t *fail, CUstream stream)
{
	size_t unused = 0;

	return linear(ptds, dsts, srcs, sizes, count, attrs, first, attr_count, fail ? fail : &unused, stream);
}

CUresult cwi_cuMemcpyBatchAsync_v2(int ptds, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
				   size_t *first, size_t attr_count, CUstream stream)
{
	size_t fail = 0;

	return linear(ptds, dsts, srcs, sizes, count, attrs, first, attr_count, &fail, stream);
}

/* --- boxes ------------------------------------------------------------------------------------ */

/* Bytes of an element: of the array that takes part; between pointers an element is a byte. */
static uint64_t element_of(const CUDA_MEMCPY3D_BATCH_OP *op)
{
	const struct operand *operands[] = {&op->src, &op->dst};
	uint64_t bytes = 1;

	for (int i = 0; i < 2; i++)
		if (operands[i]->type == OPERAND_ARRAY) {
			struct cw_array *a = cw_array_get(operands[i]->op.array.array);

			bytes = a ? cw_array_element(&a->desc) : 0;
			if (!bytes)
				return 0;
		}
	return bytes;
}

static CUresult fill(const struct operand *o, const CUDA_MEMCPY3D_BATCH_OP *op, uint64_t bytes, struct cw_box_operand *out)
{
	*out = (struct cw_box_operand){0};
	if (o->type == OPERAND_ARRAY) {
		out->type = CU_MEMORYTYPE_ARRAY;
		out->array = o->op.array.array;
		out->x = o->op.array.x * bytes;
		out->y = o->op.array.y;
		out->z = o->op.array.z;
		return CUDA_SUCCESS;
	}
	if (o->type != OPERAND_POINTER || !o->op.ptr.ptr || (o->op.ptr.row_length && o->op.ptr.row_length < op->width) ||
	    (o->op.ptr.layer_height && o->op.ptr.layer_height < op->height) || o->op.ptr.row_length > UINT64_MAX / 16)
		return CUDA_ERROR_INVALID_VALUE;
	out->type = CU_MEMORYTYPE_UNIFIED;
	out->device = o->op.ptr.ptr;
	out->pitch = (o->op.ptr.row_length ? o->op.ptr.row_length : op->width) * bytes;
	out->height = o->op.ptr.layer_height ? o->op.ptr.layer_height : op->height;
	return CUDA_SUCCESS;
}

/* check: only judge. */
static CUresult box(const CUDA_MEMCPY3D_BATCH_OP *op, uint32_t id, int check)
{
	uint64_t bytes = element_of(op);
	struct cw_box_operand d, s;
	CUresult res;

	if (!bytes || !op->width || !op->height || !op->depth || op->width > UINT64_MAX / 16 || !valid(op->order, op->flags))
		return CUDA_ERROR_INVALID_VALUE;
	res = fill(&op->dst, op, bytes, &d);
	if (!res)
		res = fill(&op->src, op, bytes, &s);
	return res ? res : cw_copy_3d(&d, &s, op->width * bytes, op->height, op->depth, id, check);
}

static CUresult boxes(int ptds, size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *fail, unsigned long long flags, CUstream stream)
{
	uint32_t id;
	CUresult res = stream_of(stream, ptds, &id);

	if (res)
		return res;
	*fail = SIZE_MAX;
	if (!list || count == 0 || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (int check = 1; check >= 0; check--)
		for (size_t i = 0; i < count && !res; i++) {
			res = box(&list[i], id, check);
			if (res)
				*fail = i;
		}
	return cw_settle(res, id);
}

CUresult cwi_cuMemcpy3DBatchAsync(int ptds, size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *fail, unsigned long long flags,
				  CUstream stream)
{
	size_t unused = 0;

	return boxes(ptds, count, list, fail ? fail : &unused, flags, stream);
}

CUresult cwi_cuMemcpy3DBatchAsync_v2(int ptds, size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream)
{
	size_t fail = 0;

	return boxes(ptds, count, list, &fail, flags, stream);
}
