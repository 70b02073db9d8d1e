// Registered memory that does not fill its pages: variables on a stack, in a heap, of the program;
// several in one page; vectors that begin and end somewhere. Kernels reach it at its own address,
// and its neighbours stay what they are. needs: cuda 12.9
#include "driver.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

__global__ void add(int *p, int n, int v)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] += v;
}

// talk says hello to the host and waits for its answer.
__global__ void talk(volatile int *hello, volatile int *answer, int *heard)
{
    *hello = 1;
    __threadfence_system();
    while (*answer == 0)
        ;
    *heard = *answer;
}

static int initialised = 100;
static int zeroed[3];

// launch works on n numbers of registered memory; each is to be i before and i + v after.
static bool launch(int *p, int n, int v)
{
    int *d = nullptr;
    cudaError_t e = cudaHostGetDevicePointer((void **)&d, p, 0);
    if (e == cudaErrorNotSupported) {
        cudaGetLastError();
        return false;
    }
    CUDA(e);
    expect(d == p, "one address");
    add<<<(n + 255) / 256, 256>>>(d, n, v);
    CUDA(cudaDeviceSynchronize());
    return true;
}

static void variable(const char *what, int *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = i;
    CUDA(cudaHostRegister(p, n * sizeof *p, cudaHostRegisterMapped));
    bool good = launch(p, n, 5);
    for (int i = 0; i < n; i++) {
        good = good && p[i] == i + 5;
        p[i] = 2 * i; // what the host writes now, the next kernel sees
    }
    good = good && launch(p, n, 7);
    for (int i = 0; i < n; i++)
        good = good && p[i] == 2 * i + 7;
    unsigned flags = 0;
    CUDA(cudaHostGetFlags(&flags, p));
    expect(good && flags == cudaHostAllocMapped, what);
    CUDA(cudaHostUnregister(p));
}

static void neighbours()
{
    int *page = (int *)mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 3 * 1024; i++)
        page[i] = i;
    int *one = page + 100, *two = page + 110, *across = page + 1020;
    CUDA(cudaHostRegister(one, 4 * sizeof *one, cudaHostRegisterMapped));
    CUDA(cudaHostRegister(two, 5 * sizeof *two, cudaHostRegisterMapped));
    // Parts of two pages, and one between them.
    CUDA(cudaHostRegister(across, 1032 * sizeof *across, cudaHostRegisterMapped));
    printf("again: %s\n", cudaGetErrorName(cudaHostRegister(one + 1, 4, cudaHostRegisterMapped)));
    cudaGetLastError();
    add<<<1, 32>>>(one, 4, 1000);
    add<<<1, 32>>>(two, 5, 2000);
    add<<<5, 256>>>(across, 1032, 3000);
    std::atomic<bool> stop{false}; // somebody else's variable between them
    std::thread other([&] {
        while (!stop)
            __atomic_fetch_add(page + 105, 1, __ATOMIC_RELAXED);
    });
    int before = __atomic_load_n(page + 105, __ATOMIC_RELAXED);
    for (int i = 0; i < 50; i++) {
        add<<<1, 32>>>(one, 4, 1);
        CUDA(cudaDeviceSynchronize());
    }
    stop = true;
    other.join();
    bool good = page[105] >= before;
    for (int i = 0; i < 3 * 1024; i++) {
        int want = i + (i >= 100 && i < 104 ? 1050 : i >= 110 && i < 115 ? 2000 : i >= 1020 && i < 2052 ? 3000 : 0);
        good = good && (i == 105 || page[i] == want);
    }
    expect(good, "neighbours are left alone");
    CUDA(cudaHostUnregister(one));
    add<<<1, 32>>>(two, 5, 4000);
    CUDA(cudaDeviceSynchronize());
    expect(two[4] == 114 + 6000, "one goes, the other stays");
    CUDA(cudaHostUnregister(two));
    CUDA(cudaHostUnregister(across));
    munmap(page, 3 * 4096);
}

// A vector that begins behind its allocation's header. Where a part of it cannot be shared, the
// device has no address for it, and copies work all the same.
static void vector(const char *what, size_t n)
{
    std::vector<int> v(n);
    int *d;
    CUDA(cudaMalloc(&d, n * sizeof *d));
    for (size_t i = 0; i < n; i++)
        v[i] = (int)mix(i);
    CUDA(cudaHostRegister(v.data(), n * sizeof v[0], cudaHostRegisterMapped));
    CUDA(cudaMemcpyAsync(d, v.data(), n * sizeof *d, cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(d, (int)n, 1);
    CUDA(cudaMemcpyAsync(v.data(), d, n * sizeof *d, cudaMemcpyDeviceToHost));
    CUDA(cudaDeviceSynchronize());
    int want = 1;
    if (int *at = nullptr; cudaHostGetDevicePointer((void **)&at, v.data(), 0) == cudaSuccess) {
        add<<<(n + 255) / 256, 256>>>(at, (int)n, 10);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(d, v.data() + n - 3, 3 * sizeof *d, cudaMemcpyHostToDevice));
        int last[3];
        CUDA(cudaMemcpy(last, d, sizeof last, cudaMemcpyDeviceToHost));
        want = 11;
        expect(last[2] == (int)mix(n - 1) + want, "a copy of its end");
    } else {
        note("%s: no device address", what);
        cudaGetLastError();
        expect(true, "a copy of its end");
    }
    bool good = true;
    for (size_t i = 0; i < n; i++)
        good = good && v[i] == (int)mix(i) + want;
    expect(good, what);
    fflush(stdout);
    // A child's writes are its own.
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < n; i += 7)
            v[i] = -1;
        _Exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    for (size_t i = 0; i < n; i++)
        good = good && v[i] == (int)mix(i) + want;
    expect(good && status == 0, "a child changes nothing");
    CUDA(cudaHostUnregister(v.data()));
    CUDA(cudaFree(d));
}

static void conversation()
{
    int hello = 0, answer = 0, heard = 0;
    for (int *p : {&hello, &answer, &heard})
        CUDA(cudaHostRegister(p, sizeof *p, cudaHostRegisterMapped));
    talk<<<1, 1>>>(&hello, &answer, &heard);
    double end = seconds() + 60;
    while (*(volatile int *)&hello == 0 && seconds() < end)
        ;
    *(volatile int *)&answer = hello ? 42 : -1;
    CUDA(cudaDeviceSynchronize());
    printf("the host heard %d, the kernel %d\n", hello, heard);
    expect(heard == 42, "both see each other while a kernel runs");
    for (int *p : {&hello, &answer, &heard})
        CUDA(cudaHostUnregister(p));
}

// Programs unmap memory before they unregister it, or without; nobody may touch it then. Native
// drivers take that. A registration takes an emulated guest 30 ms: there it is done as often as one
// second allows.
static void unmapped()
{
    const size_t size = 16 * 4096;
    bool good = true;
    double end = seconds() + 1;
    for (int i = 0; i < 500 && (i < 30 || seconds() < end); i++) {
        char *p = (char *)mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CUDA(cudaHostRegister(p + 8, size - 100, cudaHostRegisterMapped));
        usleep(i % 100);
        munmap(p, size);
        good = good && cudaHostUnregister(p + 8) == cudaSuccess;
    }
    expect(good, "memory that goes before its registration");
}

// Words that threads go on writing beside what a kernel writes: both stay.
static void shared_words()
{
    int pair[2] = {0, 0};
    CUDA(cudaHostRegister(pair, sizeof pair, cudaHostRegisterMapped));
    std::atomic<bool> stop{false};
    std::atomic<int> wrote{0};
    std::thread other([&] {
        for (int i = 1; !stop; i++) {
            __atomic_store_n(&pair[0], i, __ATOMIC_RELAXED);
            wrote = i;
        }
    });
    bool good = true;
    for (int i = 1; i <= 300; i++) {
        add<<<1, 1>>>(pair + 1, 1, 1);
        CUDA(cudaDeviceSynchronize());
        good = good && __atomic_load_n(&pair[1], __ATOMIC_RELAXED) == i;
    }
    stop = true;
    other.join();
    CUDA(cudaHostUnregister(pair));
    expect(good && pair[0] == wrote, "a word that both sides write halves of");
}

// Many ranges, more than are carried: each is copied right, whether or not the device has an
// address for it, and calls stay quick.
static void many()
{
    const int count = 150, n = 1000;
    std::vector<std::vector<int>> v(count, std::vector<int>(n, 1));
    int *d;
    bool good = true;
    CUDA(cudaMalloc(&d, n * sizeof *d));
    for (auto &one : v)
        CUDA(cudaHostRegister(one.data(), n * sizeof one[0], cudaHostRegisterMapped));
    for (int i = 0; i < count; i++) {
        CUDA(cudaMemcpyAsync(d, v[i].data(), n * sizeof *d, cudaMemcpyHostToDevice));
        add<<<(n + 255) / 256, 256>>>(d, n, i);
        CUDA(cudaMemcpyAsync(v[i].data(), d, n * sizeof *d, cudaMemcpyDeviceToHost));
    }
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < count; i++) {
        good = good && v[i][0] == 1 + i && v[i][n - 1] == 1 + i;
        CUDA(cudaHostUnregister(v[i].data()));
    }
    CUDA(cudaFree(d));
    expect(good, "many ranges");
}

int main()
{
    note_device();
    int on_stack[5], can = 0;
    CUDA(cudaDeviceGetAttribute(&can, cudaDevAttrCanMapHostMemory, 0));
    if (!can) {
        printf("skipped: kernels cannot reach this machine's memory from where they run\n");
        return 77;
    }
    variable("on the stack", on_stack, 1);
    variable("an array on the stack", on_stack, 5);
    variable("with a first value", &initialised, 1);
    variable("of the program", zeroed, 3);
    int *heap = (int *)malloc(64 * sizeof *heap);
    variable("in the heap", heap + 1, 63);
    free(heap);
    std::thread([&] {
        int local[2];
        variable("on a thread's stack", local, 2);
    }).join();
    neighbours();
    vector("a small vector", 1000);
    vector("a vector of some pages", 9000);
    vector("a large vector", 300000);
    conversation();
    unmapped();
    shared_words();
    many();
    return finish();
}
