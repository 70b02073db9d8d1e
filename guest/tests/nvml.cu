// The management library beside CUDA: both name the same devices, and the library sees what this
// process allocates. Exits with 77 where the library tells names only.
#include "check.h"

#include <chrono>
#include <dlfcn.h>
#include <string>
#include <thread>
#include <unistd.h>

namespace {

typedef void *Device;

struct Memory {
    unsigned long long total, free, used;
};

struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpuInstance, computeInstance;
};

// Results are nvmlReturn_t values.
int (*init)();
int (*shutdown_)();
int (*count)(unsigned *);
int (*byIndex)(unsigned, Device *);
int (*byPci)(const char *, Device *);
int (*byUuid)(const char *, Device *);
int (*name)(Device, char *, unsigned);
int (*uuid)(Device, char *, unsigned);
int (*capability)(Device, int *, int *);
int (*version)(int *);
int (*memory)(Device, Memory *);
int (*processes)(Device, unsigned *, Process *);
int (*p2p)(Device, Device, unsigned, unsigned *);

bool load()
{
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    struct {
        void *at;
        const char *name;
    } list[] = {
        {&init, "nvmlInit_v2"},
        {&shutdown_, "nvmlShutdown"},
        {&count, "nvmlDeviceGetCount_v2"},
        {&byIndex, "nvmlDeviceGetHandleByIndex_v2"},
        {&byPci, "nvmlDeviceGetHandleByPciBusId_v2"},
        {&byUuid, "nvmlDeviceGetHandleByUUID"},
        {&name, "nvmlDeviceGetName"},
        {&uuid, "nvmlDeviceGetUUID"},
        {&capability, "nvmlDeviceGetCudaComputeCapability"},
        {&version, "nvmlSystemGetCudaDriverVersion_v2"},
        {&memory, "nvmlDeviceGetMemoryInfo"},
        {&processes, "nvmlDeviceGetComputeRunningProcesses_v3"},
        {&p2p, "nvmlDeviceGetP2PStatus"},
    };
    for (auto &f : list) {
        void *p = lib ? dlsym(lib, f.name) : nullptr;
        if (!p) return false;
        memcpy(f.at, &p, sizeof p);
    }
    return true;
}

// used by this process on a device; false: it is not listed.
bool own(Device d, unsigned long long *used)
{
    Process list[256];
    unsigned n = 256;
    if (processes(d, &n, list)) return false;
    for (unsigned i = 0; i < n; i++)
        if (list[i].pid == (unsigned)getpid()) {
            *used = list[i].used;
            return true;
        }
    return false;
}

// settles: what a driver says of memory may lag behind the call that changed it.
template <class F> bool settles(F done)
{
    for (int i = 0; i < 1200; i++) {
        if (done()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
}

// steady is what this process uses of a device, once that is listed and stays the same for longer
// than an answer is used again. A context counts, too.
unsigned long long steady(Device d)
{
    unsigned long long last = 0, now = 0;
    bool known = false;
    for (int i = 0; i < 200; i++) {
        if (own(d, &now)) {
            if (known && now == last) return now;
            known = true;
            last = now;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    return last;
}

std::string text(const unsigned char *u)
{
    std::string s = "GPU-";
    char two[3];
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) s += '-';
        snprintf(two, sizeof two, "%02x", u[i]);
        s += two;
    }
    return s;
}

// Lines are those of device 0, whatever the number of devices.
void compare(int i)
{
    cudaDeviceProp prop;
    char pci[32], own_name[96] = "", own_uuid[96] = "";
    int major = 0, minor = 0;
    Device d = nullptr, again = nullptr;
    auto say = [i](bool ok, const char *what) {
        if (i == 0 || !ok) expect(ok, what);
    };
    CUDA(cudaGetDeviceProperties(&prop, i));
    CUDA(cudaDeviceGetPCIBusId(pci, sizeof pci, i));
    say(byPci(pci, &d) == 0, "found by PCI address");
    say(name(d, own_name, sizeof own_name) == 0 && !strcmp(own_name, prop.name), "same name");
    say(uuid(d, own_uuid, sizeof own_uuid) == 0 && text((const unsigned char *)prop.uuid.bytes) == own_uuid, "same UUID");
    say(byUuid(own_uuid, &again) == 0 && again == d, "found by UUID");
    say(capability(d, &major, &minor) == 0 && major == prop.major && minor == prop.minor, "same compute capability");
}

}  // namespace

int main()
{
    unsigned n = 0, before = 0, status = 99;
    int devices = 0, driver = 0, nvml = 0;
    Device d = nullptr;
    Memory m0 = {}, m1 = {};
    unsigned long long base = 0, used = 0, later = 0;
    void *held = nullptr, *p = nullptr;

    expect(load(), "library");
    expect(count(&before) == 1, "uninitialised before init");
    expect(init() == 0 && count(&before) == 0, "init");
    CUDA(cudaGetDeviceCount(&devices));
    expect(count(&n) == 0 && n == before && (int)n >= devices, "as many devices");
    CUDA(cudaDriverGetVersion(&driver));
    expect(version(&nvml) == 0 && nvml == driver, "same driver version");
    for (int i = 0; i < devices; i++) compare(i);

    char pci[32];
    CUDA(cudaDeviceGetPCIBusId(pci, sizeof pci, 0));
    expect(byPci(pci, &d) == 0, "device 0");
    if (memory(d, &m0) == 3) {
        printf("# names only\n");
        return 77;
    }
    // On any GPU something is used already, as a real one's context is: what comes and goes is to
    // be seen beside it.
    CUDA(cudaMalloc(&held, 128 << 20));
    base = steady(d);
    CUDA(cudaMalloc(&p, 64 << 20));
    expect(settles([&] { return memory(d, &m1) == 0 && m1.total == m0.total && m1.used >= 64 << 20; }), "memory in use");
    expect(settles([&] { return own(d, &used) && used >= base + (64 << 20); }), "listed as a process");
    note("used %llu of %llu MiB, %llu before", used >> 20, m1.total >> 20, base >> 20);
    CUDA(cudaFree(p));
    expect(settles([&] {
        later = 0; // one that holds nothing may not be listed
        own(d, &later);
        return later + (64 << 20) <= used;
    }), "freed");
    CUDA(cudaFree(held));
    expect(p2p(d, d, 0, &status) == 0 && status <= 6, "peer status");
    expect(shutdown_() == 0 && count(&n) == 1, "shutdown");
    return failures != 0;
}
