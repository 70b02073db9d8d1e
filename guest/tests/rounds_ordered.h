// The mode of rounds.cu whose memory comes and goes in stream order, by pools and by graphs.
#pragma once

#include "rounds.h"

// what lives on for some rounds: words of a seed's, written on a stream that frees it, too, or
// whose work another waits for that does.
struct Piece {
    uint32_t *at, words, seed;
    int on;
};

struct Ordered {
    enum { STREAMS = 3, MOST = 24 };
    cudaStream_t s[STREAMS];
    cudaEvent_t done;
    cudaMemPool_t pool;
    uint32_t *count, drawn = 1;
    std::vector<Piece> pieces;

    uint32_t draw(uint32_t below) { return mix(drawn++) % below; }

    void take()
    {
        Piece p = {nullptr, 1 + (draw(4) ? draw(3000) : 300000 + draw(500000)), draw(1000), (int)draw(STREAMS)};
        if (draw(2))
            CUDA(cudaMallocAsync(&p.at, p.words * 4, s[p.on]));
        else
            CUDA(cudaMallocFromPoolAsync(&p.at, p.words * 4, pool, s[p.on]));
        fill<<<(p.words + BLOCK - 1) / BLOCK, BLOCK, 0, s[p.on]>>>(p.at, p.words, p.seed);
        pieces.push_back(p);
    }

    void give()
    {
        size_t i = draw((uint32_t)pieces.size());
        Piece p = pieces[i];
        pieces.erase(pieces.begin() + i);
        int on = (int)draw(STREAMS);
        if (on != p.on) {
            CUDA(cudaEventRecord(done, s[p.on]));
            CUDA(cudaStreamWaitEvent(s[on], done, 0));
        }
        differ<<<(p.words + BLOCK - 1) / BLOCK, BLOCK, 0, s[on]>>>(p.at, p.words, p.seed, count);
        CUDA(cudaFreeAsync(p.at, s[on]));
    }
};

// captured is a graph that allocates words, fills and adds them to sum; it frees them, or leaves
// them at *left.
static cudaGraphExec_t captured(cudaStream_t s, uint32_t *sum, uint32_t seed, uint32_t **left)
{
    cudaGraph_t g;
    cudaGraphExec_t x;
    uint32_t *a, *b;
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CUDA(cudaMallocAsync(&a, N * 4, s));
    fill<<<GRID, BLOCK, 0, s>>>(a, N, seed);
    add<<<GRID, BLOCK, 0, s>>>(sum, a, N);
    CUDA(cudaFreeAsync(a, s));
    CUDA(cudaMallocAsync(&b, N * 4, s)); // perhaps where a was
    fill<<<GRID, BLOCK, 0, s>>>(b, N, seed + 1);
    add<<<GRID, BLOCK, 0, s>>>(sum, b, N);
    if (left)
        *left = b;
    else
        CUDA(cudaFreeAsync(b, s));
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaGraphInstantiateWithFlags(&x, g, 0));
    if (!left)
        CUDA(cudaGraphDestroy(g));
    return x;
}

// ordered: memory of the device's pool and of one of the program's own, on three streams; a graph
// that allocates and frees, and one that leaves memory for the next round.
static void ordered(Rounds &r)
{
    Ordered o;
    cudaMemPoolProps props = {};
    uint64_t keep = UINT64_MAX;
    uint32_t *sum, *left, differing;
    std::vector<uint32_t> want(N, 0), got(N), filled(N);
    for (cudaStream_t &s : o.s)
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&o.done, cudaEventDisableTiming));
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    CUDA(cudaMemPoolCreate(&o.pool, &props));
    CUDA(cudaMemPoolSetAttribute(o.pool, cudaMemPoolAttrReleaseThreshold, &keep));
    CUDA(cudaMalloc(&o.count, 4));
    CUDA(cudaMemset(o.count, 0, 4));
    CUDA(cudaMalloc(&sum, N * 4));
    CUDA(cudaMemset(sum, 0, N * 4));
    cudaGraphExec_t frees = captured(o.s[0], sum, 3, nullptr), leaves = captured(o.s[0], sum, 40, &left);
    for (uint32_t i = 0; i < N; i++)
        filled[i] = mix(i + 41);
    CUDA(cudaGraphLaunch(leaves, o.s[0]));
    while (r.next()) {
        for (int i = 0; i < 6; i++)
            if (o.pieces.size() < Ordered::MOST && (o.pieces.size() < 4 || o.draw(2)))
                o.take();
            else
                o.give();
        CUDA(cudaGraphLaunch(frees, o.s[0]));
        CUDA(cudaMemcpyAsync(got.data(), left, N * 4, cudaMemcpyDeviceToHost, o.s[0]));
        CUDA(cudaFreeAsync(left, o.s[0]));
        CUDA(cudaGraphLaunch(leaves, o.s[0]));
        CUDA(cudaStreamSynchronize(o.s[0]));
        r.check(all(got.data(), filled));
        CUDA(cudaMemcpy(got.data(), sum, N * 4, cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < N; i++)
            want[i] += mix(i + 3) + mix(i + 4) + (r.n ? 0 : mix(i + 40) + mix(i + 41)) + mix(i + 40) + mix(i + 41);
        r.check(all(got.data(), want));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(&differing, o.count, 4, cudaMemcpyDeviceToHost));
        r.check(differing == 0);
    }
    while (!o.pieces.empty())
        o.give();
    CUDA(cudaFreeAsync(left, o.s[0]));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaGraphExecDestroy(frees));
    CUDA(cudaGraphExecDestroy(leaves));
    CUDA(cudaMemPoolDestroy(o.pool));
}
