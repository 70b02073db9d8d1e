/* The rules of cuGetProcAddress, measured on a real driver, on a table of the shapes that occur. */
#include "api/procfind.c"

#include <stdio.h>

#define P(n) ((void *)(size_t)(n))

static const struct cw_proc rows[] = {
	{"cuCtxCreate", 2000, P(1), NULL},
	{"cuCtxCreate", 3020, P(2), NULL},
	{"cuCtxCreate", 11040, P(3), NULL},
	{"cuCtxCreate", 12050, P(4), NULL},
	{"cuEGLApiInit", 0, P(5), NULL},
	{"cuGetProcAddress", 11030, P(6), NULL},
	{"cuGetProcAddress", 12000, P(7), NULL},
	{"cuInit", 2000, P(8), NULL},
	{"cuMemcpyHtoD", 2000, P(9), NULL},
	{"cuMemcpyHtoD", 3020, P(10), P(110)},
	{"cuStreamGetCaptureInfo", 10010, P(11), P(111)},
	{"cuStreamGetCaptureInfo", 11030, P(12), P(112)},
	{"cuStreamQuery", 2000, P(13), P(113)},
};

static const struct {
	const char *name;
	int version, per_thread;
	enum cw_proc_status status;
	int want;
} cases[] = {
	{"cuInit", 2000, 0, CW_PROC_FOUND, 8},
	{"cuInit", 99999, 0, CW_PROC_FOUND, 8},
	{"cuInit", 13000, 1, CW_PROC_FOUND, 8}, /* no twin: the normal function */
	{"cuInit", 2000, 1, CW_PROC_FOUND, 8},
	{"cuInit", 1999, 0, CW_PROC_VERSION, 0},
	{"", 0, 0, CW_PROC_NOT_FOUND, 0},
	{"cuNoSuch", 13000, 0, CW_PROC_NOT_FOUND, 0},
	{"zz", 13000, 0, CW_PROC_NOT_FOUND, 0},
	{"cuMemcpyHtoD_v2", 13000, 0, CW_PROC_NOT_FOUND, 0}, /* base names only */
	{"cuMemcpyHtoD_ptds", 13000, 0, CW_PROC_NOT_FOUND, 0},
	{"cuEGLApiInit", 13000, 0, CW_PROC_NOT_FOUND, 0}, /* exported, never found */
	{"cuCtxCreate", 2000, 0, CW_PROC_FOUND, 1},
	{"cuCtxCreate", 3019, 0, CW_PROC_FOUND, 1},
	{"cuCtxCreate", 3020, 0, CW_PROC_FOUND, 2},
	{"cuCtxCreate", 11040, 0, CW_PROC_FOUND, 3},
	{"cuCtxCreate", 13000, 0, CW_PROC_FOUND, 4},
	{"cuCtxCreate", 0, 0, CW_PROC_VERSION, 0},
	{"cuGetProcAddress", 11080, 0, CW_PROC_FOUND, 6}, /* a v2 here would crash 11.x callers */
	{"cuGetProcAddress", 12000, 0, CW_PROC_FOUND, 7},
	{"cuMemcpyHtoD", 3020, 0, CW_PROC_FOUND, 10},
	{"cuMemcpyHtoD", 12040, 1, CW_PROC_FOUND, 110},
	{"cuMemcpyHtoD", 7000, 1, CW_PROC_FOUND, 110},
	{"cuMemcpyHtoD", 6050, 1, CW_PROC_VERSION, 0}, /* no falling back to the plain one */
	{"cuStreamQuery", 6050, 1, CW_PROC_VERSION, 0},
	{"cuStreamQuery", 6050, 0, CW_PROC_FOUND, 13},
	{"cuStreamGetCaptureInfo", 10010, 1, CW_PROC_FOUND, 111},
	{"cuStreamGetCaptureInfo", 11030, 1, CW_PROC_FOUND, 112},
	{"cuStreamGetCaptureInfo", 9000, 1, CW_PROC_VERSION, 0},
};

int main(void)
{
	int failures = 0;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		void *out = NULL;
		enum cw_proc_status got =
			cw_proc_find(rows, sizeof rows / sizeof *rows, cases[i].name, cases[i].version, cases[i].per_thread, &out);

		if (got != cases[i].status || out != P(cases[i].want)) {
			printf("FAIL %s@%d/%d: status %d function %p\n", cases[i].name, cases[i].version, cases[i].per_thread, got, out);
			failures++;
		}
	}
	return failures != 0;
}
