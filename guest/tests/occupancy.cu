// Occupancy queries, function attributes and device properties: values differ, relations between
// them do not.
#include "check.h"

#include <vector>

__global__ void plain(int *out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1; }

__global__ void __launch_bounds__(256) bounded(int *out)
{
    __shared__ int tile[2048];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = tile[255 - threadIdx.x];
}

static void properties()
{
    cudaDeviceProp p;
    int count = 0, value = 0;
    CUDA(cudaGetDeviceCount(&count));
    CUDA(cudaGetDeviceProperties(&p, 0));
    note("devices: %d, memory: %zu, clock-independent limits: %d threads and %zu shared bytes per SM", count,
         p.totalGlobalMem, p.maxThreadsPerMultiProcessor, p.sharedMemPerMultiprocessor);
    expect(count >= 1 && p.name[0] && p.totalGlobalMem > 0 && p.multiProcessorCount > 0, "device exists");
    printf("warp %d, block %d (%d, %d, %d), grid x %d\n", p.warpSize, p.maxThreadsPerBlock, p.maxThreadsDim[0],
           p.maxThreadsDim[1], p.maxThreadsDim[2], p.maxGridSize[0]);
    expect(p.sharedMemPerBlock == 48 << 10 && p.sharedMemPerBlockOptin >= p.sharedMemPerBlock, "shared memory limits");
    CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    expect(value == p.multiProcessorCount, "attribute agrees with property");
    CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrUnifiedAddressing, 0));
    expect(value == 1, "unified addressing");
    size_t free_bytes = 0, total = 0;
    CUDA(cudaMemGetInfo(&free_bytes, &total));
    expect(free_bytes > 0 && free_bytes <= total && total <= p.totalGlobalMem, "memory info");
    int runtime = 0, driver = 0;
    CUDA(cudaRuntimeGetVersion(&runtime));
    CUDA(cudaDriverGetVersion(&driver));
    note("runtime %d, driver %d", runtime, driver);
    expect(driver >= 11080 && runtime == CUDART_VERSION, "versions");
    int device = -1;
    char bus[32];
    CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    CUDA(cudaDeviceGetByPCIBusId(&device, bus));
    note("bus: %s", bus);
    expect(device == 0, "found again by its bus address");
}

int main()
{
    note_device();
    properties();
    cudaDeviceProp p;
    CUDA(cudaGetDeviceProperties(&p, 0));
    cudaFuncAttributes a;
    CUDA(cudaFuncGetAttributes(&a, plain));
    note("plain: %d registers, binary %d, PTX %d", a.numRegs, a.binaryVersion, a.ptxVersion);
    expect(a.maxThreadsPerBlock == 1024 && a.sharedSizeBytes == 0 && a.numRegs > 0, "attributes of a plain kernel");
    CUDA(cudaFuncGetAttributes(&a, bounded));
    printf("bounded: %d threads, %zu shared bytes\n", a.maxThreadsPerBlock, a.sharedSizeBytes);
    expect(a.maxThreadsPerBlock == 256 && a.sharedSizeBytes == 8192, "attributes of a bounded kernel");

    int blocks = 0, previous = 1 << 30;
    bool good = true;
    for (int threads = 32; threads <= 1024; threads *= 2) {
        CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, threads, 0));
        good = good && blocks >= 1 && blocks * threads <= p.maxThreadsPerMultiProcessor && blocks <= previous;
        previous = blocks;
    }
    expect(good, "active blocks fall as blocks grow");
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 256, 32 << 10));
    note("bounded with 32 KiB more: %d blocks", blocks);
    expect(blocks >= 1 && (size_t)blocks * (40 << 10) <= p.sharedMemPerMultiprocessor, "shared memory limits blocks");
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, bounded, 512, 0, cudaOccupancyDisableCachingOverride));
    note("bounded, asked for 512 threads where 256 are allowed: %d blocks", blocks);
    int grid = 0, block = 0;
    CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 0));
    note("suggested: %d blocks of %d", grid, block);
    expect(block >= 32 && block <= 1024 && block % 32 == 0 && grid >= p.multiProcessorCount, "suggested launch");
    int *out;
    CUDA(cudaMalloc(&out, (size_t)grid * block * sizeof(int)));
    CUDA(cudaMemset(out, 0, (size_t)grid * block * sizeof(int)));
    plain<<<grid, block>>>(out);
    CUDA(cudaGetLastError());
    std::vector<int> back((size_t)grid * block);
    CUDA(cudaMemcpy(back.data(), out, back.size() * sizeof(int), cudaMemcpyDeviceToHost));
    good = true;
    for (int x : back)
        good = good && x == 1;
    expect(good, "suggested launch runs");
    return finish();
}
