/* Export tables, cuGetProcAddress over the real table, errors, devices. */
#include <pthread.h>
#include <unistd.h>

#include "api/integrity.h"
#include "fake_host.h"

struct id {
	uint8_t b[16];
};

static const struct {
	const char *what;
	struct id id;
	size_t words; /* 0: refused */
} tables[] = {
	{"runtime", {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}}, 13},
	{"hooks", {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}}, 7},
	{"thread-local", {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}}, 3},
	{"context checks", {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}}, 15},
	{"integrity", {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}}, 3},
	{"blas", {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}}, 93},
	{"topology", {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca}}, 17},
	{"module walk", {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e}}, 99},
	{"compile cache", {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28}}, 7},
	{"profiler 1", {{0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4, 0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6, 0x6e, 0x6a, 0xed, 0x7f}}, 0},
	{"profiler 2", {{0xd7, 0xbd, 0x8a, 0xf8, 0xe7, 0xac, 0xca, 0x4a, 0xbd, 0xbc, 0xfb, 0x1f, 0x1b, 0x3f, 0xcf, 0x33}}, 0},
	{"skip init", {{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9}}, 0},
	{"unknown", {{1, 2, 3}}, 0},
};

static void *const *table(int i)
{
	const void *t = &t;
	int res = (int)cuGetExportTable(&t, (const CUuuid *)&tables[i].id);

	CHECK_RES(res, tables[i].words ? 0 : 1);
	CHECK(tables[i].words || t == NULL);
	return t;
}

static void export_tables(void)
{
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
		void *const *t = table((int)i);

		if (!t)
			continue;
		CHECK((size_t)t[0] == tables[i].words * 8);
		for (size_t w = 1; w < tables[i].words; w++)
			CHECK(t[w] != NULL); /* an empty word is a crash in whoever calls it */
		CHECK(table((int)i) == t);
	}
}

static void hooks(void)
{
	void *const *t = table(1);
	void (*get)(uint32_t **, size_t *);
	uint32_t *flags;
	size_t n;

	for (int slot = 2; slot <= 6; slot += 4) {
		memcpy(&get, &t[slot], sizeof get);
		get(&flags, &n);
		CHECK(n == (slot == 2 ? 1024 : 14));
		for (size_t i = 0; i < n; i++)
			CHECK(flags[i] == 0);
	}
}

static void integrity(void)
{
	void *const *runtime = table(0), *const *check = table(4);
	CUresult (*answer)(uint32_t, uint64_t, uint64_t[2]);
	struct cw_integrity_device d[2] = {{.uuid = {1}, .pci_bus = 6}, {.uuid = {2}, .pci_bus = 7}};
	struct cw_integrity_process p = {13000,
					 12082,
					 (uint32_t)getpid(),
					 (uint32_t)(uintptr_t)pthread_self(),
					 (uintptr_t)runtime,
					 (uintptr_t)check,
					 (uintptr_t)check[1],
					 77};
	uint64_t got[2], want[2];

	memcpy(&answer, &check[1], sizeof answer);
	CHECK_RES(answer(12082, 77, got), 0);
	cw_integrity_digest(&p, d, 2, want);
	CHECK(got[0] == want[0] && got[1] == want[1]);
}

static void proc_addresses(void)
{
	void *p = &p, *keep = &keep;
	CUdriverProcAddressQueryResult status = 9;

	CHECK_RES(cuGetProcAddress_v2("cuMemAlloc", &p, 12000, 0, &status), 0);
	CHECK(p == (void *)cuMemAlloc_v2 && status == 0);
	CHECK_RES(cuGetProcAddress_v2("cuMemAlloc_v2", &p, 12000, 0, &status), 0);
	CHECK(p == NULL && status == 1);
	CHECK_RES(cuGetProcAddress_v2("", &p, 0, 0, NULL), 0);
	CHECK(p == NULL);
	CHECK_RES(cuGetProcAddress_v2("cuLaunchKernel", &p, 3020, 0, &status), 0);
	CHECK(p == NULL && status == 2);
	CHECK_RES(cuGetProcAddress_v2("cuLaunchKernel", &p, 12000, 2, &status), 0);
	CHECK(p == (void *)cuLaunchKernel_ptsz);
	CHECK_RES(cuGetProcAddress_v2("cuLaunchKernel", &p, 12000, 3, &status), 0);
	CHECK(p == (void *)cuLaunchKernel_ptsz);
	CHECK_RES(cuGetProcAddress_v2("cuLaunchKernel", &p, 12000, 1, &status), 0);
	CHECK(p == (void *)cuLaunchKernel);
	CHECK_RES(cuGetProcAddress_v2("cuGraphInstantiate", &p, 12000, 0, &status), 0);
	/* The five-argument form, whatever the headers' macro says. */
	CHECK(p == (void *)cuGraphInstantiate_v2);
	CHECK_RES(cuGetProcAddress_v2("cuGetProcAddress", &p, 11080, 0, &status), 0);
	CHECK(p == (void *)cuGetProcAddress);
	CHECK_RES(cuGetProcAddress_v2("cuGetProcAddress", &p, 12000, 0, &status), 0);
	CHECK(p == (void *)cuGetProcAddress_v2);
	status = 9;
	p = keep;
	CHECK_RES(cuGetProcAddress_v2("cuInit", &p, 12000, 4, &status), 1);
	CHECK(p == keep && status == 9);
	CHECK_RES(cuGetProcAddress("cuNoSuch", &p, 11080, 0), 500);
	CHECK(p == keep);
	CHECK_RES(cuGetProcAddress("cuStreamGetCaptureInfo", &p, 11080, 0), 0);
	CHECK(p == (void *)cuStreamGetCaptureInfo_v2);
	for (unsigned i = 1; i < cw_proc_count; i++) /* what the search relies on */
		CHECK(strcmp(cw_procs[i - 1].name, cw_procs[i].name) < 0 ||
		      (!strcmp(cw_procs[i - 1].name, cw_procs[i].name) && cw_procs[i - 1].since < cw_procs[i].since));
}

static void errors(void)
{
	const char *s = "";

	CHECK_RES(cuGetErrorName(700, &s), 0);
	CHECK(!strcmp(s, "CUDA_ERROR_ILLEGAL_ADDRESS"));
	CHECK_RES(cuGetErrorString(1, &s), 0);
	CHECK(!strcmp(s, "invalid argument"));
	CHECK_RES(cuGetErrorName(12345, &s), 1);
	CHECK(s == NULL);
	CHECK_RES(cuGetErrorString((CUresult)-1, &s), 1);
	CHECK(s == NULL);
}

static void devices(void)
{
	CUuuid u;
	char text[64];
	int v;
	CUdevice dev;

	CHECK_RES(cuDeviceGet(&dev, 2), 101);
	CHECK_RES(cuDeviceGet(&dev, -1), 101);
	CHECK_RES(cuDeviceGetName(text, 4, 1), 0);
	CHECK(!strcmp(text, "Fak"));
	CHECK_RES(cuDeviceGetUuid(&u, 1), 0);
	CHECK(u.bytes[0] == 2);
	CHECK_RES(cuDeviceGetAttribute(&v, 16, 0), 0);
	CHECK(v == 132);
	CHECK_RES(cuDeviceGetAttribute(&v, 83, 0), 0);
	/* Managed memory: the worker says 0 where it cannot be. */
	CHECK(v == 1);
	CHECK_RES(cuDeviceGetAttribute(&v, 9, 0), 1); /* the worker does not know it */
	CHECK_RES(cuDeviceGetAttribute(&v, 191, 0), 1);
	CHECK_RES(cuDeviceGetAttribute(&v, 192, 0), 1);
	CHECK_RES(cuDeviceGetAttribute(&v, -1, 0), 1);
	CHECK_RES(cuDeviceGetPCIBusId(text, sizeof text, 1), 0);
	CHECK(!strcmp(text, "0000:07:00.0"));
	CHECK_RES(cuDeviceGetByPCIBusId(&dev, "0000:07:00.0"), 0);
	CHECK(dev == 1);
	CHECK_RES(cuDeviceGetByPCIBusId(&dev, "6:0.0"), 0);
	CHECK(dev == 0);
	CHECK_RES(cuDeviceGetByPCIBusId(&dev, "0000:09:00.0"), 101);
	CHECK_RES(cuDeviceGetByPCIBusId(&dev, "nonsense"), 1);
	CHECK_RES(cuDeviceComputeCapability(&v, &dev, 0), 0);
	CHECK(v == 9 && dev == 0);
}

int main(void)
{
	export_tables(); /* all before cuInit */
	hooks();
	proc_addresses();
	errors();
	CHECK_RES(cuInit(0), 0);
	integrity();
	devices();
	return fake.failures != 0;
}
