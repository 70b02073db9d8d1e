// Programs that compute in rounds and check each of them: what a session holds has to be right
// however it was paused, moved or rebuilt between one round and the next, or in the middle of one.
// Memory is never made anew: a round's results are the next one's input.
//
//   rounds          a few rounds of each mode that can be moved, one after the other
//   rounds MODE     until SIGTERM: prints "@ready PID", then "@round ROUNDS WRONG" up to five times a second, at the end
//                   "@done ROUNDS WRONG PAUSE_MS" with the longest round; the status is 0 if nothing was wrong;
//                   ROUNDS_NAP=MS: how long it rests between two rounds (default 10)
#include "rounds.h"

#include <functional>
#include <sstream>
#include <thread>

enum { N = 1 << 13, BLOCK = 128, GRID = N / BLOCK };

// all says whether a host copy is what the mirror says, and of the first ones that are not which
// words differ.
static bool all(const uint32_t *p, const std::vector<uint32_t> &want, int which = 0)
{
    static std::atomic<int> unlike{0};
    if (memcmp(p, want.data(), want.size() * 4) == 0)
        return true;
    if (unlike.fetch_add(1) < 12)
        tell_unlike(which, p, want);
    return false;
}

// streams: four streams that wait for each other by events, several rounds' work in flight, and
// memory that nobody touches in between.
static void streams(Rounds &r)
{
    enum { S = 4, AHEAD = 3, STILL = 1 << 20 };
    cudaStream_t s[S];
    cudaEvent_t e[S];
    uint32_t *d[S], *back[S], *still, *count, differing = 0;
    std::vector<uint32_t> want[S];
    for (int i = 0; i < S; i++) {
        CUDA(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&e[i], cudaEventDisableTiming));
        CUDA(cudaMalloc(&d[i], N * 4));
        CUDA(cudaMallocHost(&back[i], N * 4));
        fill<<<GRID, BLOCK, 0, s[i]>>>(d[i], N, i);
        for (uint32_t j = 0; j < N; j++)
            want[i].push_back(mix(j + i));
    }
    CUDA(cudaMalloc(&still, STILL * 4));
    CUDA(cudaMalloc(&count, 4));
    CUDA(cudaMemset(count, 0, 4));
    fill<<<STILL / BLOCK, BLOCK>>>(still, STILL, 77);
    CUDA(cudaDeviceSynchronize());
    while (r.next()) {
        for (int a = 0; a < AHEAD; a++) {
            for (int i = 0; i < S; i++) {
                step<<<GRID, BLOCK, 0, s[i]>>>(d[i], N, r.n + i);
                for (uint32_t &v : want[i])
                    v = scramble(v, r.n + i);
                if (i > 0) {
                    CUDA(cudaStreamWaitEvent(s[i], e[i - 1], 0));
                    add<<<GRID, BLOCK, 0, s[i]>>>(d[i], d[i - 1], N);
                    for (int j = 0; j < N; j++)
                        want[i][j] += want[i - 1][j];
                }
                CUDA(cudaEventRecord(e[i], s[i]));
            }
            for (int i = 0; i < S - 1; i++) // nobody writes what a neighbour reads still
                CUDA(cudaStreamWaitEvent(s[i], e[S - 1], 0));
        }
        for (int i = 0; i < S; i++)
            CUDA(cudaMemcpyAsync(back[i], d[i], N * 4, cudaMemcpyDeviceToHost, s[i]));
        for (int i = 0; i < S; i++) {
            CUDA(cudaStreamSynchronize(s[i]));
            r.check(all(back[i], want[i], i));
        }
        if (r.n % 32 != 31 && !r.over())
            continue;
        differ<<<STILL / BLOCK, BLOCK>>>(still, STILL, 77, count);
        CUDA(cudaMemcpy(&differing, count, 4, cudaMemcpyDeviceToHost));
        r.check(differing == 0);
    }
}

// threads: each has a stream, memory for good and memory of the stream's pool for a moment.
static void one_thread(Rounds &r, int id, const std::function<bool()> &more)
{
    cudaStream_t s;
    uint32_t *d, *moment;
    std::vector<uint32_t> want(N, id), got(N);
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&d, N * 4));
    CUDA(cudaMemcpy(d, want.data(), N * 4, cudaMemcpyHostToDevice));
    for (uint32_t n = 0; more(); n++) {
        CUDA(cudaMallocAsync(&moment, N * 4, s));
        fill<<<GRID, BLOCK, 0, s>>>(moment, N, n);
        step<<<GRID, BLOCK, 0, s>>>(d, N, id);
        add<<<GRID, BLOCK, 0, s>>>(d, moment, N);
        CUDA(cudaMemcpyAsync(got.data(), d, N * 4, cudaMemcpyDeviceToHost, s));
        CUDA(cudaFreeAsync(moment, s));
        CUDA(cudaStreamSynchronize(s));
        for (uint32_t i = 0; i < N; i++)
            want[i] = scramble(want[i], id) + mix(i + n);
        r.check(all(got.data(), want));
    }
    CUDA(cudaFree(d));
    CUDA(cudaStreamDestroy(s));
}

static void threads(Rounds &r)
{
    std::vector<std::thread> others;
    std::atomic<bool> end{false};
    for (int i = 1; i < 4; i++)
        others.emplace_back([&, i] {
            one_thread(r, i, [&] {
                nap_ms(few ? 0 : between_ms());
                return !end;
            });
        });
    one_thread(r, 0, [&] { return r.next(); });
    end = true;
    for (std::thread &t : others)
        t.join();
}

// pinned: memory of cudaMallocHost, mapped memory that kernels write, and the program's own pages,
// registered.
static void pinned(Rounds &r)
{
    uint32_t *in, *out, *mapped, *own, *d, *m, *o;
    CUDA(cudaMallocHost(&in, N * 4));
    CUDA(cudaMallocHost(&out, N * 4));
    CUDA(cudaHostAlloc(&mapped, N * 4, cudaHostAllocMapped));
    if (posix_memalign((void **)&own, 4096, N * 4) != 0)
        _Exit(1);
    memset(own, 0, N * 4);
    memset(mapped, 0, N * 4);
    CUDA(cudaHostRegister(own, N * 4, cudaHostRegisterMapped));
    if (cudaHostGetDevicePointer(&m, mapped, 0) != cudaSuccess) {
        printf("skipped: no mapped memory\n");
        fflush(stdout);
        _Exit(77); // the GPU is elsewhere, by TCP
    }
    CUDA(cudaHostGetDevicePointer(&o, own, 0));
    CUDA(cudaMalloc(&d, N * 4));
    std::vector<uint32_t> want(N), kept(N, 0);
    while (r.next()) {
        for (uint32_t i = 0; i < N; i++) {
            in[i] = mix(i + r.n);
            want[i] = scramble(in[i], 1);
            kept[i] = scramble(kept[i], r.n);
        }
        CUDA(cudaMemcpyAsync(d, in, N * 4, cudaMemcpyHostToDevice, 0));
        step<<<GRID, BLOCK>>>(d, N, 1);
        step<<<GRID, BLOCK>>>(m, N, r.n);
        step<<<GRID, BLOCK>>>(o, N, r.n);
        CUDA(cudaMemcpyAsync(out, d, N * 4, cudaMemcpyDeviceToHost, 0));
        CUDA(cudaStreamSynchronize(0));
        r.check(all(out, want) && all(mapped, kept) && all(own, kept));
    }
    CUDA(cudaHostUnregister(own));
}

// shared: managed memory, written by both sides in turn.
static void shared(Rounds &r)
{
    uint32_t *p;
    managed(&p, N * 4);
    std::vector<uint32_t> want(N);
    for (uint32_t i = 0; i < N; i++)
        p[i] = want[i] = i;
    while (r.next()) {
        step<<<GRID, BLOCK>>>(p, N, r.n);
        CUDA(cudaDeviceSynchronize());
        for (uint32_t &v : want)
            v = scramble(v, r.n);
        r.check(all(p, want));
        p[r.n % N] = want[r.n % N] = (uint32_t)r.n;
    }
    CUDA(cudaFree(p));
}

// Lasting launches grind so that it takes about so many ms, whatever else the GPU does meanwhile.
struct Lasting {
    double ms;
    uint64_t times = 100000;
    int64_t began = 0;
    Lasting(int ms) : ms(ms) {}
    void launch(uint32_t *p, cudaStream_t s)
    {
        began = now_ms();
        grind<<<1, 1, 0, s>>>(p, times);
    }
    // took ends a round; the next one's kernel comes closer to the time wanted.
    uint32_t took(uint32_t x)
    {
        double factor = ms / (double)(now_ms() - began + 1);
        x = ground(x, times);
        times = (uint64_t)((double)times * (factor > 8 ? 8 : factor < 0.5 ? 0.5 : factor)) + 1;
        return x;
    }
};

// lasting: one kernel of a second after the other: whatever happens, happens in the middle of one.
static void lasting(Rounds &r)
{
    Lasting kernel(few ? 20 : 1000);
    uint32_t *d, got, want = 5;
    CUDA(cudaMalloc(&d, 4));
    CUDA(cudaMemcpy(d, &want, 4, cudaMemcpyHostToDevice));
    while (r.next()) {
        kernel.launch(d, 0);
        CUDA(cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost));
        want = kernel.took(want);
        r.check(got == want);
    }
    CUDA(cudaFree(d));
}

// waits: three threads that are nearly always in a wait: for a stream, for an event by sleeping,
// and asking for one again and again.
static void waits(Rounds &r)
{
    std::vector<std::thread> others;
    std::atomic<bool> end{false};
    auto waiter = [&](int how, const std::function<bool()> &more) {
        cudaStream_t s;
        cudaEvent_t e;
        uint32_t *d, got, want = how;
        Lasting kernel(few ? 5 : 300);
        CUDA(cudaMalloc(&d, 4));
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | (how == 1 ? cudaEventBlockingSync : 0)));
        CUDA(cudaMemcpy(d, &want, 4, cudaMemcpyHostToDevice));
        while (more()) {
            kernel.launch(d, s);
            CUDA(cudaEventRecord(e, s));
            cudaError_t q = cudaErrorNotReady;
            if (how == 0)
                CUDA(cudaStreamSynchronize(s));
            else if (how == 1)
                CUDA(cudaEventSynchronize(e));
            else
                while ((q = cudaEventQuery(e)) == cudaErrorNotReady)
                    nap_ms(1);
            r.check(how < 2 || q == cudaSuccess);
            CUDA(cudaMemcpyAsync(&got, d, 4, cudaMemcpyDeviceToHost, s));
            CUDA(cudaStreamSynchronize(s));
            want = kernel.took(want);
            r.check(got == want);
        }
        CUDA(cudaFree(d));
    };
    for (int how = 1; how < 3; how++)
        others.emplace_back(waiter, how, [&] { return !end.load(); });
    waiter(0, [&] { return r.next(); });
    end = true;
    for (std::thread &t : others)
        t.join();
}

// piece is a MiB of what large's memory holds: each byte 0x5a, or with ROUNDS_NOISE in the
// environment such as nothing compresses.
static std::vector<uint8_t> piece()
{
    std::vector<uint8_t> b(1 << 20, 0x5a);
    if (getenv("ROUNDS_NOISE")) {
        uint32_t x = 1;
        for (auto &v : b) {
            x = x * 1664525 + 1013904223;
            v = (uint8_t)(x >> 24);
        }
    }
    return b;
}

// large is memory of so many MiB; whole says whether it is as it was.
static uint8_t *large(size_t mib)
{
    uint8_t *p = nullptr;
    if (mib) {
        std::vector<uint8_t> b = piece();
        CUDA(cudaMalloc(&p, mib << 20));
        for (size_t i = 0; i < mib; i++)
            CUDA(cudaMemcpy(p + (i << 20), b.data(), b.size(), cudaMemcpyHostToDevice));
    }
    return p;
}
static bool whole(const uint8_t *p, size_t mib)
{
    std::vector<uint8_t> got(1 << 20), want = piece();
    for (size_t i = 0; i < mib; i++) {
        CUDA(cudaMemcpy(got.data(), p + (i << 20), 1 << 20, cudaMemcpyDeviceToHost));
        if (got != want)
            return false;
    }
    return true;
}

// idle: memory (of ROUNDS_MIB more MiB, a variable of the environment) and a variable that lie
// there while nothing is called at all; looked at in the end.
__device__ uint32_t lies[N];
static void idle(Rounds &r)
{
    uint32_t *d, *count, differing = 0, *var;
    size_t mib = getenv("ROUNDS_MIB") ? strtoul(getenv("ROUNDS_MIB"), nullptr, 10) : 0;
    uint8_t *more = large(mib);
    CUDA(cudaGetSymbolAddress((void **)&var, lies));
    CUDA(cudaMalloc(&d, N * 4));
    CUDA(cudaMalloc(&count, 4));
    CUDA(cudaMemset(count, 0, 4));
    fill<<<GRID, BLOCK>>>(d, N, 3);
    fill<<<GRID, BLOCK>>>(var, N, 4);
    CUDA(cudaDeviceSynchronize());
    while (r.next())
        nap_ms(few ? 0 : 100);
    differ<<<GRID, BLOCK>>>(d, N, 3, count);
    differ<<<GRID, BLOCK>>>(var, N, 4, count);
    CUDA(cudaMemcpy(&differing, count, 4, cudaMemcpyDeviceToHost));
    r.check(differing == 0 && whole(more, mib));
}

// written: memory of ROUNDS_MIB MiB (or one) of which a kernel writes every byte in each round, and
// looks at the round before's first.
__global__ void again(uint32_t *p, size_t n, uint32_t round, unsigned long long *wrong)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        if (p[i] != mix((uint32_t)i) + round)
            atomicAdd(wrong, 1ull);
        p[i] = mix((uint32_t)i) + round + 1;
    }
}
__global__ void first(uint32_t *p, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = mix((uint32_t)i);
}
static void written(Rounds &r)
{
    enum { BLOCKS = 1024 };
    size_t n = (size_t)(getenv("ROUNDS_MIB") ? strtoul(getenv("ROUNDS_MIB"), nullptr, 10) : 1) << 18;
    uint32_t *p;
    unsigned long long *wrong, got;
    CUDA(cudaMalloc(&p, n * 4));
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    first<<<few ? 8 : BLOCKS, BLOCK>>>(p, n);
    CUDA(cudaDeviceSynchronize());
    while (r.next()) {
        again<<<few ? 8 : BLOCKS, BLOCK>>>(p, n, (uint32_t)r.n, wrong);
        CUDA(cudaMemcpy(&got, wrong, sizeof got, cudaMemcpyDeviceToHost));
        r.check(got == 0);
    }
    CUDA(cudaFree(p));
}

// times: the GPU's clock never goes back, and goes at least as far as the program's own between the
// same two moments.
static void times(Rounds &r)
{
    cudaEvent_t first, last, now;
    float ms, before = 0;
    for (cudaEvent_t *e : {&first, &last, &now})
        CUDA(cudaEventCreate(e));
    CUDA(cudaEventRecord(first));
    CUDA(cudaEventSynchronize(first));
    double began = seconds();
    while (r.next()) {
        double host = (seconds() - began) * 1e3;
        CUDA(cudaEventRecord(now));
        CUDA(cudaEventSynchronize(now));
        CUDA(cudaEventElapsedTime(&ms, first, now));
        r.check(ms >= before && ms >= host * 0.999 - 5);
        if (r.n > 0) {
            float since;
            CUDA(cudaEventElapsedTime(&since, last, now));
            r.check(since >= 0 && since <= ms);
        }
        before = ms;
        std::swap(last, now);
    }
}

#include "rounds_objects.h"
#include "rounds_kernels.h"
#include "rounds_locals.h"
#include "rounds_ordered.h"
#include "rounds_over.h"
#include "rounds_processes.h"
#include "rounds_tiles.h"
#include "rounds_training.h"

static const struct {
    const char *name;
    void (*run)(Rounds &);
    bool only_asked; // it cannot be moved, or is the program's only one
} modes[] = {{"streams", streams}, {"threads", threads}, {"pinned", pinned}, {"shared", shared}, {"lasting", lasting}, {"waits", waits}, {"idle", idle}, {"times", times}, {"written", written}, {"graphs", graphs},
             {"ordered", ordered}, {"images", images}, {"settings", settings}, {"vmm", vmm}, {"callbacks", callbacks}, {"training", training}, {"captures", captures, true}, {"processes", processes, true}, {"green", green, true}, {"tiles", tiles, true}, {"kernels", kernels, true}, {"locals", locals, true}, {"over", over, true}, {"handed", handed, true}};

int main(int argc, char **argv)
{
    signal(SIGTERM, [](int) { stopping = 1; });
    bool found = false;
    few = argc > 1 ? 0 : 3;
    for (const auto &m : modes) {
        if (argc > 1 ? strcmp(argv[1], m.name) != 0 : m.only_asked)
            continue;
        found = true;
        Rounds r;
        m.run(r);
        CUDA(cudaDeviceSynchronize());
        if (few) {
            expect(r.n == few && r.wrong == 0, m.name);
            continue;
        }
        tell("@done %ld %ld %ld\n", r.n, r.wrong.load(), (long)r.pause);
        return r.wrong != 0;
    }
    if (!found) {
        fprintf(stderr, "rounds: there is no mode %s\n", argv[1]);
        return 2;
    }
    return finish();
}
