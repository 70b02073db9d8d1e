/* The launch interface of CUDA 3: what each setting refuses, what a function keeps, and which bytes
 * a launch then carries. */
#include <limits.h>

#include "fake_host.h"

static const char ptx[] = ".version 8.0\n.target sm_90\n";
static CUcontext ctx;
static CUmodule module;
static CUfunction k, none;

/* k takes 8 bytes at 0, 4 at 8 and 12 at 16. */
static void arguments(void)
{
	static const uint8_t want[28] = {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x22, 0x22, 0,    0,
					 0,    0,    3,	   3,	 3,    3,    3,	   3,	 3,    3,    0,	   0,	 0x80, 0x3f};
	uint64_t first = 0x1111111111111111;
	uint8_t last[20];

	memset(last, 3, sizeof last);
	CHECK_RES(cuFuncSetBlockShape(k, 5, 6, 7), 0);
	CHECK_RES(cuFuncSetSharedSize(k, 8), 0);
	CHECK_RES(cuLaunch(k), 0); /* of zeros */
	CHECK(fake.launch.params.len == 28 && fake.params[0] == 0 && !memcmp(fake.params, fake.params + 1, 27));
	CHECK_RES(cuParamSetv(k, 16, last, sizeof last), 0);
	CHECK_RES(cuParamSetf(k, 24, 1.0f), 0);
	CHECK_RES(cuParamSeti(k, 8, 0x22222222), 0);
	CHECK_RES(cuParamSetv(k, 0, &first, sizeof first), 0);
	CHECK_RES(cuParamSetSize(k, 28), 0);
	CHECK_RES(cuLaunchGrid(k, 2, 3), 0);
	CHECK(fake.launch.gx == 2 && fake.launch.gy == 3 && fake.launch.gz == 1 && fake.launch.stream == 1);
	CHECK(fake.launch.bx == 5 && fake.launch.by == 6 && fake.launch.bz == 7 && fake.launch.shared == 8);
	CHECK(fake.launch.params.len == 28 && !memcmp(fake.params, want, 28));
	/* it keeps all that, whatever else launches it */
	CHECK_RES(cuParamSeti(k, 16, 0), 0);
	CHECK_RES(cuLaunch(k), 0);
	CHECK(fake.launch.gx == 1 && fake.launch.gy == 1 && fake.launch.gz == 1 && fake.launch.bz == 7);
	CHECK(!memcmp(fake.params, want, 16) && fake.params[19] == 0 && fake.params[20] == 3);
	/* a smaller size changes nothing, a larger one asks for what the function does not have */
	CHECK_RES(cuParamSetSize(k, 26), 0);
	CHECK_RES(cuLaunch(k), 0);
	CHECK(fake.launch.params.len == 28 && fake.params[23] == 3 && fake.params[27] == 0x3f);
	CHECK_RES(cuParamSetSize(k, 29), 0);
	CHECK_RES(cuLaunch(k), 701);
}

static void ranges(void)
{
	static const struct {
		int x, y, z, want;
	} shapes[] = {
		{1024, 1, 1, 0}, {1, 1024, 1, 0}, {1, 1, 64, 0}, {1025, 1, 1, 1},    {1, 1, 65, 1},
		{32, 32, 2, 1},	 {0, 1, 1, 1},	  {1, -1, 1, 1}, {1, 1, INT_MIN, 1}, {INT_MAX, INT_MAX, INT_MAX, 1},
		{1, 1, 1, 0},
	};
	static const struct {
		int offset;
		unsigned bytes;
		int want;
	} places[] = {
		{0, 0, 0},  {32764, 0, 0},   {32760, 4, 0},   {27, 200, 0},	{28, 200, 0},  {32761, 4, 1}, {-1, 4, 1},
		{-1, 0, 1}, {INT_MIN, 4, 1}, {INT_MAX, 1, 1}, {4, UINT_MAX, 1}, {0, 32765, 1}, {32765, 0, 1},
	};
	static uint8_t data[32764];
	int res;

	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		res = (int)cuFuncSetBlockShape(none, shapes[i].x, shapes[i].y, shapes[i].z);
		CHECK_RES(res, shapes[i].want);
	}
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		res = (int)cuParamSetv(k, places[i].offset, data, places[i].bytes);
		CHECK_RES(res, places[i].want);
	}
	CHECK_RES(cuParamSetv(k, 0, NULL, 4), 1);
	CHECK_RES(cuParamSetv(k, 0, NULL, 0), 1);
	CHECK_RES(cuParamSeti(k, 32761, 1), 1);
	CHECK_RES(cuParamSetf(k, -4, 1), 1);
	CHECK_RES(cuParamSetSize(k, 32765), 1);
	CHECK_RES(cuFuncSetSharedSize(k, 49153), 1);
	CHECK_RES(cuFuncSetSharedSize(k, 49152), 0);
	/* a refused setting changes nothing */
	CHECK_RES(cuFuncSetBlockShape(k, 1, 2, 65), 1);
	CHECK_RES(cuParamSetSize(k, 28), 0);
	CHECK_RES(cuLaunchGrid(k, 65536, 1), 0);
	CHECK(fake.launch.gx == 65536 && fake.launch.bx == 5 && fake.launch.bz == 7 && fake.launch.shared == 49152);
	CHECK_RES(cuLaunchGrid(k, 1, 65536), 1);
	CHECK_RES(cuLaunchGrid(k, 0, 1), 1);
	CHECK_RES(cuLaunchGrid(k, 1, -1), 1);
	CHECK_RES(cuLaunchGrid(k, INT_MIN, 1), 1);
	/* the device could, this function cannot */
	CHECK_RES(cuFuncSetBlockShape(k, 1024, 1, 1), 0);
	CHECK_RES(cuLaunch(k), 701);
}

/* What a module names is found once, whoever asks how often, and ends with it; another name, and a
 * surface of the same name, is another. */
static void references(void)
{
	unsigned textures = fake.count[CW_OP_MODULE_GET_TEX_REF], surfaces = fake.count[CW_OP_MODULE_GET_SURF_REF];
	CUtexref first = NULL, again, another;
	CUsurfref surface, twice;
	CUmodule m;

	CHECK_RES(cuModuleLoadData(&m, ptx), 0);
	CHECK_RES(cuModuleGetTexRef(&first, m, "first"), 0);
	for (int i = 0; i < 1000; i++) {
		CHECK_RES(cuModuleGetTexRef(&again, m, "first"), 0);
		CHECK(again == first);
	}
	CHECK_RES(cuModuleGetTexRef(&another, m, "firs"), 0);
	CHECK_RES(cuModuleGetSurfRef(&surface, m, "first"), 0);
	CHECK_RES(cuModuleGetSurfRef(&twice, m, "first"), 0);
	CHECK(another != first && (void *)surface != (void *)first && surface == twice);
	CHECK(fake.count[CW_OP_MODULE_GET_TEX_REF] == textures + 2 && fake.count[CW_OP_MODULE_GET_SURF_REF] == surfaces + 1);
	CHECK_RES(cuModuleGetTexRef(NULL, m, "first"), 1);
	CHECK_RES(cuModuleGetTexRef(&again, m, NULL), 1);
	CHECK_RES(cuModuleGetTexRef(&again, NULL, "first"), 400);
	CHECK_RES(cuTexRefDestroy(first), 1);
	CHECK_RES(cuModuleUnload(m), 0);
	CHECK_RES(cuParamSetTexRef(k, -1, first), 400);
	CHECK_RES(cuSurfRefSetArray(surface, NULL, 0), 400);
}

static void handles(void)
{
	CUtexref of_module, own;
	CUstream stream;
	CUcontext other;
	CUfunction again;
	CUmodule m;

	CHECK_RES(cuFuncSetBlockShape(NULL, 1, 1, 1), 400);
	CHECK_RES(cuFuncSetSharedSize((CUfunction)ctx, 0), 400);
	CHECK_RES(cuParamSetSize((CUfunction)(void *)cuInit, 0), 400);
	CHECK_RES(cuParamSeti(NULL, 0, 0), 400);
	CHECK_RES(cuParamSetf(NULL, 0, 0), 400);
	CHECK_RES(cuParamSetv(NULL, 0, &stream, 4), 400);
	CHECK_RES(cuLaunch(NULL), 400);
	CHECK_RES(cuLaunchGrid(NULL, 1, 1), 400);
	CHECK_RES(cuStreamCreate(&stream, 0), 0);
	CHECK_RES(cuLaunchGridAsync(none, 1, 1, stream), 0);
	CHECK(fake.launch.stream > 2 && fake.launch.params.len == 0);
	CHECK_RES(cuLaunchGridAsync(none, 1, 1, (CUstream)2), 0);
	CHECK(fake.launch.stream == 2);
	CHECK_RES(cuLaunchGridAsync(none, 1, 1, NULL), 0);
	CHECK(fake.launch.stream == 1);
	CHECK_RES(cuLaunchGridAsync(none, 1, 1, (CUstream)0x40), 400);
	/* a function that is found again after its module was unloaded has forgotten all */
	CHECK_RES(cuModuleLoadData(&m, ptx), 0);
	CHECK_RES(cuModuleGetFunction(&again, m, "none"), 0);
	CHECK_RES(cuLaunch(again), 0);
	CHECK(fake.launch.bx == 1 && fake.launch.by == 1 && fake.launch.bz == 1);
	CHECK_RES(cuModuleUnload(m), 0);
	CHECK_RES(cuLaunch(again), 400);
	/* texture references are checked only */
	CHECK_RES(cuModuleGetTexRef(&of_module, module, "t"), 0);
	CHECK_RES(cuTexRefCreate(&own), 0);
	CHECK_RES(cuParamSetTexRef(k, -1, of_module), 0);
	CHECK_RES(cuParamSetTexRef(k, 0, of_module), 1);
	CHECK_RES(cuParamSetTexRef(k, -1, own), 1);
	CHECK_RES(cuParamSetTexRef(k, -1, NULL), 400);
	CHECK_RES(cuParamSetTexRef(NULL, -1, of_module), 400);
	references();
	CHECK_RES(cuCtxCreate_v2(&other, 0, 1), 0);
	CHECK_RES(cuFuncSetBlockShape(none, 1, 1, 1), 400);
	CHECK_RES(cuLaunch(none), 400);
	CHECK_RES(cuCtxDestroy_v2(other), 0);
	CHECK_RES(cuCtxSetCurrent(NULL), 0);
	CHECK_RES(cuFuncSetBlockShape(none, 1, 1, 1), 201);
	CHECK_RES(cuParamSetSize(none, 0), 201);
	CHECK_RES(cuLaunch(none), 201);
	CHECK_RES(cuCtxSetCurrent(ctx), 0);
}

int main(void)
{
	CHECK_RES(cuLaunch(NULL), 3);
	CHECK_RES(cuInit(0), 0);
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	CHECK_RES(cuModuleLoadData(&module, ptx), 0);
	CHECK_RES(cuModuleGetFunction(&k, module, "k"), 0);
	CHECK_RES(cuModuleGetFunction(&none, module, "none"), 0);
	arguments();
	ranges();
	handles();
	return fake.failures != 0;
}
