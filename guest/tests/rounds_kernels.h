// rounds.cu's mode of kernels that are launched by their own handles.
#pragma once

// A library with a variable, and kernels that count in it and show it.
static const char tally_text[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                 ".visible .global .align 4 .u32 tally = 5;\n"
                                 ".visible .entry bump(.param .u32 inc)\n"
                                 "{\n"
                                 "\t.reg .b32 %r<3>;\n"
                                 "\tld.param.u32 %r1, [inc]; ld.global.u32 %r2, [tally]; mad.lo.u32 %r2, %r2, 1664525, %r1; st.global.u32 [tally], %r2;\n"
                                 "\tret;\n"
                                 "}\n"
                                 ".visible .entry show(.param .u64 at)\n"
                                 "{\n"
                                 "\t.reg .b32 %r<2>; .reg .b64 %d<2>;\n"
                                 "\tld.param.u64 %d1, [at]; ld.global.u32 %r1, [tally]; st.global.u32 [%d1], %r1;\n"
                                 "\tret;\n"
                                 "}\n";

// kernels: of a library, launched by their handles (CUkernel) in two contexts, each of which has
// the library's variable for itself. Nobody asks for a function, a module or the variable's
// address.
static void kernels(Rounds &r)
{
#if CUDART_VERSION >= 12000
    enum { CONTEXTS = 2 };
    CUlibrary library;
    CUkernel bump, show;
    CUcontext context[CONTEXTS];
    CUdeviceptr shown[CONTEXTS];
    uint32_t want[CONTEXTS] = {5, 5};
    CUDA(cudaFree(0));
    DRIVER(cuCtxGetCurrent, &context[0]);
    DRIVER(cuLibraryLoadData, &library, tally_text, nullptr, nullptr, 0, nullptr, nullptr, 0);
    DRIVER(cuLibraryGetKernel, &bump, library, "bump");
    DRIVER(cuLibraryGetKernel, &show, library, "show");
    // The newest forms of these have other arguments by toolkit.
    auto create = driver((CUresult(*)(CUcontext *, unsigned, CUdevice))nullptr, "cuCtxCreate_v2");
    auto allocate = driver((CUresult(*)(CUdeviceptr *, size_t))nullptr, "cuMemAlloc_v2");
    auto read = driver((CUresult(*)(void *, CUdeviceptr, size_t))nullptr, "cuMemcpyDtoH_v2");
    auto destroy = driver((CUresult(*)(CUcontext))nullptr, "cuCtxDestroy_v2");
    expect(create(&context[1], 0, 0) == CUDA_SUCCESS, "a second context");
    for (int i = 0; i < CONTEXTS; i++) {
        DRIVER(cuCtxSetCurrent, context[i]);
        expect(allocate(&shown[i], 4) == CUDA_SUCCESS, "memory");
    }
    while (r.next()) {
        for (uint32_t i = 0; i < CONTEXTS; i++) {
            uint32_t inc = (uint32_t)r.n * CONTEXTS + i, got = 0;
            void *by[] = {&inc}, *at[] = {&shown[i]};
            DRIVER(cuCtxSetCurrent, context[i]);
            DRIVER(cuLaunchKernel, (CUfunction)bump, 1, 1, 1, 1, 1, 1, 0, nullptr, by, nullptr);
            DRIVER(cuLaunchKernel, (CUfunction)show, 1, 1, 1, 1, 1, 1, 0, nullptr, at, nullptr);
            want[i] = want[i] * 1664525u + inc;
            r.check(read(&got, shown[i], 4) == CUDA_SUCCESS && got == want[i]);
        }
    }
    expect(destroy(context[1]) == CUDA_SUCCESS, "the second context ends");
    DRIVER(cuCtxSetCurrent, context[0]);
    DRIVER(cuLibraryUnload, library);
#else
    (void)r;
    printf("this toolkit has no libraries\n");
    _Exit(77);
#endif
}
