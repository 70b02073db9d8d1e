/* Bytes that are too long for one record travel ahead of it in pieces, under an id that the record then names. */
#include <string.h>

#include "gen/ops.h"
#include "session/internal.h"

struct blob_append {
	uint32_t blob;
	uint32_t pad;
	uint64_t total;
	struct cw_span part;
};

enum { PIECE = 32 * 1024 };

CUresult cw_blob_send(const void *p, size_t len, uint32_t *blob)
{
	struct cw_session *s = &cw_s;
	if (len > (1u << 30))
		return CUDA_ERROR_INVALID_VALUE;
	uint32_t id = atomic_fetch_add(&s->next_blob, 1) + 1;
	id &= ~CW_SPAN_BLOB;
	for (size_t done = 0; done < len;) {
		uint32_t n = len - done < PIECE ? (uint32_t)(len - done) : PIECE;
		struct cw_tx tx;
		CUresult r = cw_begin(&tx, CW_OP_BLOB_APPEND, sizeof(struct blob_append), n, 0);
		if (r != 0)
			return r;
		uint32_t at = sizeof(struct cw_record) + sizeof(struct blob_append);
		struct blob_append *a = (struct blob_append *)(tx.rec + sizeof(struct cw_record));
		a->blob = id;
		a->total = len;
		a->part = (struct cw_span){.len = n, .off = at};
		memcpy(tx.rec + at, (const uint8_t *)p + done, n);
		done += n;
		r = cw_commit(&tx);
		if (r == CUDA_ERROR_LAUNCH_FAILED && cw_is_dead(s))
			return r;
	}
	*blob = id;
	return 0;
}
