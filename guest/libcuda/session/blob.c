/* Bytes that are too long for one record travel ahead of it in pieces, under an id that the record
 * then names. */
#include "gen/ops.h"
#include "session/internal.h"

enum { PIECE = 32 * 1024 };

CUresult cw_blob_send(const void *p, size_t len, uint32_t *blob)
{
	struct cw_session *s = &cw_s;
	if (len > (1u << 30))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult open_ = cw_session_open();
	if (open_ != 0)
		return open_;
	uint32_t id = (atomic_fetch_add(&s->next_blob, 1) + 1) & ~CW_SPAN_BLOB;
	for (size_t done = 0; done < len;) {
		uint32_t n = len - done < PIECE ? (uint32_t)(len - done) : PIECE;
		CUresult r = cwop_BlobAppend(id, len, (const uint8_t *)p + done, n);
		done += n;
		/* A sticky error is for the call that follows; only a dead session ends the
		 * sending. */
		if (r != 0 && cw_is_dead(s))
			return r;
	}
	*blob = id;
	return 0;
}
