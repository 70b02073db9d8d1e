/*
 * Copies in two and three dimensions. Each operand is first reduced to the address of its first
 * byte and two strides. Between memory that the worker reaches the box travels as one operation; a
 * operand in ordinary memory is packed into staging chunks, whole slices or runs of rows at a time.
 */
#include <string.h>

#include "memory/array.h"
#include "api/capture.h"
#include "memory/resident.h"
#include "session/ahead.h"

/* One operand resolved: row r of slice s begins at operand.addr + s*slice + r*pitch; in an array,
 * at x, y+r, z+s. */
struct plane {
	struct cw_operand operand;
	uint64_t pitch, rows; /* rows of a slice: slice = pitch*rows */
	uint32_t array;	      /* id, 0: memory */
	uint64_t x, y, z;
};

struct box {
	struct plane dst, src;
	uint64_t width, height, depth;
	uint32_t stream;
	/* when staged: a piece is `slices` whole slices, or `rows` rows of one slice */
	uint64_t rows, slices;
};

enum { MAX_PITCH = 0x7fffffff };

/* A operand in an array: it counts as device memory that the worker reaches. */
static CUresult resolve_array(const struct cw_box_operand *h, const struct box *b, struct plane *out)
{
	struct cw_array *a = cw_array_get(h->array);

	if (!a || h->lod != 0)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct plane){.operand = {.worker = 1, .device = 1}, .array = a->o.id, .x = h->x, .y = h->y, .z = h->z};
	return cw_array_holds(a, h->x, h->y, h->z, b->width, b->height, b->depth);
}

static CUresult resolve(const struct cw_box_operand *h, const struct box *b, struct plane *out)
{
	uint64_t start = 0, need, base, at, span;
	if (h->type == CU_MEMORYTYPE_ARRAY)
		return resolve_array(h, b, out);
	if (h->lod != 0 || __builtin_add_overflow(h->x, b->width, &need))
		return CUDA_ERROR_INVALID_VALUE;
	/* 0 stands for densely packed rows. */
	out->pitch = h->pitch ? h->pitch : need;
	out->rows = b->depth > 1 || h->z > 0 ? h->height : h->y + b->height;
	if (out->pitch < need || (b->depth > 1 && (out->rows < b->height || out->rows - b->height < h->y)))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_mul_overflow(h->z, out->rows, &at) || __builtin_add_overflow(at, h->y, &at) ||
	    __builtin_mul_overflow(at, out->pitch, &at) || __builtin_add_overflow(at, h->x, &at))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_mul_overflow(b->depth - 1, out->rows, &span) || __builtin_add_overflow(span, b->height - 1, &span) ||
	    __builtin_mul_overflow(span, out->pitch, &span) || __builtin_add_overflow(span, b->width, &span))
		return CUDA_ERROR_INVALID_VALUE;
	if (out->rows < b->height)
		out->rows = b->height;
	base = h->type == CU_MEMORYTYPE_HOST ? (uintptr_t)h->host : h->device;
	if (base == 0 || __builtin_add_overflow(base, at, &start))
		return CUDA_ERROR_INVALID_VALUE;
	switch (h->type) {
	case CU_MEMORYTYPE_HOST: return cw_operand_host((const void *)(uintptr_t)start, span, &out->operand);
	case CU_MEMORYTYPE_DEVICE: return cw_operand_device(start, span, &out->operand);
	case CU_MEMORYTYPE_UNIFIED: return cw_operand_any(start, span, &out->operand);
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

static int dense(const struct plane *p, const struct box *b)
{
	return !p->array && (p->pitch == b->width || (b->height == 1 && b->depth == 1)) && (p->rows == b->height || b->depth == 1);
}

/* --- staged ----------------------------------------------------------------------------------- */

/* Where piece k begins and how large it is. */
static void piece(const struct box *b, uint64_t k, uint64_t *slice, uint64_t *row, uint64_t *slices, uint64_t *rows)
{
	if (b->slices > 0) {
		*slice = k * b->slices;
		*row = 0;
		*slices = b->depth - *slice < b->slices ? b->depth - *slice : b->slices;
		*rows = b->height;
	} else {
		uint64_t per_slice = (b->height + b->rows - 1) / b->rows;
		*slice = k / per_slice;
		*row = k % per_slice * b->rows;
		*slices = 1;
		*rows = b->height - *row < b->rows ? b->height - *row : b->rows;
	}
}

static uint64_t address(const struct plane *p, uint64_t slice, uint64_t row)
{
	return p->operand.addr + (slice * p->rows + row) * p->pitch;
}

static void move(const void *arg, uint64_t k, uint8_t *chunk)
{
	const struct box *b = arg;
	const struct plane *host = b->src.operand.device ? &b->dst : &b->src;
	uint64_t slice, row, slices, rows;
	piece(b, k, &slice, &row, &slices, &rows);
	for (uint64_t s = 0; s < slices; s++)
		for (uint64_t r = 0; r < rows; r++, chunk += b->width) {
			void *p = (void *)(uintptr_t)address(host, slice + s, row + r);
			if (host == &b->src)
				cw_chunk_fill(chunk, p, b->width);
			else
				memcpy(p, chunk, b->width);
		}
}

/* A carrier whose regions the worker cannot map moves extents, not boxes: a row at a time, the last
 * one completing the word. */
static CUresult send_rows(const struct box *b, uint64_t k, const struct cw_chunk *c)
{
	int to = b->dst.operand.device;
	const struct plane *device = to ? &b->dst : &b->src;
	uint64_t slice, row, slices, rows, offset = c->offset;
	piece(b, k, &slice, &row, &slices, &rows);
	CUresult res = 0;
	for (uint64_t i = 0; i < slices * rows; i++, offset += b->width) {
		int last = i + 1 == slices * rows;
		CUresult r = cwop_MemcpyStaged(to ? CW_TO_DEVICE : CW_FROM_DEVICE, c->region, offset, b->width,
					       address(device, slice + i / rows, row + i % rows), b->stream, last ? c->word : 0,
					       last ? c->value : 0);
		res = res ? res : r;
	}
	return res;
}

/* A operand as Memcpy3D names it. */
struct end {
	uint32_t kind, region;
	uint64_t base, pitch, rows, x, y, z;
};

static struct end end_of(const struct plane *p, uint64_t slice, uint64_t row)
{
	if (p->array)
		return (struct end){.kind = CW_OPERAND_ARRAY, .base = p->array, .x = p->x, .y = p->y + row, .z = p->z + slice};
	return (struct end){.kind = CW_OPERAND_ADDRESS, .base = address(p, slice, row), .pitch = p->pitch, .rows = p->rows};
}

static CUresult send_box(const struct end *d, const struct end *s, uint64_t width, uint64_t height, uint64_t depth, uint32_t stream,
			 uint32_t word, uint32_t value)
{
	return cwop_Memcpy3D(s->kind, s->region, s->base, s->pitch, s->rows, s->x, s->y, s->z, d->kind, d->region, d->base, d->pitch,
			     d->rows, d->x, d->y, d->z, width, height, depth, stream, word, value);
}

static CUresult send(const void *arg, uint64_t k, const struct cw_chunk *c)
{
	const struct box *b = arg;
	int to = b->dst.operand.device;
	const struct plane *device = to ? &b->dst : &b->src;
	uint64_t slice, row, slices, rows;
	if (!cw_can_map() && !device->array)
		return send_rows(b, k, c);
	piece(b, k, &slice, &row, &slices, &rows);
	struct end staging = {CW_OPERAND_STAGING, c->region, c->offset, b->width, rows, 0, 0, 0}, there = end_of(device, slice, row);
	return send_box(to ? &there : &staging, to ? &staging : &there, b->width, rows, slices, b->stream, c->word, c->value);
}

static CUresult staged(struct box *b);

/* Rows of an array longer than a chunk: columns of the box, one after the other. */
static CUresult staged_wide(const struct box *b)
{
	for (uint64_t x = 0; x < b->width; x += CW_CHUNK_SIZE) {
		struct box part = *b;
		struct plane *operands[] = {&part.dst, &part.src};

		part.width = b->width - x < CW_CHUNK_SIZE ? b->width - x : CW_CHUNK_SIZE;
		for (int i = 0; i < 2; i++)
			*(operands[i]->array ? &operands[i]->x : &operands[i]->operand.addr) += x;
		CUresult res = staged(&part);
		if (res != 0)
			return res;
	}
	return CUDA_SUCCESS;
}

/* Each row is a linear copy of its own. */
static CUresult by_rows(const struct box *b)
{
	for (uint64_t i = 0; i < b->height * b->depth; i++) {
		struct cw_operand d = b->dst.operand, s = b->src.operand;
		d.addr = address(&b->dst, i / b->height, i % b->height);
		s.addr = address(&b->src, i / b->height, i % b->height);
		CUresult res = cw_copy_linear(&d, &s, b->width, b->stream, 0);
		if (res != 0)
			return res;
	}
	return CUDA_SUCCESS;
}

static CUresult staged(struct box *b)
{
	uint64_t slice_bytes = b->width * b->height, pieces;
	cw_host_before_copy();
	if (b->width > CW_CHUNK_SIZE && (b->dst.array || b->src.array))
		return staged_wide(b);
	if (b->width > CW_CHUNK_SIZE)
		return by_rows(b); /* rows longer than a chunk */
	b->rows = CW_CHUNK_SIZE / b->width;
	b->slices = slice_bytes <= CW_CHUNK_SIZE ? CW_CHUNK_SIZE / slice_bytes : 0;
	if (b->slices > 0)
		pieces = (b->depth + b->slices - 1) / b->slices;
	else
		pieces = (b->height + b->rows - 1) / b->rows * b->depth;
	struct cw_transfer t = {.pieces = pieces, .stream = b->stream, .move = move, .send = send, .arg = b};
	return b->dst.operand.device ? cw_transfer_to_device(&t) : cw_transfer_from_device(&t);
}

static CUresult host_to_host(const struct box *b)
{
	CUresult res = cw_own_wait(b->stream);
	if (res != 0)
		return res;
	for (uint64_t s = 0; s < b->depth; s++)
		for (uint64_t r = 0; r < b->height; r++)
			memmove((void *)(uintptr_t)address(&b->dst, s, r), (void *)(uintptr_t)address(&b->src, s, r), b->width);
	return CUDA_SUCCESS;
}

/* Sends a box between memory that the worker reaches, and waits for it where the synchronous form
 * does. The driver's asynchronous call takes few bytes of pinned memory at once (64 KiB or less) if
 * its own stream is idle, whatever the streams that it waits for still write there; so the
 * synchronous form first waits for those. */
static CUresult reachable(const struct box *b, int wait)
{
	enum { TAKEN = 64 << 10, LEGACY = 1 /* CU_STREAM_LEGACY */ };
	struct end d = end_of(&b->dst, 0, 0), s = end_of(&b->src, 0, 0);
	CUresult res = CUDA_SUCCESS;

	if (wait && !b->src.operand.device && b->dst.operand.device && b->width * b->height * b->depth <= TAKEN)
		res = cw_own_wait(LEGACY);
	if (res == 0)
		res = send_box(&d, &s, b->width, b->height, b->depth, b->stream, 0, 0);
	if (res == 0 && wait && !(b->dst.operand.device && b->src.operand.device))
		res = cw_own_wait(b->stream);
	return res;
}

/* Whether a operand lies over several pieces of managed memory, where copies are cut. */
static int parted(const struct plane *p, const struct box *b)
{
	return !p->array &&
	       cw_operand_reach(&p->operand, address(p, 0, 0)) < address(p, b->depth - 1, b->height - 1) + b->width - address(p, 0, 0);
}

static CUresult resolved(struct box *b, int wait);

/* Row by row, and a row that lies over two pieces in parts. */
static CUresult in_parts(const struct box *b, int wait)
{
	CUresult res = CUDA_SUCCESS;
	for (uint64_t i = 0; i < b->height * b->depth && res == 0; i++)
		for (uint64_t x = 0; x < b->width && res == 0;) {
			struct box part = *b;
			struct plane *operands[] = {&part.dst, &part.src};
			uint64_t n = b->width - x;
			for (int k = 0; k < 2; k++) {
				struct plane *p = operands[k];
				if (p->array) {
					p->x += x;
					p->y += i % b->height;
					p->z += i / b->height;
				} else {
					p->operand.addr = address(p, i / b->height, i % b->height) + x;
					uint64_t reach = cw_operand_reach(&p->operand, p->operand.addr);
					n = n < reach ? n : reach;
				}
			}
			part.width = n;
			part.height = part.depth = 1;
			res = resolved(&part, wait);
			x += n;
		}
	return res;
}

static CUresult resolved(struct box *b, int wait)
{
	CUresult res = CUDA_SUCCESS;
	int both = b->dst.operand.worker && b->src.operand.worker, neither = !b->dst.operand.device && !b->src.operand.device;
	int pageable = 0;
	if (cw_unlikely(cw_capture_any()) && (res = cw_capture_copy(b->stream, both, wait, &pageable)))
		return res;
	if (pageable && (b->dst.array || b->src.array)) {
		cw_log(CW_LOG_ERROR, "copies between arrays and pageable memory are not captured: pin it");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (pageable && !(dense(&b->dst, b) && dense(&b->src, b)))
		return by_rows(b);
	if (dense(&b->dst, b) && dense(&b->src, b))
		res = cw_copy_linear(&b->dst.operand, &b->src.operand, b->width * b->height * b->depth, b->stream, wait);
	else if (cw_unlikely(parted(&b->dst, b) || parted(&b->src, b)))
		res = in_parts(b, wait);
	else if (both)
		res = reachable(b, wait);
	else if (neither)
		res = host_to_host(b);
	else if (!b->dst.operand.device)
		res = staged(b);
	else if ((res = cw_copy_begin(b->stream, wait)) == 0)
		res = cw_copy_landed(staged(b), b->width * b->height * b->depth, b->stream, wait);
	return res;
}

/* Copies a box whose operands are resolved. */
static CUresult run_box(struct box *b, int wait)
{
	CUresult res = cw_operands_use(&b->dst.operand, &b->src.operand);
	if (res == 0)
		res = resolved(b, wait);
	cw_operands_done(&b->dst.operand, &b->src.operand);
	return wait ? res : cw_settle(res, b->stream);
}

static CUresult resolve_both(struct box *b, const struct cw_box_operand *dst, const struct cw_box_operand *src)
{
	CUresult res = resolve(dst, b, &b->dst);
	return res != 0 ? res : resolve(src, b, &b->src);
}

static CUresult copy(const struct cw_box_operand *dst, const struct cw_box_operand *src, uint64_t width, uint64_t height, uint64_t depth,
		     CUstream stream, int ptds, int wait)
{
	struct box b = {.width = width, .height = height, .depth = depth};
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &b.stream);
	if (res != 0 || width == 0 || height == 0 || depth == 0)
		return res;
	res = resolve_both(&b, dst, src);
	return res != 0 ? res : run_box(&b, wait);
}

CUresult cw_copy_3d(const struct cw_box_operand *dst, const struct cw_box_operand *src, uint64_t width, uint64_t height, uint64_t depth,
		    uint32_t stream, int check)
{
	struct box b = {.width = width, .height = height, .depth = depth, .stream = stream};
	CUresult res = resolve_both(&b, dst, src);
	return res != 0 || check ? res : run_box(&b, 0);
}

/* --- entries ---------------------------------------------------------------------------------- */

static CUresult copy2d(const CUDA_MEMCPY2D *p, CUstream stream, int ptds, int wait, uint64_t max_pitch)
{
	if (!p || p->srcPitch > max_pitch || p->dstPitch > max_pitch)
		return CUDA_ERROR_INVALID_VALUE;
	struct cw_box_operand d = {p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray, p->dstXInBytes, p->dstY, 0, 0, p->dstPitch, 0};
	struct cw_box_operand s = {p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, p->srcXInBytes, p->srcY, 0, 0, p->srcPitch, 0};
	return copy(&d, &s, p->WidthInBytes, p->Height, 1, stream, ptds, wait);
}

CUresult cwi_cuMemcpy2D_v2(int ptds, const CUDA_MEMCPY2D *p) { return copy2d(p, NULL, ptds, 1, MAX_PITCH); }

CUresult cwi_cuMemcpy2DUnaligned_v2(int ptds, const CUDA_MEMCPY2D *p) { return copy2d(p, NULL, ptds, 1, UINT64_MAX); }

CUresult cwi_cuMemcpy2DAsync_v2(int ptds, const CUDA_MEMCPY2D *p, CUstream stream) { return copy2d(p, stream, ptds, 0, MAX_PITCH); }

static CUresult copy3d(const CUDA_MEMCPY3D *p, CUstream stream, int ptds, int wait)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct cw_box_operand d = {p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray, p->dstXInBytes,
				   p->dstY,	     p->dstZ,	 p->dstLOD,    p->dstPitch, p->dstHeight};
	struct cw_box_operand s = {p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, p->srcXInBytes,
				   p->srcY,	     p->srcZ,	 p->srcLOD,    p->srcPitch, p->srcHeight};
	return copy(&d, &s, p->WidthInBytes, p->Height, p->Depth, stream, ptds, wait);
}

CUresult cwi_cuMemcpy3D_v2(int ptds, const CUDA_MEMCPY3D *p) { return copy3d(p, NULL, ptds, 1); }

CUresult cwi_cuMemcpy3DAsync_v2(int ptds, const CUDA_MEMCPY3D *p, CUstream stream) { return copy3d(p, stream, ptds, 0); }

static CUresult copy3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream stream, int ptds, int wait)
{
	struct cw_ctx *c;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	/* Contexts matter to device memory only, and under unified addressing the addresses carry
	 * them. */
	if ((p->dstMemoryType == CU_MEMORYTYPE_DEVICE && cw_ctx_resolve(p->dstContext, &c) != 0) ||
	    (p->srcMemoryType == CU_MEMORYTYPE_DEVICE && cw_ctx_resolve(p->srcContext, &c) != 0))
		return CUDA_ERROR_INVALID_CONTEXT;
	struct cw_box_operand d = {p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray, p->dstXInBytes,
				   p->dstY,	     p->dstZ,	 p->dstLOD,    p->dstPitch, p->dstHeight};
	struct cw_box_operand s = {p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, p->srcXInBytes,
				   p->srcY,	     p->srcZ,	 p->srcLOD,    p->srcPitch, p->srcHeight};
	return copy(&d, &s, p->WidthInBytes, p->Height, p->Depth, stream, ptds, wait);
}

CUresult cwi_cuMemcpy3DPeer(int ptds, const CUDA_MEMCPY3D_PEER *p) { return copy3d_peer(p, NULL, ptds, 1); }

CUresult cwi_cuMemcpy3DPeerAsync(int ptds, const CUDA_MEMCPY3D_PEER *p, CUstream stream) { return copy3d_peer(p, stream, ptds, 0); }

/* --- one-dimensional arrays: offsets in bytes ------------------------------------------------- */

static struct cw_box_operand in_array(CUarray array, size_t offset)
{
	return (struct cw_box_operand){.type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset};
}

static struct cw_box_operand on_device(CUdeviceptr p) { return (struct cw_box_operand){.type = CU_MEMORYTYPE_DEVICE, .device = p}; }

static struct cw_box_operand on_host(const void *p) { return (struct cw_box_operand){.type = CU_MEMORYTYPE_HOST, .host = p}; }

static CUresult run(struct cw_box_operand dst, struct cw_box_operand src, size_t size, CUstream stream, int ptds, int wait)
{
	return copy(&dst, &src, size, 1, 1, stream, ptds, wait);
}

CUresult cwi_cuMemcpyAtoA_v2(int ptds, CUarray dst, size_t at, CUarray src, size_t from, size_t size)
{
	return run(in_array(dst, at), in_array(src, from), size, NULL, ptds, 1);
}

CUresult cwi_cuMemcpyAtoD_v2(int ptds, CUdeviceptr dst, CUarray src, size_t from, size_t size)
{
	return run(on_device(dst), in_array(src, from), size, NULL, ptds, 1);
}

CUresult cwi_cuMemcpyDtoA_v2(int ptds, CUarray dst, size_t at, CUdeviceptr src, size_t size)
{
	return run(in_array(dst, at), on_device(src), size, NULL, ptds, 1);
}

CUresult cwi_cuMemcpyAtoH_v2(int ptds, void *dst, CUarray src, size_t from, size_t size)
{
	return run(on_host(dst), in_array(src, from), size, NULL, ptds, 1);
}

CUresult cwi_cuMemcpyAtoHAsync_v2(int ptds, void *dst, CUarray src, size_t from, size_t size, CUstream stream)
{
	return run(on_host(dst), in_array(src, from), size, stream, ptds, 0);
}

CUresult cwi_cuMemcpyHtoA_v2(int ptds, CUarray dst, size_t at, const void *src, size_t size)
{
	return run(in_array(dst, at), on_host(src), size, NULL, ptds, 1);
}

CUresult cwi_cuMemcpyHtoAAsync_v2(int ptds, CUarray dst, size_t at, const void *src, size_t size, CUstream stream)
{
	return run(in_array(dst, at), on_host(src), size, stream, ptds, 0);
}
