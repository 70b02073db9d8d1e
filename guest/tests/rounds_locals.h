// rounds.cu's mode of kernels that need much local memory, and of variables that are loaded behind
// the launch that has the driver take it.
#pragma once

// A kernel that writes 64 bytes to places of its local memory that its argument decides, and adds
// up what it reads there.
static const char hold_text[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .entry hold(.param .u64 at)\n"
                                "{\n"
                                "\t.local .align 4 .b8 room[%d];\n"
                                "\t.reg .b32 %%n, %%i, %%x, %%v, %%sum; .reg .b64 %%at, %%to, %%room; .reg .pred %%more;\n"
                                "\tld.param.u64 %%at, [at]; ld.global.u32 %%n, [%%at]; mov.u64 %%room, room;\n"
                                "\tmov.u32 %%i, 0;\n"
                                "write:\n"
                                "\tmad.lo.u32 %%x, %%i, 61, %%n; rem.u32 %%x, %%x, %d; cvt.u64.u32 %%to, %%x; add.u64 %%to, %%room, %%to;\n"
                                "\tadd.u32 %%v, %%n, %%i; st.local.u8 [%%to], %%v; add.u32 %%i, %%i, 1; setp.lt.u32 %%more, %%i, 64;\n"
                                "\t@%%more bra write;\n"
                                "\tmov.u32 %%i, 0; mov.u32 %%sum, 0;\n"
                                "read:\n"
                                "\tmad.lo.u32 %%x, %%i, 61, %%n; rem.u32 %%x, %%x, %d; cvt.u64.u32 %%to, %%x; add.u64 %%to, %%room, %%to;\n"
                                "\tld.local.u8 %%v, [%%to]; add.u32 %%sum, %%sum, %%v; add.u32 %%i, %%i, 1; setp.lt.u32 %%more, %%i, 64;\n"
                                "\t@%%more bra read;\n"
                                "\tst.global.u32 [%%at], %%sum;\n"
                                "\tret;\n"
                                "}\n";

#if CUDART_VERSION >= 12000
struct Locals {
    enum { CONTEXTS = 2, MORE = 4096 };
    struct Tally {
        CUkernel bump, show;
        uint32_t want[CONTEXTS];
    };

    CUcontext context[CONTEXTS] = {};
    CUdeviceptr shown[CONTEXTS], held;
    uint32_t sum = 7; // what held has
    int local = 0;    // what a kernel has needed, or the limit was
    CUkernel last = nullptr;
    std::vector<CUlibrary> holds;
    std::vector<CUgraphExec> execs;
    std::vector<Tally> tallies;

    // The newest forms of these have other arguments by toolkit.
    CUresult (*create)(CUcontext *, unsigned, CUdevice) = driver((CUresult(*)(CUcontext *, unsigned, CUdevice))nullptr, "cuCtxCreate_v2");
    CUresult (*allocate)(CUdeviceptr *, size_t) = driver((CUresult(*)(CUdeviceptr *, size_t))nullptr, "cuMemAlloc_v2");
    CUresult (*read)(void *, CUdeviceptr, size_t) = driver((CUresult(*)(void *, CUdeviceptr, size_t))nullptr, "cuMemcpyDtoH_v2");
    CUresult (*write)(CUdeviceptr, const void *, size_t) = driver((CUresult(*)(CUdeviceptr, const void *, size_t))nullptr, "cuMemcpyHtoD_v2");

    void use(int i) { DRIVER(cuCtxSetCurrent, context[i]); }
    void second()
    {
        expect(create(&context[1], 0, 0) == CUDA_SUCCESS, "a second context");
        expect(allocate(&shown[1], 4) == CUDA_SUCCESS, "memory");
        use(0);
    }
    Locals()
    {
        CUDA(cudaFree(0));
        DRIVER(cuCtxGetCurrent, &context[0]);
        expect(allocate(&shown[0], 4) == CUDA_SUCCESS && allocate(&held, 4) == CUDA_SUCCESS, "memory");
        expect(write(held, &sum, 4) == CUDA_SUCCESS, "memory");
    }

    // more is a kernel that needs more local memory than any before.
    CUkernel more()
    {
        char text[4096];
        CUlibrary library;
        local += MORE;
        snprintf(text, sizeof text, hold_text, local, local, local);
        DRIVER(cuLibraryLoadData, &library, text, nullptr, nullptr, 0, nullptr, nullptr, 0);
        holds.push_back(library);
        DRIVER(cuLibraryGetKernel, &last, library, "hold");
        return last;
    }
    // hold launches a kernel, and says whether it did what it is to do.
    bool hold(CUkernel k, bool cooperative)
    {
        void *at[] = {&held};
        uint32_t want = 0, got = 0;
        for (uint32_t i = 0; i < 64; i++)
            want += (sum + i) & 255;
        if (cooperative)
            DRIVER(cuLaunchCooperativeKernel, (CUfunction)k, 1, 1, 1, 1, 1, 1, 0, nullptr, at);
        else
            DRIVER(cuLaunchKernel, (CUfunction)k, 1, 1, 1, 1, 1, 1, 0, nullptr, at, nullptr);
        sum = want;
        return read(&got, held, 4) == CUDA_SUCCESS && got == want;
    }
    // graph makes one of a kernel executable, and no more.
    void graph(CUkernel k)
    {
        void *at[] = {&held};
        CUDA_KERNEL_NODE_PARAMS_v2 p = {};
        CUgraph g;
        CUgraphNode n;
        CUgraphExec x;
        p.kern = k, p.ctx = context[0], p.kernelParams = at;
        p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
        DRIVER(cuGraphCreate, &g, 0);
        DRIVER(cuGraphAddKernelNode_v2, &n, g, nullptr, 0, &p);
        DRIVER(cuGraphInstantiateWithFlags, &x, g, 0);
        DRIVER(cuGraphDestroy, g);
        execs.push_back(x);
    }
    // variables are loaded, and come into being in both contexts, in the second one first.
    void variables()
    {
        CUlibrary library;
        Tally t = {nullptr, nullptr, {5, 5}};
        DRIVER(cuLibraryLoadData, &library, tally_text, nullptr, nullptr, 0, nullptr, nullptr, 0);
        DRIVER(cuLibraryGetKernel, &t.bump, library, "bump");
        DRIVER(cuLibraryGetKernel, &t.show, library, "show");
        tallies.push_back(t);
        expect(count(tallies.back(), 1, 3) && count(tallies.back(), 0, 3), "variables");
    }
    bool count(Tally &t, int i, uint32_t inc)
    {
        uint32_t got = 0;
        void *by[] = {&inc}, *at[] = {&shown[i]};
        use(i);
        DRIVER(cuLaunchKernel, (CUfunction)t.bump, 1, 1, 1, 1, 1, 1, 0, nullptr, by, nullptr);
        DRIVER(cuLaunchKernel, (CUfunction)t.show, 1, 1, 1, 1, 1, 1, 0, nullptr, at, nullptr);
        t.want[i] = t.want[i] * 1664525u + inc;
        bool right = read(&got, shown[i], 4) == CUDA_SUCCESS && got == t.want[i];
        use(0);
        return right;
    }
    void unload()
    {
        CUDA(cudaDeviceSynchronize());
        for (CUgraphExec x : execs)
            DRIVER(cuGraphExecDestroy, x);
        execs.clear();
        for (CUlibrary l : holds)
            DRIVER(cuLibraryUnload, l);
        holds.clear();
        last = nullptr;
    }
    void limit(int bytes) { DRIVER(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, (size_t)(local = bytes)); }

    void step(const std::string &what)
    {
        if (what == "context") {
            expect(!context[1], "the second context comes once");
            return second();
        }
        if (what == "unload")
            return unload();
        if (what == "launch" || what == "cooperative")
            expect(hold(more(), what == "cooperative"), "local memory");
        else if (what == "graph")
            graph(more());
        else if (what == "limit")
            limit(local + MORE);
        else if (what == "lower")
            limit(1024);
        else
            expect(false, what.c_str());
        if (!context[1])
            second();
        variables();
    }
};
#endif

// locals: ROUNDS_LOCALS in the environment says in which order what has the driver take local
// memory in the first context, or give it back: launch, cooperative, graph, limit, lower; behind
// each of those a library's variables come into being in both contexts. The second context comes at
// "context", or behind the first of them, ahead of the variables; "unload" ends the code of all
// kernels so far.
static void locals(Rounds &r)
{
#if CUDART_VERSION >= 12000
    Locals l;
    std::istringstream steps(getenv("ROUNDS_LOCALS") ? getenv("ROUNDS_LOCALS") : "context launch graph cooperative limit unload launch");
    for (std::string what; steps >> what;)
        l.step(what);
    while (r.next()) {
        for (auto &t : l.tallies)
            r.check(l.count(t, 1, (uint32_t)r.n) && l.count(t, 0, (uint32_t)r.n + 1));
        if (l.last)
            r.check(l.hold(l.last, false));
    }
#else
    (void)r;
    printf("this toolkit has no libraries\n");
    _Exit(77);
#endif
}
