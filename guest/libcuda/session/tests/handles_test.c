/* Handles: whatever an application passes is found out without touching memory that is not the
 * slab's. */
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "session/tests/fake_worker.h"

static void test_misuse(void)
{
	struct cw_obj *s = cw_handle_new(CW_KIND_STREAM), *e = cw_handle_new(CW_KIND_EVENT);
	CHECK(s && e && s->id >= CW_HANDLE_RESERVED && e->id != s->id);
	CHECK(cw_handle_get(CW_KIND_STREAM, s) == s && cw_handle_by_id(CW_KIND_EVENT, e->id) == e);
	const uintptr_t bad[] = {0,
				 1,
				 2,
				 3,
				 8,
				 0xdeadbeef,
				 UINTPTR_MAX,
				 (uintptr_t)1 << 63,
				 (uintptr_t)s + 1,
				 (uintptr_t)s + 64,
				 (uintptr_t)s - CW_OBJ_SIZE,
				 (uintptr_t)e + CW_OBJ_SIZE,
				 (uintptr_t)s - s->id * CW_OBJ_SIZE,
				 (uintptr_t)s - (s->id + 1) * CW_OBJ_SIZE,
				 (uintptr_t)s + (uintptr_t)CW_HANDLE_COUNT * CW_OBJ_SIZE,
				 (uintptr_t)&s};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		CHECK(cw_handle_get(CW_KIND_STREAM, (void *)bad[i]) == NULL);
	CHECK(cw_handle_get(CW_KIND_EVENT, s) == NULL && cw_handle_get(CW_KIND_FREE, s) == NULL);
	CHECK(cw_handle_by_id(CW_KIND_STREAM, UINT32_MAX) == NULL && cw_handle_by_id(CW_KIND_STREAM, 0) == NULL);
	uint32_t id;
	CHECK(cw_stream_id(NULL, 0, &id) == 0 && id == 1 && cw_stream_id(NULL, 1, &id) == 0 && id == 2);
	CHECK(cw_stream_id((CUstream)1, 1, &id) == 0 && id == 1 && cw_stream_id((CUstream)2, 0, &id) == 0 && id == 2);
	CHECK(cw_stream_id((CUstream)s, 0, &id) == 0 && id == s->id);
	CHECK(cw_stream_id((CUstream)e, 0, &id) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(cw_handle_free(CW_KIND_EVENT, s) == 0 && cw_handle_free(CW_KIND_STREAM, s) == 1);
	CHECK(cw_handle_free(CW_KIND_STREAM, s) == 0 && cw_handle_get(CW_KIND_STREAM, s) == NULL);
	CHECK(cw_stream_id((CUstream)s, 0, &id) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(cw_handle_free(CW_KIND_EVENT, e) == 1);
}

static void test_reuse(void)
{
	struct cw_obj *first = cw_handle_new(CW_KIND_EVENT);
	memset(first + 1, 0xff, CW_OBJ_SIZE - sizeof *first);
	first->ctx = first->flags = 7;
	first->name = "of another";
	uint32_t id = first->id, high = 0;
	CHECK(cw_handle_free(CW_KIND_EVENT, first) == 1);
	int again = 0;
	for (int i = 0; i < 20000; i++) {
		struct cw_obj *o = cw_handle_new(CW_KIND_EVENT);
		CHECK(o);
		if (o == first && !again) {
			again = i;
			for (size_t b = sizeof *o; b < CW_OBJ_SIZE; b++)
				CHECK(((uint8_t *)o)[b] == 0);
			CHECK(o->id == id && o->ctx == 0 && o->flags == 0 && o->name == NULL);
		}
		high = o->id > high ? o->id : high;
		CHECK(cw_handle_free(CW_KIND_EVENT, o) == 1);
	}
	CHECK(again >= (int)CW_HANDLE_DELAY && high < CW_HANDLE_RESERVED + 2 * CW_HANDLE_DELAY);
}

static void *churn(void *arg)
{
	struct cw_obj *o[32];
	(void)arg;
	for (int r = 0; r < 2000; r++) {
		for (int i = 0; i < 32; i++) {
			o[i] = cw_handle_new(CW_KIND_EVENT);
			o[i]->flags = (uint32_t)(uintptr_t)&o + (uint32_t)i;
		}
		for (int i = 0; i < 32; i++) {
			CHECK(cw_handle_get(CW_KIND_EVENT, o[i]) == o[i] && o[i]->flags == (uint32_t)(uintptr_t)&o + (uint32_t)i);
			CHECK(cw_handle_free(CW_KIND_EVENT, o[i]) == 1);
		}
	}
	return NULL;
}

static int count(struct cw_obj *o, void *arg)
{
	(void)o;
	++*(int *)arg;
	return 0;
}

static void test_full(void)
{
	uint32_t made = 0;
	while (cw_handle_new(CW_KIND_POOL))
		made++;
	CHECK(made > CW_HANDLE_COUNT - 2 * CW_HANDLE_DELAY - CW_HANDLE_RESERVED);
	int n = 0;
	CHECK(cw_handle_each(CW_KIND_POOL, count, &n) == 0 && n == (int)made);
	struct cw_obj *o = cw_handle_by_id(CW_KIND_POOL, CW_HANDLE_COUNT - 1);
	CHECK(o && cw_handle_free(CW_KIND_POOL, o) == 1 && cw_handle_new(CW_KIND_POOL) == o);
}

/* Without addresses for the objects there are none, and no other harm: once there are, all is as
 * ever. */
static void test_no_room(void)
{
	unsigned long pages = 0;
	struct rlimit was, tight;
	FILE *f = fopen("/proc/self/statm", "re");
	CHECK(f && fscanf(f, "%lu", &pages) == 1 && fclose(f) == 0);
	CHECK(getrlimit(RLIMIT_AS, &was) == 0);
	tight = was;
	tight.rlim_cur = pages * 4096 + CW_HANDLE_COUNT / 2 * (rlim_t)CW_OBJ_SIZE;
	CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(cw_handle_new(CW_KIND_STREAM) == NULL && cw_handle_by_id(CW_KIND_STREAM, CW_HANDLE_RESERVED) == NULL);
	CHECK(setrlimit(RLIMIT_AS, &was) == 0);
	struct cw_obj *o = cw_handle_new(CW_KIND_STREAM);
	CHECK(o && o->id == CW_HANDLE_RESERVED && cw_handle_get(CW_KIND_STREAM, o) == o);
	CHECK(cw_handle_free(CW_KIND_STREAM, o) && !cw_handle_free(CW_KIND_STREAM, o));
}

int main(void)
{
	CHECK(cw_handle_get(CW_KIND_STREAM, (void *)0x1000) == NULL && cw_handle_by_id(CW_KIND_STREAM, 16) == NULL);
	test_no_room();
	test_misuse();
	test_reuse();
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, churn, NULL) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	test_full();
	puts("handles_test ok");
	return 0;
}
