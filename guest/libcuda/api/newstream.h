/* Streams: the program's, and the library's own. */
#ifndef CW_API_NEWSTREAM_H
#define CW_API_NEWSTREAM_H

#include "api/context.h"
#include "api/objects.h"
#include "gen/ops.h"
#include "session/handles.h"

/* Makes one in ctx, which is the current context. */
static inline CUresult cw_stream_make(uint32_t ctx, unsigned int flags, int priority, struct cw_stream **out)
{
	struct cw_stream *s = (struct cw_stream *)cw_handle_alloc();
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->o.ctx = ctx;
	s->o.flags = flags;
	s->priority = priority;
	s->uid = cw_stream_next_uid();
	cw_handle_publish(&s->o, CW_KIND_STREAM);
	CUresult res = cwop_StreamCreate(s->o.id, flags, priority);
	if (res != 0)
		cw_handle_free(CW_KIND_STREAM, &s->o);
	else
		*out = s;
	return res;
}

#endif
