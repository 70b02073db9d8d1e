// Many modules and libraries at once: each has its own functions and variables, memory comes back,
// handles do not outlive them.
// usage: modules [modules] needs: cuda 12.0
#include "driver.h"

#include <string>
#include <vector>

static std::string text(int i)
{
    std::string n = std::to_string(i);
    return ".version 7.0\n.target sm_70\n.address_size 64\n"
           ".visible .global .align 4 .u32 value = " + std::to_string(1000 + i) + ";\n"
           ".visible .const .align 4 .u32 factor = " + std::to_string(i + 1) + ";\n"
           ".visible .entry run" + n + "(.param .u64 out)\n{\n"
           ".reg .u32 %a<4>; .reg .u64 %p<3>;\n"
           "ld.param.u64 %p0, [out]; cvta.to.global.u64 %p1, %p0;\n"
           "ld.global.u32 %a0, [value]; ld.const.u32 %a1, [factor];\n"
           "mul.lo.u32 %a2, %a0, %a1; add.u32 %a2, %a2, " + n + ";\n"
           "st.global.u32 [%p1], %a2; st.global.u32 [value], %a2; ret;\n}\n";
}

static unsigned want(int i) { return (1000 + i) * (i + 1) + i; }

static void modules(int count, CUdeviceptr out)
{
    std::vector<CUmodule> m(count);
    std::vector<CUfunction> f(count);
    std::vector<unsigned> got(count);
    std::vector<CUdeviceptr> values(count);
    for (int i = 0; i < count; i++) {
        CU(cuModuleLoadData(&m[i], text(i).c_str()));
        CU(cuModuleGetFunction(&f[i], m[i], ("run" + std::to_string(i)).c_str()));
        size_t size = 0;
        CU(cuModuleGetGlobal(&values[i], &size, m[i], "value"));
    }
    bool apart = true;
    for (int i = 1; i < count; i++)
        apart = apart && values[i] != values[i - 1];
    expect(apart, "variables of their own");
    CUfunction none;
    printf("another module's function: %s\n", name_of(cuModuleGetFunction(&none, m[0], "run1")));
    for (int i = 0; i < count; i++) {
        CUdeviceptr at = out + 4 * i;
        void *args[] = {&at};
        CU(cuLaunchKernel(f[i], 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
    }
    // Half of them go before anybody waited for their kernels.
    for (int i = 0; i < count; i += 2)
        CU(cuModuleUnload(m[i]));
    CU(cuMemcpyDtoH(got.data(), out, 4 * count));
    bool good = true;
    for (int i = 0; i < count; i++)
        good = good && got[i] == want(i);
    expect(good, "every kernel ran");
    good = true;
    for (int i = 1; i < count; i += 2) {
        unsigned v = 0;
        CU(cuMemcpyDtoH(&v, values[i], 4));
        good = good && v == want(i);
        CU(cuModuleUnload(m[i]));
    }
    expect(good, "what they left in their variables");
}

static void libraries(int count, CUdeviceptr out)
{
    std::vector<CUlibrary> l(count);
    std::vector<unsigned> got(count);
    for (int i = 0; i < count; i++)
        CU(cuLibraryLoadData(&l[i], text(i).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    for (int i = count - 1; i >= 0; i--) {
        CUkernel k;
        CU(cuLibraryGetKernel(&k, l[i], ("run" + std::to_string(i)).c_str()));
        CUdeviceptr at = out + 4 * i;
        void *args[] = {&at};
        CU(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
    }
    CU(cuMemcpyDtoH(got.data(), out, 4 * count));
    bool good = true;
    for (int i = 0; i < count; i++)
        good = good && got[i] == want(i);
    expect(good, "kernels of libraries");
    for (int i = 0; i < count; i++)
        CU(cuLibraryUnload(l[i]));
}

int main(int argc, char **argv)
{
    const int count = (int)argument(argc, argv, 1, 100);
    CUdevice device;
    CUcontext context;
    CUdeviceptr out;
    size_t before, after, total;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc(&out, 4 * count));
    CU(cuMemGetInfo(&before, &total));
    double start = seconds();
    modules(count, out);
    note("%d modules: %.3f ms", count, (seconds() - start) * 1e3);
    start = seconds();
    libraries(count, out);
    note("%d libraries: %.3f ms", count, (seconds() - start) * 1e3);
    // The same image again and again.
    std::string same = text(7);
    unsigned got = 0;
    bool good = true;
    for (int i = 0; i < count; i++) {
        CUmodule m;
        CUfunction f;
        CU(cuModuleLoadData(&m, same.c_str()));
        CU(cuModuleGetFunction(&f, m, "run7"));
        void *args[] = {&out};
        CU(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
        CU(cuMemcpyDtoH(&got, out, 4));
        good = good && got == want(7); // the variable starts anew
        CU(cuModuleUnload(m));
    }
    expect(good, "the same image, loaded again");
    CU(cuMemGetInfo(&after, &total));
    note("free memory: %zd KiB less", (ssize_t)(before - after) >> 10);
    CUmodule m;
    printf("broken text: %s\n", name_of(cuModuleLoadData(&m, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { bad; }\n")));
    printf("a newer GPU's text: %s\n", name_of(cuModuleLoadData(&m, ".version 8.7\n.target sm_120\n.address_size 64\n.visible .entry k() { ret; }\n")));
    CU(cuMemFree(out));
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
