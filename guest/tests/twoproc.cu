// Two processes share one GPU's memory: IPC handles, events, memory of cuMemCreate by descriptor,
// pools. The program starts itself a second time: CUDA does not survive fork.
// needs: cuda 11.8
#include "driver.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t M = 2 << 20, N = 1 << 20;
static int channel;

struct message {
    CUipcMemHandle memory, middle;
    CUipcEventHandle event;
    CUmemPoolPtrExportData pointer;
    int events; // whether this GPU has events for other processes
};

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    perror(what);
    _Exit(1);
}

static void put(const void *p, size_t n) { must(write(channel, p, n) == (ssize_t)n, "write"); }
static void get(void *p, size_t n) { must(recv(channel, p, n, MSG_WAITALL) == (ssize_t)n, "read"); }

// step waits for the other process to reach the same one.
static void step(char name)
{
    char other = 0;
    put(&name, 1);
    get(&other, 1);
    must(other == name, "the other process is elsewhere");
}

static void put_fd(int fd)
{
    char byte = 'f', room[CMSG_SPACE(sizeof fd)] = {};
    iovec v = {&byte, 1};
    msghdr m = {};
    m.msg_iov = &v, m.msg_iovlen = 1, m.msg_control = room, m.msg_controllen = sizeof room;
    cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    must(sendmsg(channel, &m, 0) == 1, "sendmsg");
}

static int get_fd()
{
    int fd = -1;
    char byte = 0, room[CMSG_SPACE(sizeof fd)] = {};
    iovec v = {&byte, 1};
    msghdr m = {};
    m.msg_iov = &v, m.msg_iovlen = 1, m.msg_control = room, m.msg_controllen = sizeof room;
    must(recvmsg(channel, &m, 0) == 1 && CMSG_FIRSTHDR(&m), "recvmsg");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

__global__ static void add(uint32_t *p, size_t n, uint32_t what)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = mix(p[i] + what);
}

static void run(CUdeviceptr p, size_t bytes, uint32_t what)
{
    size_t n = bytes / 4;
    add<<<(unsigned)((n + 255) / 256), 256>>>((uint32_t *)p, n, what);
    CUDA(cudaGetLastError());
    CU(cuCtxSynchronize());
}

// holds reports whether each word of the memory went through mix with each of the steps.
static bool holds(CUdeviceptr p, size_t bytes, uint32_t start, std::initializer_list<uint32_t> steps)
{
    uint32_t *h = (uint32_t *)malloc(bytes);
    bool ok = true;
    CU(cuMemcpyDtoH(h, p, bytes));
    for (uint32_t s : steps)
        start = mix(start + s);
    for (size_t i = 0; i < bytes / 4; i++)
        ok = ok && h[i] == start;
    free(h);
    return ok;
}

static CUmemAllocationProp shareable()
{
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return p;
}

static CUdeviceptr map(CUmemGenericAllocationHandle h, size_t size)
{
    CUdeviceptr va;
    CUmemAccessDesc d = {};
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CU(cuMemAddressReserve(&va, size, 0, 0, 0));
    CU(cuMemMap(va, size, 0, h, 0));
    CU(cuMemSetAccess(va, size, &d, 1));
    return va;
}

static void exporter()
{
    message m = {};
    CUdeviceptr plain, small, va, pooled = 0;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = shareable();
    CUmemoryPool pool = nullptr;
    CUmemPoolProps pp = {};
    CUevent event = nullptr;
    int fd = -1, pool_fd = -1;

    CU(cuMemAlloc(&plain, N));
    CU(cuMemAlloc(&small, 1000));
    CU(cuMemsetD32(plain, 1, N / 4));
    CU(cuMemsetD32(small, 2, 250));
    CU(cuIpcGetMemHandle(&m.memory, plain));
    CU(cuIpcGetMemHandle(&m.middle, small + 256));
    // IPC_EVENT_SUPPORTED, named since CUDA 12
    CU(cuDeviceGetAttribute(&m.events, (CUdevice_attribute)125, 0));
    if (m.events) {
        CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
        CU(cuIpcGetEventHandle(&m.event, event));
    }
    CU(cuMemCreate(&h, 2 * M, &prop, 0));
    va = map(h, 2 * M);
    CU(cuMemsetD32(va, 3, 2 * M / 4));
    CU(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pp.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    pp.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuMemPoolCreate(&pool, &pp));
    CU(cuMemAllocFromPoolAsync(&pooled, N, pool, nullptr));
    CU(cuMemsetD32(pooled, 4, N / 4));
    CU(cuMemPoolExportToShareableHandle(&pool_fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU(cuMemPoolExportPointer(&m.pointer, pooled));
    CU(cuCtxSynchronize());
    put(&m, sizeof m);
    put_fd(fd);
    put_fd(pool_fd);
    close(fd);
    close(pool_fd);

    step('a'); // the other process has everything open
    run(plain, N, 10);
    run(va, 2 * M, 11);
    run(pooled, N, 12);
    if (m.events)
        CU(cuEventRecord(event, nullptr));
    step('b'); // it reads what was written here, then writes
    step('c');
    expect(holds(plain, N, 1, {10, 20}), "IPC memory: the other process's writes");
    expect(holds(va, 2 * M, 3, {11, 21}), "memory of cuMemCreate: the other process's writes");
    expect(holds(pooled, N, 4, {12, 22}), "memory of a pool: the other process's writes");
    if (m.events)
        CU(cuEventSynchronize(event));
    step('d'); // it has closed everything
    expect(holds(plain, N, 1, {10, 20}), "IPC memory is still here");
    CU(cuMemFree(plain));
    CU(cuMemFree(small));
    CU(cuMemFreeAsync(pooled, nullptr));
    CU(cuMemUnmap(va, 2 * M));
    CU(cuMemRelease(h));
    CU(cuMemAddressFree(va, 2 * M));
    step('e');
    CU(cuMemPoolDestroy(pool));
    if (event)
        CU(cuEventDestroy(event));
}

static void importer()
{
    message m;
    CUdeviceptr plain = 0, again = 0, small = 0, va, pooled = 0, base;
    CUmemGenericAllocationHandle h, other;
    CUmemAllocationProp prop;
    CUmemoryPool pool;
    CUipcMemHandle forged = {};
    CUevent event = nullptr;
    size_t size = 0;
    get(&m, sizeof m);
    int fd = get_fd(), pool_fd = get_fd();

    printf("open without flags: %s\n", name_of(cuIpcOpenMemHandle(&plain, m.memory, 0)));
    memcpy(&forged, &m.memory, sizeof forged);
    forged.reserved[3] ^= 1;
    bool opened = cuIpcOpenMemHandle(&plain, forged, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS;
    // Not every bit means something to every driver.
    note("a handle with another bit: %s", opened ? "opened" : "refused");
    if (opened)
        CU(cuIpcCloseMemHandle(plain));
    CU(cuIpcOpenMemHandle(&plain, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CU(cuIpcOpenMemHandle(&again, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    expect(plain == again, "opened twice: one address");
    CU(cuIpcOpenMemHandle(&small, m.middle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    expect(holds(small, 1000, 2, {}), "small IPC memory, by an address within");
    CU(cuMemGetAddressRange(&base, &size, plain + 5));
    expect(base == plain && size == N, "range of IPC memory");
    printf("free of IPC memory: %s\n", name_of(cuMemFree(plain)));
    printf("handle of IPC memory: %s\n", name_of(cuIpcGetMemHandle(&forged, plain)));
    if (m.events) {
        CU(cuIpcOpenEventHandle(&event, m.event));
        printf("handle of an opened event: %s\n", name_of(cuIpcGetEventHandle(&m.event, event)));
    } else {
        printf("handle of an opened event: CUDA_ERROR_INVALID_HANDLE\n");
    }

    CU(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CU(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CU(cuMemRelease(other));
    CU(cuMemGetAllocationPropertiesFromHandle(&prop, h));
    expect(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == 0, "where imported memory is");
    printf("import of another file: %s\n", name_of(cuMemImportFromShareableHandle(&other, (void *)1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    printf("export of imported memory: %s\n", name_of(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    va = map(h, 2 * M);

    CU(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)pool_fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU(cuMemPoolImportPointer(&pooled, pool, &m.pointer));
    printf("allocate from an imported pool: %s\n", name_of(cuMemAllocFromPoolAsync(&base, N, pool, nullptr)));

    step('a');
    step('b');
    if (event) {
        CU(cuStreamWaitEvent(nullptr, event, 0));
        CU(cuEventSynchronize(event));
    }
    expect(holds(plain, N, 1, {10}), "IPC memory: what the other process wrote");
    expect(holds(va, 2 * M, 3, {11}), "memory of cuMemCreate: what the other process wrote");
    expect(holds(pooled, N, 4, {12}), "memory of a pool: what the other process wrote");
    run(plain, N, 20);
    run(va, 2 * M, 21);
    run(pooled, N, 22);
    if (event)
        CU(cuEventRecord(event, nullptr));
    step('c');
    CU(cuIpcCloseMemHandle(plain));
    expect(holds(plain, N, 1, {10, 20}), "closed once of two");
    CU(cuIpcCloseMemHandle(plain));
    printf("close again: %s\n", name_of(cuIpcCloseMemHandle(plain)));
    CU(cuIpcCloseMemHandle(small));
    CU(cuMemUnmap(va, 2 * M));
    CU(cuMemRelease(h));
    CU(cuMemAddressFree(va, 2 * M));
    CU(cuMemFree(pooled));
    CU(cuMemPoolDestroy(pool));
    if (event)
        CU(cuEventDestroy(event));
    step('d');
    step('e');
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "importer")) {
        channel = atoi(argv[2]);
        CUDA(cudaFree(nullptr));
        importer();
        return failures != 0;
    }
    int ends[2], status = 0;
    char number[16];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        snprintf(number, sizeof number, "%d", ends[1]);
        execl("/proc/self/exe", argv[0], "importer", number, (char *)nullptr);
        _Exit(127);
    }
    close(ends[1]);
    channel = ends[0];
    CUDA(cudaFree(nullptr));
    // Both write to one output: this process's lines come when the other's are out.
    static char mine[1 << 16];
    setvbuf(stdout, mine, _IOFBF, sizeof mine);
    exporter();
    must(waitpid(child, &status, 0) == child, "waitpid");
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process ended well");
    return finish();
}
