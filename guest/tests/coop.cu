// Cooperative groups: tiles, reductions, scans, groups by label and by branch; cooperative launches
// whose blocks wait for one another.
// usage: coop [blocks] [rounds] needs: cuda 12.9
// ptx only: cuda 12.9 (the sm_90 code of that toolkit's ptxas gets votes of tiles wrong, on the
// bare driver too)
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include <vector>

namespace cg = cooperative_groups;

static const int T = 128;

struct Results {
    int sum[T], least[T], either[T], before[T], up_to[T], some[T], label[T], shuffled[T], votes[T], quads[T], copied[T];
};

__global__ void groups(Results *r, const int *in)
{
    __shared__ int staged[T];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto eight = cg::tiled_partition<8>(warp);
    auto dynamic = cg::tiled_partition(block, 16);
    int t = block.thread_rank(), v = in[t];
    r->sum[t] = cg::reduce(warp, v, cg::plus<int>());
    r->least[t] = cg::reduce(eight, v, cg::less<int>());
    r->either[t] = cg::reduce(warp, v, cg::bit_xor<int>());
    r->before[t] = cg::exclusive_scan(eight, v, cg::plus<int>());
    r->up_to[t] = cg::inclusive_scan(warp, v, cg::greater<int>());
    r->some[t] = -1;
    if (v % 3 == 0) {
        auto some = cg::coalesced_threads();
        r->some[t] = some.size() * 100 + some.thread_rank();
    }
    auto same = cg::labeled_partition(warp, v % 5);
    r->label[t] = cg::reduce(same, 1, cg::plus<int>());
    r->shuffled[t] = eight.shfl_xor(v, 5) + 3 * eight.shfl_down(v, 2) + 7 * eight.shfl_up(v, 1);
    r->votes[t] = eight.ballot(v & 1) + 1000 * eight.any(v % 7 == 0) + 2000 * eight.all(v % 2 == 0) + 4000 * eight.match_any(v % 4);
    r->quads[t] = dynamic.size() * 100 + dynamic.thread_rank();
    cg::memcpy_async(block, staged, in, sizeof staged);
    cg::wait(block);
    r->copied[t] = staged[T - 1 - t];
}

// Every round needs what every block wrote in the round before.
__global__ void rotate(int *a, int n, int rounds)
{
    auto grid = cg::this_grid();
    for (int k = 0; k < rounds; k++) {
        for (int i = grid.thread_rank(); i < n; i += grid.size())
            a[((k + 1) & 1) * n + i] = a[(k & 1) * n + (i + 1) % n] + 1;
        grid.sync();
    }
    if (grid.thread_rank() == 0)
        a[2 * n] = grid.is_valid() + 10 * (grid.num_blocks() == gridDim.x) + 100 * (grid.group_dim().x == gridDim.x);
}

// The blocks agree on a sum in one launch.
__global__ void total(const int *in, int n, long long *out)
{
    auto grid = cg::this_grid();
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    __shared__ long long parts[32];
    long long sum = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size())
        sum += in[i];
    sum = cg::reduce(warp, sum, cg::plus<long long>());
    if (warp.thread_rank() == 0)
        parts[warp.meta_group_rank()] = sum;
    block.sync();
    if (block.thread_rank() == 0) {
        long long all = 0;
        for (int w = 0; w < (int)(block.size() / 32); w++)
            all += parts[w];
        out[1 + blockIdx.x] = all;
    }
    grid.sync();
    if (grid.thread_rank() == 0) {
        long long all = 0;
        for (int b = 0; b < (int)gridDim.x; b++)
            all += out[1 + b];
        out[0] = all;
    }
}

static void in_block()
{
    std::vector<int> in(T);
    for (int i = 0; i < T; i++)
        in[i] = (int)(mix(i + 9) % 1000);
    int *d;
    Results *r, *h = new Results;
    CUDA(cudaMalloc(&d, T * sizeof(int)));
    CUDA(cudaMalloc(&r, sizeof *r));
    CUDA(cudaMemcpy(d, in.data(), T * sizeof(int), cudaMemcpyHostToDevice));
    groups<<<1, T>>>(r, d);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(h, r, sizeof *h, cudaMemcpyDeviceToHost));
    int bad[11] = {};
    for (int t = 0; t < T; t++) {
        int w = t / 32 * 32, e = t / 8 * 8, l = t - e;
        int sum = 0, least = 1 << 30, either = 0, before = 0, up_to = 0, count = 0, rank = 0, label = 0;
        unsigned ballot = 0, match = 0;
        bool any = false, all = true;
        for (int i = w; i < w + 32; i++) {
            sum += in[i], either ^= in[i];
            if (i <= t)
                up_to = in[i] > up_to ? in[i] : up_to;
            label += in[i] % 5 == in[t] % 5;
            if (in[i] % 3 == 0)
                count++, rank += i < t;
        }
        for (int i = e; i < e + 8; i++) {
            least = in[i] < least ? in[i] : least;
            before += i < t ? in[i] : 0;
            ballot |= (in[i] & 1u) << (i - e);
            match |= (unsigned)(in[i] % 4 == in[t] % 4) << (i - e);
            any = any || in[i] % 7 == 0;
            all = all && in[i] % 2 == 0;
        }
        int shuffled = in[e + (l ^ 5)] + 3 * in[l + 2 < 8 ? t + 2 : t] + 7 * in[l > 0 ? t - 1 : t];
        bad[0] += h->sum[t] != sum;
        bad[1] += h->least[t] != least;
        bad[2] += h->either[t] != either;
        bad[3] += h->before[t] != before;
        bad[4] += h->up_to[t] != up_to;
        bad[5] += h->some[t] != (in[t] % 3 == 0 ? count * 100 + rank : -1);
        bad[6] += h->label[t] != label;
        bad[7] += h->shuffled[t] != shuffled;
        bad[8] += h->votes[t] != (int)(ballot + 1000 * any + 2000 * all + 4000 * match);
        bad[9] += h->quads[t] != 1600 + t % 16;
        bad[10] += h->copied[t] != in[T - 1 - t];
    }
    const char *names[] = {"sum of a warp", "least of eight", "exclusive or", "exclusive scan", "inclusive scan", "coalesced threads",
                           "labels", "shuffles", "votes", "tiles sized at run time", "asynchronous copy"};
    for (int i = 0; i < 11; i++)
        expect(bad[i] == 0, names[i]);
    delete h;
    CUDA(cudaFree(d));
    CUDA(cudaFree(r));
}

static bool rotated(const int *d, int n, int rounds)
{
    std::vector<int> a(2 * n + 1);
    CUDA(cudaMemcpy(a.data(), d, a.size() * sizeof(int), cudaMemcpyDeviceToHost));
    bool good = a[2 * n] == 111;
    for (int i = 0; i < n; i++)
        good = good && a[(rounds & 1) * n + i] == (i + rounds) % n * 3 + rounds;
    return good;
}

static void in_grid(int blocks, int rounds)
{
    int can = 0, per_sm = 0, sms = 0, n = blocks * T * 2 + 5;
    CUDA(cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, 0));
    CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, rotate, T, 0));
    note("cooperative launch %d, %d blocks on each of %d multiprocessors", can, per_sm, sms);
    if (blocks > per_sm * sms)
        blocks = per_sm * sms;
    std::vector<int> first(2 * n + 1);
    for (int i = 0; i < n; i++)
        first[i] = 3 * i;
    int *d;
    CUDA(cudaMalloc(&d, first.size() * sizeof(int)));
    CUDA(cudaMemcpy(d, first.data(), first.size() * sizeof(int), cudaMemcpyHostToDevice));
    void *args[] = {&d, &n, &rounds};
    CUDA(cudaLaunchCooperativeKernel((void *)rotate, dim3(blocks), dim3(T), args));
    expect(rotated(d, n, rounds), "blocks wait for one another");
    cudaError_t e = cudaLaunchCooperativeKernel((void *)rotate, dim3(per_sm * sms + 1), dim3(T), args);
    printf("one block too many: %s\n", cudaGetErrorName(e));
    cudaGetLastError();
    CUDA(cudaMemcpy(d, first.data(), first.size() * sizeof(int), cudaMemcpyHostToDevice));
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attribute[1] = {};
    attribute[0].id = cudaLaunchAttributeCooperative;
    attribute[0].val.cooperative = 1;
    c.gridDim = dim3(blocks), c.blockDim = dim3(T), c.stream = s, c.attrs = attribute, c.numAttrs = 1;
    CUDA(cudaLaunchKernelEx(&c, rotate, d, n, rounds));
    CUDA(cudaStreamSynchronize(s));
    expect(rotated(d, n, rounds), "by an attribute, on a stream");
    long long *out, got = 0, want = 0;
    CUDA(cudaMalloc(&out, (blocks + 1) * sizeof *out));
    for (int i = 0; i < n; i++)
        want += first[i];
    CUDA(cudaMemcpy(d, first.data(), first.size() * sizeof(int), cudaMemcpyHostToDevice));
    void *more[] = {&d, &n, &out};
    CUDA(cudaLaunchCooperativeKernel((void *)total, dim3(blocks), dim3(T), more, 0, s));
    CUDA(cudaMemcpyAsync(&got, out, sizeof got, cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamSynchronize(s));
    expect(got == want, "a sum of all blocks in one launch");
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(d));
    CUDA(cudaFree(out));
}

int main(int argc, char **argv)
{
    note_device();
    in_block();
    in_grid((int)argument(argc, argv, 1, 8), (int)argument(argc, argv, 2, 9));
    return finish();
}
