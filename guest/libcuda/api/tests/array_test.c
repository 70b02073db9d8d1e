/* Arrays, textures, tensor maps, links, logs: what is answered without the worker, and what reaches
 * it. */
#include <stdlib.h>

#include "api/texture.h"
#include "fake_host.h"
#include "memory/array.h"

static CUcontext begin(void)
{
	CUcontext ctx = NULL;

	fake_reset();
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	return ctx;
}

static void arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 16, .Height = 8, .Format = 0x20, .NumChannels = 2, .Flags = 2}, got;
	CUDA_ARRAY_DESCRIPTOR flat;
	CUarray a = NULL, level, again;
	CUmipmappedArray m;
	CUcontext ctx;

	fake_reset();
	CHECK_RES(cuArray3DCreate_v2(&a, &d), 201);
	ctx = begin();
	CHECK_RES(cuArray3DCreate_v2(NULL, &d), 1);
	CHECK_RES(cuArray3DCreate_v2(&a, NULL), 1);
	fake.fail_op = CW_OP_ARRAY_CREATE;
	fake.fail_result = 2;
	CHECK_RES(cuArray3DCreate_v2(&a, &d), 2);
	fake.fail_op = 0;
	CHECK_RES(cuArray3DCreate_v2(&a, &d), 0);
	CHECK_RES(cuArray3DGetDescriptor_v2(&got, a), 0);
	CHECK(!memcmp(&got, &d, sizeof d));
	CHECK_RES(cuArrayGetDescriptor_v2(&flat, a), 0);
	CHECK(flat.Width == 16 && flat.Height == 8 && flat.NumChannels == 2);
	CHECK(cw_array_holds(cw_array_get(a), 0, 0, 0, 128, 8, 1) == 0);
	CHECK(cw_array_holds(cw_array_get(a), 1, 7, 0, 127, 1, 1) == 0);
	CHECK(cw_array_holds(cw_array_get(a), 1, 0, 0, 128, 1, 1) == 1);
	CHECK(cw_array_holds(cw_array_get(a), 0, 1, 0, 8, 8, 1) == 1);
	CHECK(cw_array_holds(cw_array_get(a), 0, 0, 1, 8, 1, 1) == 1);
	CHECK(cw_array_holds(cw_array_get(a), UINT64_MAX, 0, 0, 8, 1, 1) == 1);
	CHECK_RES(cuMemcpyHtoA_v2(a, 0, &d, 129), 1);
	CHECK_RES(cuMemcpyHtoA_v2((CUarray)ctx, 0, &d, 8), 1);
	CHECK_RES(cuArray3DGetDescriptor_v2(&got, (CUarray)ctx), 400);
	CHECK_RES(cuMipmappedArrayCreate(&m, &d, 3), 0);
	CHECK_RES(cuMipmappedArrayGetLevel(&level, m, 1), 0);
	CHECK_RES(cuMipmappedArrayGetLevel(&again, m, 1), 0);
	CHECK(level == again && fake.count[CW_OP_MIPMAP_GET_LEVEL] == 1);
	CHECK_RES(cuArrayDestroy(level), 0); /* accepted, without effect */
	CHECK(fake.count[CW_OP_ARRAY_DESTROY] == 0);
	CHECK_RES(cuArray3DGetDescriptor_v2(&got, level), 0);
	CHECK_RES(cuMipmappedArrayDestroy(m), 0);
	CHECK_RES(cuArray3DGetDescriptor_v2(&got, level), 400);
	CHECK_RES(cuArrayDestroy(a), 0);
	CHECK_RES(cuArrayDestroy(a), 400);
	CHECK_RES(cuArray3DCreate_v2(&a, &d), 0);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
	CHECK_RES(cuArray3DGetDescriptor_v2(&got, a), 400);
}

static void textures(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 16, .Format = 0x20, .NumChannels = 1};
	CUDA_RESOURCE_DESC r = {0}, got;
	CUDA_TEXTURE_DESC t = {.address = {1, 1, 1}};
	CUDA_RESOURCE_VIEW_DESC view;
	CUtexObject o = 99;
	CUsurfObject s = 99;
	CUcontext ctx = begin();

	CHECK_RES(cuTexObjectCreate(&o, &r, &t, NULL), 1); /* no array */
	CHECK_RES(cuArray3DCreate_v2((CUarray *)&r.res.handle, &d), 0);
	CHECK_RES(cuTexObjectCreate(&o, &r, NULL, NULL), 1);
	CHECK_RES(cuTexObjectCreate(&o, &r, &t, NULL), 0);
	CHECK_RES(cuTexObjectGetResourceDesc(&got, o), 0);
	CHECK(got.res.handle == r.res.handle);
	memset(&view, 0xee, sizeof view);
	CHECK_RES(cuTexObjectGetResourceViewDesc(&view, o), 0);
	CHECK(view.format == 0xeeeeeeee);
	CHECK_RES(cuTexObjectGetResourceDesc(&got, o + 1), 1);
	CHECK_RES(cuTexObjectDestroy(o + 1), 0);
	CHECK(fake.count[CW_OP_TEX_OBJECT_DESTROY] == 0);
	CHECK_RES(cuSurfObjectCreate(&s, &r), 0);
	CHECK_RES(cuSurfObjectGetResourceDesc(&got, s), 0);
	CHECK_RES(cuTexObjectDestroy(o), 0);
	CHECK_RES(cuTexObjectDestroy(o), 0);
	CHECK(fake.count[CW_OP_TEX_OBJECT_DESTROY] == 1);
	/* Of the same value, but another kind. */
	CHECK_RES(cuSurfObjectGetResourceDesc(&got, s), 0);
	r.type = 9;
	CHECK_RES(cuTexObjectCreate(&o, &r, &t, NULL), 1);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
	CHECK_RES(cuSurfObjectGetResourceDesc(&got, s), 1);
}

static void links(void)
{
	CUlinkState l = NULL;
	CUcontext ctx = begin();
	void *image;
	size_t size;

	CHECK_RES(cuLinkCreate_v2(0, NULL, NULL, NULL), 1);
	CHECK_RES(cuLinkCreate_v2(1, NULL, NULL, &l), 1);
	CHECK_RES(cuLinkCreate_v2(0, NULL, NULL, &l), 0);
	CHECK_RES(cuLinkAddData_v2(l, CU_JIT_INPUT_PTX, NULL, 4, "x", 0, NULL, NULL), 1);
	CHECK_RES(cuLinkAddData_v2(l, CU_JIT_INPUT_PTX, "text", 0, "x", 0, NULL, NULL), 1);
	CHECK_RES(cuLinkAddData_v2(l, (CUjitInputType)77, "text", 5, "x", 0, NULL, NULL), 1);
	CHECK_RES(cuLinkAddData_v2((CUlinkState)ctx, CU_JIT_INPUT_PTX, "text", 5, "x", 0, NULL, NULL), 400);
	CHECK_RES(cuLinkAddData_v2(l, CU_JIT_INPUT_PTX, "text", 5, NULL, 0, NULL, NULL), 0);
	CHECK_RES(cuLinkAddFile_v2(l, CU_JIT_INPUT_PTX, "/nonexistent", 0, NULL, NULL), 301);
	CHECK_RES(cuLinkComplete(l, NULL, &size), 1);
	CHECK_RES(cuLinkComplete((CUlinkState)ctx, &image, &size), 400);
	CHECK_RES(cuLinkDestroy(l), 0);
	CHECK_RES(cuLinkDestroy(l), 400);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
}

static int heard;
static void listen(void *data, int level, char *message, size_t length)
{
	CHECK(data == &heard && level == 0 && strlen(message) == length);
	heard += strstr(message, "cuArrayDestroy") != NULL;
}

static void logs(void)
{
	CUcontext ctx = begin();
	CUlogsCallbackHandle h = NULL;
	CUlogIterator at, same;
	char text[4096], little[150];
	size_t size = sizeof text;

	CHECK_RES(cuLogsCurrent(NULL, 0), 1);
	CHECK_RES(cuLogsRegisterCallback(NULL, NULL, &h), 1);
	CHECK_RES(cuLogsRegisterCallback(listen, &heard, &h), 0);
	CHECK_RES(cuLogsCurrent(&at, 0), 0);
	CHECK_RES(cuArrayDestroy(NULL), 400);
	CHECK(heard == 1);
	same = at;
	CHECK_RES(cuLogsDumpToMemory(&at, text, &size, 0), 0);
	CHECK(at == same + 1 && size == strlen(text) &&
	      strstr(text, "[CUDA][E] Returning 400 (CUDA_ERROR_INVALID_HANDLE) from cuArrayDestroy\n"));
	size = sizeof text;
	CHECK_RES(cuLogsDumpToMemory(&at, text, &size, 0), 0);
	CHECK(size == 0 && text[0] == 0);
	for (int i = 0; i < 3; i++)
		cuArrayDestroy(NULL);
	size = sizeof little;
	CHECK_RES(cuLogsDumpToMemory(NULL, little, &size, 0), 0);
	CHECK(size == strlen(little) && strstr(little, "not large enough"));
	size = 0;
	CHECK_RES(cuLogsDumpToMemory(NULL, text, &size, 0), 1);
	CHECK_RES(cuLogsUnregisterCallback(h), 0);
	CHECK_RES(cuLogsUnregisterCallback(h), 1);
	CHECK_RES(cuArrayDestroy(NULL), 400);
	CHECK(heard == 4);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
}

static void tensor_maps(void)
{
	CUcontext ctx = begin();
	uint64_t map[16], dims[2] = {64, 64}, strides[1] = {128};
	uint32_t box[2] = {8, 8}, ones[2] = {1, 1};

	CHECK_RES(cuTensorMapEncodeTiled(NULL, 6, 2, NULL, dims, strides, box, ones, 0, 0, 0, 0), 1);
	CHECK_RES(cuTensorMapEncodeTiled((CUtensorMap *)map, 6, 0, NULL, dims, strides, box, ones, 0, 0, 0, 0), 1);
	CHECK_RES(cuTensorMapEncodeTiled((CUtensorMap *)map, 6, 6, NULL, dims, strides, box, ones, 0, 0, 0, 0), 1);
	CHECK_RES(cuTensorMapEncodeTiled((CUtensorMap *)map, 6, 2, NULL, NULL, strides, box, ones, 0, 0, 0, 0), 1);
	CHECK_RES(cuTensorMapEncodeTiled((CUtensorMap *)map, 6, 2, NULL, dims, strides, NULL, ones, 0, 0, 0, 0), 1);
	CHECK_RES(cuTensorMapReplaceAddress(NULL, NULL), 1);
	CHECK(fake.count[CW_OP_TENSOR_MAP_ENCODE] == 0);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
}

int main(void)
{
	CHECK_RES(cuInit(0), 0);
	arrays();
	textures();
	links();
	logs();
	tensor_maps();
	if (fake.failures)
		return 1;
	puts("array_test ok");
	return 0;
}
