/* The two pipelines through staging. */
#include "memory/memory.h"

enum { DEPTH = 8 };

CUresult cw_transfer_to_device(const struct cw_transfer *t)
{
	for (uint64_t k = 0; k < t->pieces; k++) {
		CUresult res;
		struct cw_chunk *c = cw_chunk_take(1, &res);
		if (!c)
			return res;
		t->move(t->arg, k, c->mem);
		res = t->send(t->arg, k, c);
		cw_chunk_put_busy(c, t->stream);
		if (res != 0)
			return res;
	}
	return 0;
}

CUresult cw_transfer_from_device(const struct cw_transfer *t)
{
	struct cw_chunk *fly[DEPTH];
	uint64_t asked = 0, got = 0;
	CUresult res = 0;
	while (got < asked || (res == 0 && asked < t->pieces)) {
		/* Ask ahead as far as chunks are free; wait for one only with none in flight. */
		struct cw_chunk *c = NULL;
		if (res == 0 && asked < t->pieces && asked - got < DEPTH) {
			CUresult why;
			c = cw_chunk_take(asked == got, &why);
			if (!c && asked == got)
				return why;
		}
		if (c) {
			res = t->send(t->arg, asked, c);
			if (res != 0)
				cw_chunk_put_busy(c, t->stream);
			else
				fly[asked++ % DEPTH] = c;
			continue;
		}
		c = fly[got % DEPTH];
		CUresult r = cw_chunk_wait(c, t->stream, got + 1 == t->pieces);
		if (r == 0 && res == 0)
			t->move(t->arg, got, c->mem);
		else if (res == 0)
			res = r;
		cw_chunk_put(c);
		got++;
	}
	/* A copy that failed has completed its word all the same; its error waits in the worker for the next reply. */
	return res != 0 ? res : cwop_SessionFence();
}
