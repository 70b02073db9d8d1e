// Managed variables of code that is loaded at run time: every way to load it, as text and as what a
// linker made of it; host and kernels at one address. needs: cuda 12.9
#include "driver.h"

#include <string>
#include <unistd.h>

static const char *text = R"(.version 6.4
.target sm_75
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 count = 5;
.visible .global .attribute(.managed) .align 8 .b8 list[4000];
.visible .global .align 4 .u32 plain = 9;
.visible .entry step(.param .u64 out)
{
	.reg .b32 %a;
	.reg .b64 %p, %q;
	ld.param.u64 %p, [out];
	ld.global.u32 %a, [count];
	add.u32 %a, %a, 1;
	st.global.u32 [count], %a;
	ld.global.u32 %a, [plain];
	st.global.u32 [list+8], %a;
	add.u32 %a, %a, 1;
	st.global.u32 [plain], %a;
	mov.u64 %q, list;
	cvta.global.u64 %q, %q;
	st.global.u64 [%p], %q;
	ret;
}
)";

// The same, written by hand: several statements in a line, an address as another variable's first
// value.
static const char *dense = R"(.version 6.4
.target sm_75
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 count = 5; .visible .global .attribute(.managed) .align 8 .b8 list[4000];
.visible .global .align 4 .u32 plain = 9; .global .align 8 .u64 where = generic(list);
.visible .entry step(.param .u64 out) { .reg .b32 %a; .reg .b64 %p, %q; ld.param.u64 %p, [out]; ld.global.u32 %a, [count];
add.u32 %a, %a, 1; st.global.u32 [count], %a; ld.global.u32 %a, [plain]; st.global.u32 [list+8], %a; add.u32 %a, %a, 1;
st.global.u32 [plain], %a; ld.global.u64 %q, [where]; st.global.u64 [%p], %q; ret; }
)";

static CUdeviceptr out;

static void step(CUfunction f)
{
    void *args[] = {&out};
    CU(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
    CU(cuCtxSynchronize());
}

// work uses the variables of loaded code: what they held first, and what host and kernel make of
// them.
static void work(const char *what, CUdeviceptr count, size_t size, CUdeviceptr list, size_t bytes, CUfunction f)
{
    int managed = 0;
    CUdeviceptr base = 0, named = 0;
    size_t range = 0;
    CU(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, count));
    CU(cuMemGetAddressRange(&base, &range, count));
    unsigned *c = (unsigned *)count, *l = (unsigned *)list;
    unsigned first = *c, plain = l[2];
    *c += 10;
    step(f);
    CU(cuMemcpyDtoH(&named, out, sizeof named));
    printf("%s: %zu and %zu bytes, managed %d, range %s %zu, first %u, after a kernel %u, list %u %s\n", what, size, bytes, managed,
           base == count ? "right" : "wrong", range, first, *c, l[2], named == list ? "where the kernel sees it" : "elsewhere");
    expect(*c == first + 11 && l[2] >= 9 && plain == (l[2] == 9 ? 0 : l[2] - 1), what);
}

static void module(const char *what, CUmodule m)
{
    CUdeviceptr count, list;
    size_t size, bytes;
    CUfunction f;
    CU(cuModuleGetFunction(&f, m, "step")); // looked up before the variables
    CU(cuModuleGetGlobal(&count, &size, m, "count"));
    CU(cuModuleGetGlobal(&list, &bytes, m, "list"));
    work(what, count, size, list, bytes, f);
}

static void library(const char *what, CUlibrary lib)
{
    CUdeviceptr count, list, other;
    size_t size, bytes;
    CUkernel k;
    CUfunction f;
    CU(cuLibraryGetKernel(&k, lib, "step"));
    CU(cuKernelGetFunction(&f, k));
    step(f); // runs before anybody asks
    CU(cuLibraryGetManaged(&count, &size, lib, "count"));
    CU(cuLibraryGetManaged(&list, &bytes, lib, "list"));
    CU(cuLibraryGetGlobal(&other, &size, lib, "count"));
    expect(other == count, "a global as well");
    printf("a plain variable is not managed: %s\n", name_of(cuLibraryGetManaged(&other, &size, lib, "plain")));
    work(what, count, size, list, bytes, f);
    CUmodule m;
    CU(cuLibraryGetModule(&m, lib));
    module("module of a library", m);
}

static void loaded(const char *kind, const void *image)
{
    CUmodule m;
    CUlibrary lib;
    printf("--- %s\n", kind);
    CU(cuModuleLoadData(&m, image));
    module("cuModuleLoadData", m);
    CUmodule again;
    CU(cuModuleLoadDataEx(&again, image, 0, nullptr, nullptr));
    module("cuModuleLoadDataEx, a second copy", again);
    module("the first copy again", m);
    CU(cuModuleUnload(again));
    CU(cuModuleUnload(m));
    CU(cuModuleLoadFatBinary(&m, image));
    module("cuModuleLoadFatBinary", m);
    CU(cuModuleUnload(m));
    CU(cuLibraryLoadData(&lib, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    library("cuLibraryLoadData", lib);
    CU(cuLibraryUnload(lib));
}

static void files()
{
    char path[] = "/tmp/managedload.XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0) {
        printf("cannot write %s\n", path);
        _Exit(1);
    }
    CUmodule m;
    CUlibrary lib;
    printf("--- files\n");
    CU(cuModuleLoad(&m, path));
    module("cuModuleLoad", m);
    CU(cuModuleUnload(m));
    CU(cuLibraryLoadFromFile(&lib, path, nullptr, nullptr, 0, nullptr, nullptr, 0));
    library("cuLibraryLoadFromFile", lib);
    CU(cuLibraryUnload(lib));
    unlink(path);
}

static void many()
{
    unsigned sum = 0;
    for (int i = 0; i < 40; i++) {
        CUmodule m;
        CUdeviceptr p;
        size_t n;
        CU(cuModuleLoadData(&m, text));
        CU(cuModuleGetGlobal(&p, &n, m, "count"));
        sum += *(unsigned *)p;
        *(unsigned *)p = 1000;
        CU(cuModuleUnload(m));
    }
    expect(sum == 200, "loaded and unloaded forty times");
}

int main()
{
    note_device();
    CUDA(cudaFree(nullptr));
    int can = 0;
    CUDA(cudaDeviceGetAttribute(&can, cudaDevAttrManagedMemory, 0));
    if (!can) {
        note("no managed memory here");
        return 77;
    }
    CU(cuMemAlloc(&out, 8));
    loaded("text", text);
    loaded("text by hand", dense);
    files();
    CUlinkState link;
    void *image;
    size_t size;
    CU(cuLinkCreate(0, nullptr, nullptr, &link));
    CU(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)text, strlen(text) + 1, "text", 0, nullptr, nullptr));
    CU(cuLinkComplete(link, &image, &size));
    loaded("linked", image);
    CU(cuLinkDestroy(link));
    many();
    CU(cuMemFree(out));
    return finish();
}
