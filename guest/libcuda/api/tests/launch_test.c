/* Launches: what is refused at the call, and exactly which bytes travel. */
#include <time.h>

#include "fake_host.h"

static const char ptx[] = ".version 8.0\n.target sm_90\n";
static CUcontext ctx;
static CUfunction k, none;

static uint64_t a0 = 0x1111111111111111;
static uint32_t a1 = 0x22222222;
static uint8_t a2[12] = {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
static void *args[] = {&a0, &a1, a2};

static void limits(void)
{
	static const struct {
		const char *what;
		unsigned g[3], b[3], shared;
		int want;
	} cases[] = {
		{"plain", {1, 1, 1}, {512, 1, 1}, 0, 0},
		{"largest grid", {2147483647, 65535, 65535}, {1, 1, 1}, 0, 0},
		{"grid x", {2147483648u, 1, 1}, {1, 1, 1}, 0, 1},
		{"grid y", {1, 65536, 1}, {1, 1, 1}, 0, 1},
		{"grid z", {1, 1, 65536}, {1, 1, 1}, 0, 1},
		{"zero grid", {0, 1, 1}, {1, 1, 1}, 0, 1},
		{"zero grid z", {1, 1, 0}, {1, 1, 1}, 0, 1},
		{"zero block", {1, 1, 1}, {1, 0, 1}, 0, 1},
		{"block x", {1, 1, 1}, {1025, 1, 1}, 0, 1},
		{"block z", {1, 1, 1}, {1, 1, 65}, 0, 1},
		{"threads of the device", {1, 1, 1}, {1024, 2, 1}, 0, 1},
		{"threads of the function", {1, 1, 1}, {1024, 1, 1}, 0, 701},
		{"product of the function", {1, 1, 1}, {16, 16, 3}, 0, 701},
		{"all shared memory", {1, 1, 1}, {1, 1, 1}, 49152, 0},
		{"too much shared memory", {1, 1, 1}, {1, 1, 1}, 49153, 1},
		{"absurd", {~0u, ~0u, ~0u}, {~0u, ~0u, ~0u}, ~0u, 1},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		unsigned before = fake.count[CW_OP_LAUNCH];
		int res = (int)cuLaunchKernel(k, cases[i].g[0], cases[i].g[1], cases[i].g[2], cases[i].b[0], cases[i].b[1], cases[i].b[2],
					      cases[i].shared, NULL, args, NULL);

		if (res != cases[i].want || fake.count[CW_OP_LAUNCH] - before != (res == 0)) {
			fprintf(stderr, "launch %s: %d, want %d\n", cases[i].what, res, cases[i].want);
			fake.failures++;
		}
	}
}

static void handles(void)
{
	CUstream stream;
	CUcontext other;

	CHECK_RES(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), 400);
	CHECK_RES(cuLaunchKernel((CUfunction)(void *)cuInit, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), 400);
	CHECK_RES(cuLaunchKernel((CUfunction)ctx, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), 400);
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, (CUstream)0x40, args, NULL), 400);
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 1);
	CHECK_RES(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 0);
	CHECK(fake.launch.params.len == 0 && fake.launch.stream == 1);
	CHECK_RES(cuLaunchKernel_ptsz(none, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 0);
	CHECK(fake.launch.stream == 2);
	CHECK_RES(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, (CUstream)2, NULL, NULL), 0);
	CHECK(fake.launch.stream == 2);
	CHECK_RES(cuStreamCreate(&stream, 0), 0);
	CHECK_RES(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), 0);
	CHECK(fake.launch.stream > 2);
	CHECK_RES(cuCtxCreate_v2(&other, 0, 1), 0);
	/* Another context's function. */
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), 400);
	CHECK_RES(cuCtxDestroy_v2(other), 0);
	CHECK_RES(cuCtxSetCurrent(NULL), 0);
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), 201);
	CHECK_RES(cuCtxSetCurrent(ctx), 0);
}

static void bytes(void)
{
	static const uint8_t want[28] = {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x22, 0x22, 0, 0,
					 0,    0,    3,	   3,	 3,    3,    3,	   3,	 3,    3,    3,	   3,	 3, 3};
	uint8_t packed[40];
	size_t size = 28, longer = 40, shorter = 27;
	void *extra[] = {(void *)1, packed, (void *)2, &size, NULL};

	CHECK_RES(cuLaunchKernel(k, 2, 3, 4, 5, 6, 7, 8, NULL, args, NULL), 0);
	CHECK(fake.launch.gx == 2 && fake.launch.gy == 3 && fake.launch.gz == 4);
	CHECK(fake.launch.bx == 5 && fake.launch.by == 6 && fake.launch.bz == 7 && fake.launch.shared == 8);
	CHECK(fake.launch.params.len == 28 && !memcmp(fake.params, want, 28));
	CHECK(fake.launch.attrs.len == 0 && fake.launch.flags == 0);
	memset(packed, 9, sizeof packed);
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra), 0);
	CHECK(fake.launch.params.len == 28 && fake.params[27] == 9);
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, args, extra), 1);
	extra[3] = &longer;
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra), 0);
	CHECK(fake.launch.params.len == 28);
	extra[3] = &shorter; /* the rest is zero */
	CHECK_RES(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra), 0);
	CHECK(fake.launch.params.len == 28 && fake.params[26] == 9 && fake.params[27] == 0);
}

struct attribute {
	uint32_t id, pad;
	union {
		uint32_t u[16];
		uint64_t q[8];
	};
};
_Static_assert(sizeof(struct attribute) == 72, "CUlaunchAttribute");

static int extended(struct attribute *attrs, unsigned count, unsigned grid)
{
	CUlaunchConfig c = {.gridDimX = grid, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};

	c.attrs = (void *)attrs;
	c.numAttrs = count;
	return (int)cuLaunchKernelEx(&c, k, args, NULL);
}

static void attributes(void)
{
	struct attribute a[65] = {{.id = 0}};
	CUevent e;

	CHECK_RES(cuEventCreate(&e, 2), 0);
	CHECK_RES(cuLaunchKernelEx(NULL, k, args, NULL), 1);
	CHECK_RES(extended(NULL, 0, 1), 0);
	CHECK(fake.launch.attrs.len == 0);
	CHECK_RES(extended(NULL, 1, 1), 1);
	CHECK_RES(extended(a, 65, 1), 1);
	a[0] = (struct attribute){.id = 4, .u = {2, 1, 1}};
	a[1] = (struct attribute){.id = 0};
	a[2] = (struct attribute){.id = 6, .u = {1}};
	CHECK_RES(extended(a, 3, 8), 0);
	CHECK(fake.launch.attrs.len == 144 && fake.attrs[0] == 4 && fake.attrs[8] == 2 && fake.attrs[72] == 6);
	CHECK_RES(extended(a, 3, 7), 912); /* the grid is no multiple */
	a[0].u[0] = 16;
	CHECK_RES(extended(a, 1, 16), 912); /* larger than portable */
	CHECK_RES(cuFuncSetAttribute(k, 14, 1), 0);
	CHECK_RES(extended(a, 1, 16), 0);
	a[0].u[0] = 32;
	CHECK_RES(extended(a, 1, 32), 912);
	a[0].u[0] = 0;
	CHECK_RES(extended(a, 1, 32), 1);
	/* event handles travel as ids */
	a[0] = (struct attribute){.id = 7, .q = {(uintptr_t)e}};
	a[0].u[3] = 1;
	CHECK_RES(extended(a, 1, 1), 0);
	CHECK(fake.launch.attrs.len == 72);
	{
		struct attribute got;
		memcpy(&got, fake.attrs, sizeof got);
		CHECK(got.q[0] > 15 && got.q[0] < CW_HANDLE_COUNT && got.u[3] == 1);
	}
	a[0].q[0] = 0xdead00;
	CHECK_RES(extended(a, 1, 1), 400);
	a[0] = (struct attribute){.id = 13, .u = {1}};
	CHECK_RES(extended(a, 1, 1), 801);
	a[0] = (struct attribute){.id = 99};
	CHECK_RES(extended(a, 1, 1), 1);
	/* cooperative launches must fit: 64 blocks of 32 threads on each of 132 multiprocessors,
	 * but 32 blocks at most */
	a[0] = (struct attribute){.id = 2, .u = {1}};
	CHECK_RES(extended(a, 1, 132 * 32), 0);
	CHECK(fake.launch.flags == CW_LAUNCH_COOPERATIVE && fake.launch.attrs.len == 0);
	CHECK_RES(extended(a, 1, 132 * 32 + 1), 720);
	CHECK_RES(cuLaunchCooperativeKernel(k, 132 * 4, 1, 1, 512, 1, 1, 0, NULL, args), 0);
	CHECK_RES(cuLaunchCooperativeKernel(k, 132 * 4 + 1, 1, 1, 512, 1, 1, 0, NULL, args), 720);
}

/* Not a benchmark: what the entry itself costs, without a ring. */
static void cost(void)
{
	enum { N = 200000 };
	struct timespec t0, t1;
	double ns;

	clock_gettime(CLOCK_MONOTONIC, &t0);
	for (int i = 0; i < N; i++)
		if (cuLaunchKernel(k, 1, 1, 1, 32, 1, 1, 0, NULL, args, NULL))
			fake.failures++;
	clock_gettime(CLOCK_MONOTONIC, &t1);
	ns = ((double)(t1.tv_sec - t0.tv_sec) * 1e9 + (double)(t1.tv_nsec - t0.tv_nsec)) / N;
	printf("cuLaunchKernel without a ring: %.0f ns\n", ns);
}

int main(void)
{
	CUmodule m;

	CHECK_RES(cuInit(0), 0);
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	CHECK_RES(cuModuleLoadData(&m, ptx), 0);
	CHECK_RES(cuModuleGetFunction(&k, m, "k"), 0);
	CHECK_RES(cuModuleGetFunction(&none, m, "none"), 0);
	limits();
	handles();
	bytes();
	attributes();
	cost();
	return fake.failures != 0;
}
