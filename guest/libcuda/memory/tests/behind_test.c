/* Copies behind what other streams do, against a fake worker whose driver takes few bytes early. */
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "gen/entries.h"
#include "session/tests/fake_worker.h"

/* A synchronous copy of a small box of pinned memory brings what a kernel of another blocking
 * stream still writes there. */
static void behind_others(void)
{
	enum { PITCH = 64, WIDTH = 16, ROWS = 4 };
	uint8_t *p, got[PITCH * ROWS];
	CUdeviceptr d, at;
	CHECK(cwi_cuMemHostAlloc((void **)&p, PITCH * ROWS, 0) == 0 && cwi_cuMemAlloc_v2(&d, sizeof got) == 0);
	CUDA_MEMCPY2D q = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			   .srcHost = p,
			   .srcPitch = PITCH,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = d,
			   .dstPitch = PITCH,
			   .WidthInBytes = WIDTH,
			   .Height = ROWS};
	memset(p, 1, PITCH * ROWS);
	CHECK(cwi_cuMemHostGetDevicePointer_v2(&at, p, 0) == 0);
	CHECK(cwop_Memset(at, 0, 2, 1, PITCH * ROWS, 1, FAKE_SLOW_STREAM) == 0);
	CHECK(cwi_cuMemcpy2D_v2(0, &q) == 0 && cwi_cuMemcpyDtoH_v2(0, got, d, sizeof got) == 0);
	for (int y = 0; y < ROWS; y++)
		for (int x = 0; x < WIDTH; x++)
			CHECK(got[y * PITCH + x] == 2);
	CHECK(cwi_cuMemFree_v2(d) == 0 && cwi_cuMemFreeHost(p) == 0);
}

int main(void)
{
	struct fake_options o = {.handler = fake_device, .caps = CW_CAP_MAP, .sleep_after_us = 50};
	setenv("CAUSEWAY_LOG", "none", 1);
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	cw_set_current_ctx_id(5);
	behind_others();
	fake_worker_kill(w);
	puts("behind_test ok");
	return 0;
}
