// over:MIB has so much managed memory where there is room for two thirds of it: through Causeway the rest of the GPU's memory is taken first. Natively there
// is room for all, and it says so: how a bare driver thrashes is not measured here, as that can take a GPU out of service.
#pragma once

static void hold_steps(const uint32_t *p, size_t n, uint32_t seed, int times)
{
    uint32_t a = 1, b = 0;
    for (int k = 0; k < times; k++)
        b = b * 3 + 1, a *= 3;
    for (size_t i = 0; i < n; i += n / 97 + 1)
        if (p[i] != ((uint32_t)i + seed) * a + b) {
            fprintf(stderr, "word %zu is wrong\n", i);
            exit(1);
        }
}

__global__ void number(uint32_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = (uint32_t)i + seed;
}

// 20 kernels that each read and write all of one allocation, twice.
static bool sweeps(size_t mib)
{
    const size_t n = mib << 18;
    uint32_t *p;
    if (cudaMallocManaged(&p, n * 4) != cudaSuccess) {
        printf("# over-%zuMiB: %s\n", mib, cudaGetErrorName(cudaGetLastError()));
        return false;
    }
    number<<<1024, 256>>>(p, n, 5);
    CUDA(cudaDeviceSynchronize());
    for (int round = 0; round < 2; round++) {
        double t = now();
        for (int k = 0; k < 20; k++)
            step<<<1024, 256>>>(p, n);
        CUDA(cudaDeviceSynchronize());
        if (round == 1)
            printf("over-%zuMiB-sweeps %.6f\n", mib, now() - t);
        else
            printf("# over-%zuMiB first sweeps %.4f\n", mib, now() - t);
    }
    hold_steps(p, n, 5, 40);
    CUDA(cudaFree(p));
    fflush(stdout);
    return true;
}

// Three allocations of a third each, of which each phase uses two: 60 kernels on either.
static void phases(size_t mib)
{
    const size_t n = (mib / 3) << 18;
    uint32_t *p[3];
    for (int s = 0; s < 3; s++) {
        CUDA(cudaMallocManaged(&p[s], n * 4));
        number<<<1024, 256>>>(p[s], n, s);
    }
    CUDA(cudaDeviceSynchronize());
    double t = now(), part = t;
    for (int phase = 0; phase < 3; phase++) {
        for (int k = 0; k < 60; k++) {
            step<<<1024, 256>>>(p[phase], n);
            step<<<1024, 256>>>(p[(phase + 1) % 3], n);
        }
        CUDA(cudaDeviceSynchronize());
        printf("# over-%zuMiB phase %d %.4f\n", mib, phase, now() - part);
        part = now();
    }
    printf("over-%zuMiB-moves %.6f\n", mib, now() - t);
    for (int s = 0; s < 3; s++) {
        hold_steps(p[s], n, s, 120);
        CUDA(cudaFree(p[s]));
    }
    fflush(stdout);
}

static void over(size_t mib)
{
    int concurrent = 0;
    size_t left, total;
    void *hog = nullptr;
    CUDA(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    step<<<1, 1>>>(nullptr, 0);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemGetInfo(&left, &total));
    size_t room = (mib << 20) / 3 * 2;
    if (!concurrent && left > room)
        CUDA(cudaMalloc(&hog, left - room));
    else if (left < (mib << 20) + (1ull << 30)) {
        printf("# over-%zuMiB is left out: %zu MiB are free\n", mib, left >> 20);
        return;
    }
    CUDA(cudaMemGetInfo(&left, &total));
    printf("# over-%zuMiB: room for %zu MiB\n", mib, left >> 20);
    if (sweeps(mib))
        phases(mib);
    CUDA(cudaFree(hog));
}
