/* The entries against a host that answers: values, what is unknown, arguments that are wrong. */
#include "fake_host.h"
#include "device.h"
#include "snapshot.h"
#include "gen/entries.h"
#include "structs.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static nvmlDevice_t dev[2];

static void start(void)
{
	unsigned n = 7;
	char text[96];
	int version;

	CHECK(nvmlDeviceGetCount_v2(&n) == NVML_UNINITIALIZED && n == 7);
	CHECK(nvmlShutdown() == NVML_UNINITIALIZED);
	CHECK(nvmlInit_v2() == 0 && nvmlInit() == 0 && nvmlShutdown() == 0);
	CHECK(nvmlDeviceGetCount(&n) == 0 && n == 2);
	CHECK(nvmlDeviceGetHandleByIndex_v2(2, &dev[0]) == NVML_INVALID_ARGUMENT);
	for (unsigned i = 0; i < 2; i++)
		CHECK(nvmlDeviceGetHandleByIndex(i, &dev[i]) == 0 && nvmlDeviceGetIndex(dev[i], &n) == 0 && n == i);
	CHECK(nvmlSystemGetDriverVersion(text, sizeof text) == 0 && !strcmp(text, "580.1.2"));
	CHECK(nvmlSystemGetDriverVersion(text, 7) == NVML_INSUFFICIENT_SIZE);
	CHECK(nvmlSystemGetNVMLVersion(text, sizeof text) == 0 && !strcmp(text, "13.580.1.2"));
	CHECK(nvmlSystemGetCudaDriverVersion(&version) == 0 && version == 13000);
	CHECK(nvmlDeviceGetName((nvmlDevice_t)text, text, sizeof text) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlDeviceGetName(NULL, text, sizeof text) == NVML_INVALID_ARGUMENT);
}

static void identity(void)
{
	struct nvmlUUID u = {.version = CW_NVML_VERSION(struct nvmlUUID, 1), .type = 2};
	struct nvmlPciInfo pci;
	char text[96];
	nvmlDevice_t d;

	CHECK(nvmlDeviceGetName(dev[1], text, sizeof text) == 0 && !strcmp(text, "Fake GPU 1"));
	CHECK(nvmlDeviceGetVbiosVersion(dev[1], text, sizeof text) == NVML_NOT_SUPPORTED);
	CHECK(nvmlDeviceGetUUID(dev[1], text, sizeof text) == 0 && !strcmp(text, "GPU-11111111-1111-1111-1111-111111111111"));
	CHECK(nvmlDeviceGetHandleByUUID(text, &d) == 0 && d == dev[1]);
	CHECK(nvmlDeviceGetHandleByUUID("GPU-0", &d) == NVML_NOT_FOUND);
	memset(u.value.bytes, 0x11, 16);
	CHECK(nvmlDeviceGetHandleByUUIDV(&u, &d) == 0 && d == dev[1]);
	u.version++;
	CHECK(nvmlDeviceGetHandleByUUIDV(&u, &d) == NVML_VERSION_MISMATCH);
	CHECK(nvmlDeviceGetPciInfo_v3(dev[1], &pci) == 0 && !strcmp(pci.busId, "0000CA50:03:01.0") && pci.pciDeviceId == 0);
	CHECK(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &d) == 0 && d == dev[1]);
	CHECK(nvmlDeviceGetHandleByPciBusId("ca50:03:00.0", &d) == 0 && d == dev[0]);
	CHECK(nvmlDeviceGetHandleByPciBusId("03:00.0", &d) == NVML_NOT_FOUND);
	CHECK(nvmlDeviceGetHandleByPciBusId("here", &d) == NVML_INVALID_ARGUMENT);
	memset(&pci, 0x55, sizeof pci);
	CHECK(nvmlDeviceGetPciInfo(dev[0], &pci) == 0 && pci.pciSubSystemId == 0x55555555 && pci.busId[0] == 0x55);
}

static void numbers(void)
{
	struct nvmlMemory m;
	struct nvmlMemory_v2 m2 = {.version = CW_NVML_VERSION(struct nvmlMemory_v2, 2)};
	struct nvmlUtilization use;
	struct nvmlFieldValue f[3] = {{.fieldId = 185}, {.fieldId = 83}, {.fieldId = 99999}};
	unsigned n, k;
	unsigned long long big;

	CHECK(nvmlDeviceGetMemoryInfo(dev[0], &m) == 0 && m.total == 1000 && m.free == 690 && m.used == 310);
	CHECK(nvmlDeviceGetMemoryInfo_v2(dev[0], &m2) == 0 && m2.reserved == 10 && m2.used == 300 && m2.free == 690 && m2.total == 1000);
	m2.version = 0;
	CHECK(nvmlDeviceGetMemoryInfo_v2(dev[0], &m2) == NVML_VERSION_MISMATCH);
	CHECK(nvmlDeviceGetPowerUsage(dev[0], &n) == 0 && n == 70000);
	CHECK(nvmlDeviceGetPowerUsage(dev[0], NULL) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlDeviceGetTotalEnergyConsumption(dev[0], &big) == 0 && big == 1ull << 40);
	CHECK(nvmlDeviceGetTemperature(dev[0], 0, &n) == NVML_NOT_SUPPORTED);
	CHECK(nvmlDeviceGetUtilizationRates(dev[0], &use) == NVML_NOT_SUPPORTED);
	CHECK(nvmlDeviceGetClockInfo(dev[0], 1, &n) == 0 && n == 1980);
	CHECK(nvmlDeviceGetClockInfo(dev[0], 4, &n) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlDeviceGetMigMode(dev[0], &n, &k) == 0 && n == 0 && k == 0);
	CHECK(nvmlDeviceGetTotalEccErrors(dev[0], 2, 0, &big) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlDeviceGetFieldValues(dev[0], 3, f) == 0 && f[0].nvmlReturn == 0 && f[0].value.ui == 70000);
	CHECK(f[1].nvmlReturn == 0 && f[1].value.ull == 1ull << 40 && f[2].nvmlReturn == NVML_NOT_SUPPORTED);
	CHECK(nvmlDeviceSetPersistenceMode(dev[0], 1) == NVML_NOT_SUPPORTED);
}

static void processes(void)
{
	struct nvmlProcessInfo_v1 old[4];
	struct nvmlProcessInfo list[4];
	struct cw_process_detail detail[2];
	struct nvmlProcessDetailList all = {CW_NVML_VERSION(struct nvmlProcessDetailList, 1), 0, 2, detail};
	char name[4096]; /* /proc says a program's whole path */
	unsigned n = 0;

	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(dev[0], &n, NULL) == NVML_INSUFFICIENT_SIZE && n == 2);
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(dev[0], &n, list) == 0 && n == 2 && list[1].pid == 101 &&
	      list[1].usedGpuMemory == 2000);
	CHECK(list[0].gpuInstanceId == 0xffffffff && list[0].computeInstanceId == 0xffffffff);
	memset(list, 0, sizeof list);
	n = 1;
	CHECK(nvmlDeviceGetComputeRunningProcesses_v2(dev[0], &n, list) == NVML_INSUFFICIENT_SIZE && n == 2 && list[0].pid == 100 &&
	      !list[1].pid);
	n = 4;
	CHECK(nvmlDeviceGetComputeRunningProcesses(dev[1], &n, old) == 0 && n == 1 && old[0].pid == 102 && old[0].usedGpuMemory == 3000);
	n = 4;
	CHECK(nvmlDeviceGetGraphicsRunningProcesses_v3(dev[1], &n, list) == 0 && n == 0);
	CHECK(nvmlDeviceGetRunningProcessDetailList(dev[0], &all) == 0 && all.numProcArrayEntries == 2 && detail[1].pid == 101);
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(dev[0], NULL, list) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlSystemGetProcessName((unsigned)getpid(), name, sizeof name) == 0 && strstr(name, "entries_test"));
	CHECK(nvmlSystemGetProcessName(0x7fffffff, name, sizeof name) == NVML_NOT_FOUND);
}

static void peers(void)
{
	struct nvmlGpuFabricInfoV fabric = {.version = CW_NVML_VERSION(struct nvmlGpuFabricInfoV, 3), .state = 9};
	struct nvmlPciInfo pci;
	nvmlDevice_t near[2];
	unsigned long set[2];
	unsigned n;
	int same;

	CHECK(nvmlDeviceGetP2PStatus(dev[0], dev[1], 0, &n) == 0 && n == 0);
	CHECK(nvmlDeviceGetP2PStatus(dev[0], dev[0], 2, &n) == 0 && n == 5);
	CHECK(nvmlDeviceGetP2PStatus(dev[0], dev[1], 4, &n) == NVML_NOT_SUPPORTED);
	CHECK(nvmlDeviceGetP2PStatus(dev[0], dev[1], 5, &n) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlDeviceGetTopologyCommonAncestor(dev[0], dev[1], &n) == 0 && n == 20);
	n = 2;
	CHECK(nvmlDeviceGetTopologyNearestGpus(dev[0], 20, &n, near) == 0 && n == 1 && near[0] == dev[1]);
	CHECK(nvmlDeviceOnSameBoard(dev[0], dev[1], &same) == 0 && !same);
	CHECK(nvmlDeviceGetCpuAffinity(dev[0], 2, set) == 0 && (set[0] & 1));
	CHECK(nvmlDeviceGetCpuAffinityWithinScope(dev[0], 2, set, 7) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlDeviceGetMemoryAffinity(dev[0], 2, set, 0) == 0);
	CHECK(nvmlDeviceGetNvLinkState(dev[1], 2, &n) == 0 && n == 1);
	CHECK(nvmlDeviceGetNvLinkState(dev[0], 2, &n) == NVML_NOT_SUPPORTED);
	CHECK(nvmlDeviceGetNvLinkState(dev[1], 18, &n) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlDeviceGetNvLinkCapability(dev[1], 2, 2, &n) == 0 && n == 1);
	CHECK(nvmlDeviceGetNvLinkCapability(dev[1], 2, 1, &n) == 0 && n == 0);
	CHECK(nvmlDeviceGetNvLinkRemoteDeviceType(dev[1], 2, &n) == 0 && n == 2);
	CHECK(nvmlDeviceGetNvLinkRemotePciInfo_v2(dev[1], 2, &pci) == 0 && !strcmp(pci.busId, "00000000:07:00.0") &&
	      pci.pciDeviceId == 0x22a310de);
	CHECK(nvmlDeviceGetGpuFabricInfoV(dev[0], &fabric) == 0 && fabric.state == 0);
	fabric.version = 0;
	CHECK(nvmlDeviceGetGpuFabricInfoV(dev[0], &fabric) == NVML_VERSION_MISMATCH);
}

static void events(void)
{
	nvmlEventSet_t set;
	unsigned long long types = 1;

	CHECK(nvmlEventSetCreate(&set) == 0);
	CHECK(nvmlDeviceGetSupportedEventTypes(dev[0], &types) == 0 && types == 0);
	CHECK(nvmlDeviceRegisterEvents(dev[0], 8, set) == NVML_NOT_SUPPORTED);
	CHECK(nvmlEventSetWait_v2(set, (void *)&types, 5) == NVML_TIMEOUT);
	CHECK(nvmlEventSetFree(set) == 0 && nvmlEventSetFree(set) == NVML_INVALID_ARGUMENT);
	CHECK(nvmlEventSetWait(set, (void *)&types, 5) == NVML_INVALID_ARGUMENT);
}

/* What nvidia-smi relies on: a size that it accepts, and slots that can be called. */
static void table(void)
{
	static const unsigned char id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
					     0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
	static unsigned char list[3][4128];
	const void *t = NULL;
	const uintptr_t *words;
	unsigned n = 3, limit;

	CHECK(nvmlInternalGetExportTable(&t, id) == 0 && t);
	words = t;
	CHECK(words[0] > 255 * 8 && words[1] == 0 && words[2] == 0);
	for (size_t i = 3; i < words[0] / 8; i++)
		CHECK(words[i]);
	CHECK(((int (*)(void *, unsigned *, void *))words[213])(dev[0], &n, list) == 0 && n == 2);
	CHECK(((int (*)(void *, unsigned *))words[108])(dev[0], &limit) == 0 && limit == 350000);
	CHECK(((int (*)(void *, unsigned *))words[108])(dev[0], NULL) == NVML_INVALID_ARGUMENT);
	CHECK(*(unsigned *)list[1] == 101 && !strcmp((char *)list[1] + 32, "/bin/prog1"));
	n = 3;
	CHECK(((int (*)(void *, unsigned *, void *))words[214])(dev[0], &n, list) == 0 && n == 0);
	n = 99;
	CHECK(((int (*)(const char *, const char *, unsigned *))words[23])("ca50:03:00.0", "ca50:03:01.0", &n) == 0 && n == 1); /* PXB */
	CHECK(((int (*)(const char *, const char *, unsigned *))words[23])("ca50:03:00.0", "ca50:04:01.0", &n) == NVML_NOT_FOUND);
	CHECK(((int (*)(int, int))words[100])(0, 0) == NVML_NOT_SUPPORTED);
	CHECK(nvmlInternalGetExportTable(&t, "0123456789abcdef") == NVML_INVALID_ARGUMENT && !t);
}

/* One question serves a burst; later ones see what changed; a host that fails leaves the last
 * answer. */
static void renewal(void)
{
	struct cw_device *d;
	struct cw_snapshot *s;
	size_t len;
	struct timespec begin, end;
	int before;
	unsigned n, status;
	pid_t pid;

	usleep(150000);
	before = fake_asked();
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 0; i < 100; i++)
		CHECK(nvmlDeviceGetPowerUsage(dev[0], &n) == 0);
	clock_gettime(CLOCK_MONOTONIC, &end);
	/* On a machine with other things to do they are more than one burst. */
	CHECK(fake_asked() - before <=
	      2 + ((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000) / CW_NVML_FRESH_MS);
	s = fake_answer(&len);
	d = (void *)(s + 1);
	d[0].power = 123;
	fake_serve(s, len);
	usleep(150000);
	CHECK(nvmlDeviceGetPowerUsage(dev[0], &n) == 0 && n == 123);
	fake_serve(s, len - 1);
	usleep(150000);
	CHECK(nvmlDeviceGetPowerUsage(dev[0], &n) == 0 && n == 123);
	fake_serve(s, len);
	free(s);
	usleep(150000);
	pid = fork();
	if (pid == 0)
		_exit(nvmlDeviceGetPowerUsage(dev[0], &n) == 0 && n == 123 ? 0 : 1);
	CHECK(waitpid(pid, (int *)&status, 0) == pid && status == 0);
}

int main(void)
{
	setenv("CAUSEWAY", "unix:/nonexistent/session", 1);
	CHECK(nvmlInit_v2() == NVML_DRIVER_NOT_LOADED);
	fake_start();
	start();
	identity();
	numbers();
	processes();
	peers();
	events();
	table();
	renewal();
	CHECK(nvmlShutdown() == 0);
	CHECK(!strcmp(nvmlErrorString(3), "Not Supported") && !strcmp(nvmlErrorString(12345), "Unknown Error"));
	return 0;
}
