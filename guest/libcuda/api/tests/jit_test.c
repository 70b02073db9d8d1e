/* JIT options: what travels, and what is written back. */
#include "api/jit.c"

#include <stdio.h>

static int failures;

#define EXPECT(cond) \
	do { \
		if (!(cond)) { \
			printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #cond); \
			failures++; \
		} \
	} while (0)

#define V(x) ((void *)(uintptr_t)(x))

static void options(void)
{
	char info[8] = "xxxxxxx", error[64] = "";
	int opts[] = {CU_JIT_WALL_TIME,		 CU_JIT_INFO_LOG_BUFFER,  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
		      CU_JIT_OPTIMIZATION_LEVEL, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
		      CU_JIT_CACHE_MODE};
	void *vals[] = {V(~0ull), info, V(8), V(0xdeadbeef00000003ull), error, V(64), V(1)};
	struct cw_jit j;
	float ms;

	EXPECT(cw_jit_parse(&j, 7, opts, vals) == 0);
	EXPECT(j.count == 3 && j.pairs[0] == CU_JIT_WALL_TIME && j.pairs[1] == 0);
	EXPECT(j.pairs[2] == 7 && j.pairs[3] == 3 && j.pairs[4] == 14 && j.pairs[5] == 1);
	EXPECT(j.info_cap == 8 && j.error_cap == 64);
	cw_jit_finish(&j, 2.5f,
		      "information"
		      "bad",
		      14, 11, 3);
	EXPECT(!strcmp(info, "informa") && vals[2] == V(7));
	EXPECT(!strcmp(error, "bad") && vals[5] == V(3));
	memcpy(&ms, &vals[0], sizeof ms);
	EXPECT(ms == 2.5f);

	/* lengths beyond what came: cut, not read */
	vals[2] = V(8), vals[5] = V(64);
	EXPECT(cw_jit_parse(&j, 7, opts, vals) == 0);
	cw_jit_finish(&j, 0, "abc", 3, 2, 4000000000u);
	EXPECT(!strcmp(info, "ab") && !strcmp(error, "c"));

	/* a size without a buffer: nothing is asked for or written */
	int lone[] = {CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
	void *lone_value[] = {V(100)};
	EXPECT(cw_jit_parse(&j, 1, lone, lone_value) == 0 && j.info_cap == 0);
	cw_jit_finish(&j, 0, "", 0, 0, 0);
	EXPECT(lone_value[0] == NULL);

	int names[] = {CU_JIT_GLOBAL_SYMBOL_NAMES}, unknown[] = {99}, negative[] = {-1};
	EXPECT(cw_jit_parse(&j, 1, names, lone_value) == CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cw_jit_parse(&j, 1, unknown, lone_value) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(cw_jit_parse(&j, 1, negative, lone_value) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(cw_jit_parse(&j, 1, NULL, lone_value) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(cw_jit_parse(&j, 1, lone, NULL) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(cw_jit_parse(&j, 0, NULL, NULL) == 0);
}

int main(void)
{
	options();
	return failures != 0;
}
