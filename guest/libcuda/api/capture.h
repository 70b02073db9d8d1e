/* What the other files need to know of stream capture. */
#ifndef CW_API_CAPTURE_H
#define CW_API_CAPTURE_H

#include <stdatomic.h>

#include "session/session.h"

#pragma GCC visibility push(hidden)

/* Captures that began and were not ended, in the whole process. */
extern _Atomic uint32_t cw_captures;

/* Whether anything captures: then an operation needs the questions below, else none of them. */
static inline int cw_capture_any(void) { return atomic_load_explicit(&cw_captures, memory_order_relaxed) != 0; }

/* While something captures, the error of an asynchronous operation that was just sent. */
CUresult cw_capture_settle(CUresult res);
/* Whether a stream captures. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, or what the driver says to this
 * question. */
CUresult cw_capture_status(uint32_t stream, int *active);
/* While something captures: whether the calling thread may make a potentially unsafe call. Asked by
 * those that would send nothing. */
CUresult cw_capture_unsafe(void);
/* Whether a copy may be made while something captures. direct: between addresses of the worker;
 * wait: synchronous. *pageable: it is to be captured by cw_capture_pageable. */
CUresult cw_capture_copy(uint32_t stream, int direct, int wait, int *pageable);
struct cw_operand;
CUresult cw_capture_pageable(const struct cw_operand *dst, const struct cw_operand *src, size_t size, uint32_t stream);
/* The graph that a stream captures into. */
CUresult cw_capture_graph(uint32_t stream, uint32_t *graph);
/* Exchanges the calling thread's capture mode. */
int cw_capture_mode(int mode);

#pragma GCC visibility pop
#endif
