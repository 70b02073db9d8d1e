/* A copy of one piece from a worker of another machine, and the question for its end: they leave
 * together, with nobody looking for the one before the other. */
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "gen/entries.h"
#include "session/internal.h"
#include "session/tests/fake_worker.h"

enum { SIZE = 16 << 10, TAIL = 64 };

/* In the worker: the copy that is kept until somebody asks for its stream's end. */
static struct {
	uint8_t rec[sizeof(struct cw_record) + sizeof(struct cw_in_MemcpyStaged) + TAIL];
	int is;
} kept;

static int keeps(struct fake_call *c)
{
	const struct cw_in_MemcpyStaged *in = (const void *)c->fixed;
	if (c->rec->op == CW_OP_MEMCPY_STAGED && in->direction == CW_FROM_DEVICE) {
		CHECK(c->rec->size <= sizeof kept.rec && !kept.is);
		memcpy(kept.rec, c->rec, c->rec->size);
		kept.is = 1;
		return 0;
	}
	if (c->rec->op == CW_OP_STREAM_SYNCHRONIZE && kept.is) {
		struct fake_call copy = *c;
		copy.rec = (const void *)kept.rec;
		copy.fixed = kept.rec + sizeof(struct cw_record);
		kept.is = 0;
		fake_device(&copy);
	}
	return fake_device(c);
}

int main(void)
{
	static uint8_t a[SIZE], b[SIZE];
	setenv("CAUSEWAY_LOG", "none", 1);
	struct fake_options o = {.handler = keeps, .sleep_after_us = 50, .tcp = 1};
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	cw_set_current_ctx_id(5);
	CUdeviceptr d = 0;
	CHECK(cwi_cuMemAlloc_v2(&d, SIZE) == 0);
	memset(a, 0x5a, SIZE);
	CHECK(cwi_cuMemcpyHtoD_v2(0, d, a, SIZE) == 0);
	/* Who looks for the copy's end does so for minutes, and in vain. */
	cw_s.spin_max = UINT32_MAX;
	alarm(20);
	CHECK(cwi_cuMemcpyDtoH_v2(0, b, d, SIZE) == 0);
	CHECK(memcmp(a, b, SIZE) == 0);
	fake_worker_kill(w);
	puts("together_test ok");
	return 0;
}
