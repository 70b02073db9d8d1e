// Linking at run time: PTX modules into one image, from memory and from a file; what is undefined,
// or defined twice.
#include "driver.h"

#include <string>
#include <vector>

static const char head[] = ".version 7.0\n.target sm_75\n.address_size 64\n";

// Both modules have a function of their own of the same name.
static const char caller[] = R"(
.extern .func (.param .b32 r) helper(.param .b32 a);
.extern .global .align 4 .u32 offset;
.func (.reg .u32 r) own(.reg .u32 a) { add.u32 r, a, 1000; ret; }
.visible .entry k(.param .u64 p)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<7>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    {
        .param .b32 a;
        .param .b32 r;
        st.param.b32 [a], %r1;
        call.uni (r), helper, (a);
        ld.param.b32 %r2, [r];
    }
    call.uni (%r3), own, (%r2);
    ld.global.u32 %r4, [offset];
    add.u32 %r5, %r3, %r4;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r5;
    ret;
}
)";
static const char helper[] = R"(
.visible .global .align 4 .u32 offset = 50000;
.func (.reg .u32 r) own(.reg .u32 a) { mul.lo.u32 r, a, a; ret; }
.visible .func (.param .b32 r) helper(.param .b32 a)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [a];
    call.uni (%r2), own, (%r1);
    add.u32 %r3, %r2, 7;
    st.param.b32 [r], %r3;
    ret;
}
)";

static std::string module(const char *body) { return std::string(head) + body; }

struct Link {
    char errors[1024] = "";
    CUlinkState state;
    Link()
    {
        CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        values[0] = errors;
        values[1] = (void *)(uintptr_t)sizeof errors;
        CU(cuLinkCreate(2, options, values, &state));
    }
    ~Link() { CU(cuLinkDestroy(state)); }
    CUresult add(const std::string &text, const char *name)
    {
        return cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)text.c_str(), text.size() + 1, name, 0, nullptr, nullptr);
    }
    bool says(const char *what) const { return strstr(errors, what) != nullptr; }
    void *values[2]; // written for as long as the link lives
};

static void run(void *image, const char *what)
{
    CUmodule m;
    CUfunction f;
    CUdeviceptr p;
    int h[32];
    bool good = true;
    CU(cuModuleLoadData(&m, image));
    CU(cuModuleGetFunction(&f, m, "k"));
    CU(cuMemAlloc(&p, sizeof h));
    void *params[] = {&p};
    CU(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
    CU(cuMemcpyDtoH(h, p, sizeof h));
    for (int i = 0; i < 32; i++)
        good = good && h[i] == i * i + 7 + 1000 + 50000;
    printf("h[5] = %d\n", h[5]);
    expect(good, what);
    CU(cuMemFree(p));
    CU(cuModuleUnload(m));
}

int main()
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    const std::string a = module(caller), b = module(helper);
    {
        Link l;
        void *image = nullptr, *again = nullptr;
        size_t size = 0;
        CU(l.add(a, "caller.ptx"));
        CU(l.add(b, nullptr));
        CU(cuLinkComplete(l.state, &image, &size));
        expect(image && size > 0, "linked");
        std::vector<char> copy((char *)image, (char *)image + size);
        copy.push_back(0);
        run(image, "as it is");
        printf("completed again: %s\n", name_of(cuLinkComplete(l.state, &again, &size)));
        printf("added afterwards: %s\n", name_of(l.add(b, "late")));
        run(copy.data(), "as a copy");
    }
    {
        Link l;
        void *image;
        size_t size;
        char path[] = "/tmp/links-XXXXXX";
        int fd = mkstemp(path);
        FILE *file = fdopen(fd, "w");
        fputs(b.c_str(), file);
        fclose(file);
        CU(l.add(a, "caller.ptx"));
        CU(cuLinkAddFile(l.state, CU_JIT_INPUT_PTX, path, 0, nullptr, nullptr));
        remove(path);
        CU(cuLinkComplete(l.state, &image, &size));
        run(image, "from a file");
        printf("a file afterwards: %s\n", name_of(cuLinkAddFile(l.state, CU_JIT_INPUT_PTX, path, 0, nullptr, nullptr)));
    }
    {
        Link l;
        void *image;
        size_t size;
        CU(l.add(a, "caller.ptx"));
        printf("undefined: %s\n", name_of(cuLinkComplete(l.state, &image, &size)));
        expect(l.says("'helper'") || l.says("'offset'"), "the name is in the log");
    }
    {
        Link l;
        CU(l.add(b, "first"));
        printf("twice: %s\n", name_of(l.add(b, "second")));
        expect(l.says("Multiple definition") && l.says("second"), "that is in the log");
    }
    {
        Link l;
        printf("no data: %s\n", name_of(cuLinkAddData(l.state, CU_JIT_INPUT_PTX, nullptr, 10, "x", 0, nullptr, nullptr)));
        printf("no such file: %s\n", name_of(cuLinkAddFile(l.state, CU_JIT_INPUT_PTX, "/nonexistent", 0, nullptr, nullptr)));
        printf("no such kind: %s\n", name_of(cuLinkAddData(l.state, (CUjitInputType)77, (void *)b.c_str(), b.size(), "x", 0, nullptr, nullptr)));
        printf("no place for the image: %s\n", name_of(cuLinkComplete(l.state, nullptr, nullptr)));
    }
    printf("no link: %s\n", name_of(cuLinkCreate(0, nullptr, nullptr, nullptr)));
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
