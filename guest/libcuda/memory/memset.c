/* cuMemset*: one operation; asynchronous with respect to the host in all forms, as for device
 * memory on a real driver. */
#include <string.h>

#include "api/capture.h"
#include "memory/resident.h"

struct fill {
	CUdeviceptr dst;
	uint64_t pitch, width, height; /* width in elements */
	uint32_t value, element;       /* element: 1, 2 or 4 bytes */
};

/* Bytes from dst to the end of the last row, or CUDA_ERROR_INVALID_VALUE. */
static CUresult span(const struct fill *f, uint64_t *bytes)
{
	uint64_t row, rest;
	if (f->dst % f->element != 0 || __builtin_mul_overflow(f->width, f->element, &row))
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = row;
	if (f->height <= 1)
		return CUDA_SUCCESS;
	if (f->pitch < row || f->pitch % f->element != 0 || __builtin_mul_overflow(f->pitch, f->height - 1, &rest) ||
	    __builtin_add_overflow(rest, row, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* A fill that a stream captures may name any address, as on the driver: cuDNN captures work on
 * addresses that it made up and only reads the graph. */
static int captured(uint32_t stream)
{
	int active = 0;
	return cw_capture_status(stream, &active) == 0 && active;
}

/* Pinned memory that the worker does not reach, on a GPU server for instance, is filled here,
 * behind what the stream still does: also for the asynchronous form, as copies with such memory
 * are. */
static CUresult fill_here(const struct fill *f, uint32_t stream)
{
	CUresult res = cw_own_wait(stream);
	for (uint64_t y = 0; res == 0 && y < f->height; y++) {
		unsigned char *row = (unsigned char *)(uintptr_t)f->dst + y * f->pitch;
		for (uint64_t x = 0; x < f->width; x++)
			/* The first bytes of a little-endian word are its value. */
			memcpy(row + x * f->element, &f->value, f->element);
	}
	return res;
}

static CUresult send(const struct fill *f, uint64_t at, uint64_t width, uint64_t height, uint32_t stream)
{
	return cwop_Memset(at, height > 1 ? f->pitch : 0, f->value, f->element, width, height, stream);
}

/* Where pieces of managed memory meet: as many rows as lie in one, or parts of a row. */
static CUresult cut(const struct fill *f, const struct cw_operand *operand, uint32_t stream)
{
	CUresult res = CUDA_SUCCESS;
	for (uint64_t y = 0, rows = 1; y < f->height && res == 0; y += rows) {
		uint64_t at = operand->addr + y * f->pitch, row = f->width * f->element, reach = cw_operand_reach(operand, at);
		rows = 1;
		if (reach >= row) {
			uint64_t more = f->height > 1 ? (reach - row) / f->pitch : 0;
			rows += more < f->height - y - 1 ? more : f->height - y - 1;
			res = send(f, at, f->width, rows, stream);
			continue;
		}
		for (uint64_t done = 0, n; done < row && res == 0; done += n) {
			reach = cw_operand_reach(operand, at + done);
			n = row - done < reach ? row - done : reach;
			res = send(f, at + done, n / f->element, 1, stream);
		}
	}
	return res;
}

static CUresult fill(const struct fill *f, CUstream stream, int ptds, int wait)
{
	struct cw_ctx *c;
	struct cw_operand s;
	uint64_t bytes;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res == 0)
		res = span(f, &bytes);
	if (res != 0)
		return res;
	if (f->width == 0 || f->height == 0)
		return CUDA_SUCCESS;
	res = cw_operand_device(f->dst, bytes, &s);
	int capturing = res != 0 && cw_unlikely(cw_capture_any()) && captured(id);
	if (res != 0 && !capturing && cw_operand_unreached(f->dst, bytes))
		return fill_here(f, id);
	if (capturing) {
		s = (struct cw_operand){.addr = f->dst, .device = 1};
		res = CUDA_SUCCESS;
	}
	if (res == 0) {
		res = cw_operands_use(&s, &s);
		if (res == 0)
			res = cw_operand_reach(&s, s.addr) < bytes ? cut(f, &s, id) : send(f, s.addr, f->width, f->height, id);
		cw_operands_done(&s, &s);
	}
	/* On pinned memory the synchronous form is synchronous (CUDA driver API, "API
	 * synchronization behavior"). */
	if (res == 0 && wait && !s.device)
		return cw_own_wait(id);
	return cw_settle(res, id);
}

#define LINEAR(name, type, bytes) \
	CUresult cwi_cuMemset##name##_v2(int ptds, CUdeviceptr dst, type value, size_t n) \
	{ \
		return fill(&(struct fill){dst, 0, n, 1, value, bytes}, NULL, ptds, 1); \
	} \
	CUresult cwi_cuMemset##name##Async(int ptds, CUdeviceptr dst, type value, size_t n, CUstream stream) \
	{ \
		return fill(&(struct fill){dst, 0, n, 1, value, bytes}, stream, ptds, 0); \
	}
#define PITCHED(name, type, bytes) \
	CUresult cwi_cuMemset##name##_v2(int ptds, CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height) \
	{ \
		return fill(&(struct fill){dst, pitch, width, height, value, bytes}, NULL, ptds, 1); \
	} \
	CUresult cwi_cuMemset##name##Async(int ptds, CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, \
					   CUstream stream) \
	{ \
		return fill(&(struct fill){dst, pitch, width, height, value, bytes}, stream, ptds, 0); \
	}

LINEAR(D8, unsigned char, 1)
LINEAR(D16, unsigned short, 2)
LINEAR(D32, unsigned int, 4)
PITCHED(D2D8, unsigned char, 1)
PITCHED(D2D16, unsigned short, 2)
PITCHED(D2D32, unsigned int, 4)
