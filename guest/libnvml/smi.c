/*
 * The table that nvidia-smi asks for before it says anything. What its slots mean is known from
 * public observation of the program's behaviour only; slots that are not known are refused, with a
 * line on stderr under CAUSEWAY_LOG=trace. The first word is the table's size in bytes, which
 * nvidia-smi compares with what it needs; words 1 and 2 are 0 in real tables.
 */
#include "device.h"
#include "gen/entries.h"
#include "peers.h"
#include "processes.h"
#include "structs.h"

#include <stdio.h>
#include <string.h>

enum { SLOTS = 320, NEARNESS = 23, TEXT = 26, MONITORED = 72, HANDLE = 81, ENFORCED = 108, COMPUTE = 213, GRAPHICS = 214, MPS = 215 };

typedef uintptr_t word;

struct entry {
	unsigned pid, pad;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
	unsigned long long protected_used;
	char name[4096];
};

_Static_assert(sizeof(struct entry) == 4128, "stride of the process lists");

static int text(word a, word b, word c, word d)
{
	(void)a, (void)b, (void)c, (void)d;
	return NVML_SUCCESS;
}

static int handle(word index, word device, word c, word d)
{
	(void)c, (void)d;
	return cw_nvml_ready() ? cwi_nvmlDeviceGetHandleByIndex_v2((unsigned)index, (nvmlDevice_t *)device) : NVML_UNINITIALIZED;
}

/* The power limit that holds, in milliwatts. */
static int enforced(word device, word limit, word c, word d)
{
	(void)c, (void)d;
	return cw_nvml_u32((nvmlDevice_t)device, (unsigned *)limit, offsetof(struct cw_device, power_limit));
}

static void put(void *to, const struct cw_process *p)
{
	struct entry *e = to;

	*e = (struct entry){.pid = p->pid,
			    .used = p->used,
			    .gpu_instance = CW_UNKNOWN32,
			    .compute_instance = CW_UNKNOWN32,
			    .protected_used = CW_UNKNOWN64};
	if (!cw_nvml_proc_name(p->pid, e->name, sizeof e->name)) /* as nvmlSystemGetProcessName */
		memcpy(e->name, p->name, sizeof p->name);
}

static int compute(word device, word count, word array, word d)
{
	(void)d;
	return cw_nvml_processes((nvmlDevice_t)device, (unsigned *)count, (void *)array, sizeof(struct entry), put);
}

/* Other kinds of processes: the count must be overwritten. */
static int none(word device, word count, word array, word d)
{
	(void)device, (void)array, (void)d;
	if (!count)
		return NVML_INVALID_ARGUMENT;
	*(unsigned *)count = 0;
	return NVML_SUCCESS;
}

/* Asked before pmon and dmon. */
static int monitored(word device, word out, word c, word d)
{
	(void)device, (void)c, (void)d;
	*(unsigned *)out = 1;
	return NVML_SUCCESS;
}

/*
 * Two PCI addresses: how near are they? 0 to 4 are PIX, PXB, PHB, NODE, SYS, which
 * nvmlGpuTopologyLevel_t counts in tens from 10 on; 4 + n is n NVLinks.
 */
static int nearness(word a, word b, word out, word d)
{
	enum { INTERNAL = 0, SINGLE = 10, STEP = 10, SYS = 4 };
	nvmlDevice_t x, y;
	unsigned level, links;
	int res = cwi_nvmlDeviceGetHandleByPciBusId_v2((const char *)a, &x);

	(void)d;
	if (!res)
		res = cwi_nvmlDeviceGetHandleByPciBusId_v2((const char *)b, &y);
	if (!res)
		res = cwi_nvmlDeviceGetTopologyCommonAncestor(x, y, &level);
	if (res)
		return res;
	links = cw_nvml_links_between(x, y);
	*(unsigned *)out = links ? SYS + links : level < SINGLE ? INTERNAL : (level - SINGLE) / STEP;
	return NVML_SUCCESS;
}

static int unknown(unsigned slot, word a, word b, word c, word d)
{
	if (cw_nvml_tracing())
		fprintf(stderr, "causeway: nvmlInternalGetExportTable: slot %u(%#lx, %#lx, %#lx, %#lx) is not known\n", slot, (long)a,
			(long)b, (long)c, (long)d);
	return NVML_NOT_SUPPORTED;
}

/* One function for each slot that is not known, so that it can say which it is. */
#define SLOT(n) \
	static int slot_##n(word a, word b, word c, word d) { return unknown(0x##n, a, b, c, d); }
/* clang-format off */
#define ROW(x, n) x(n##0) x(n##1) x(n##2) x(n##3) x(n##4) x(n##5) x(n##6) x(n##7) x(n##8) x(n##9) x(n##a) x(n##b) x(n##c) x(n##d) x(n##e) x(n##f)
#define ALL(x)                                                                                                                \
	ROW(x, 0) ROW(x, 1) ROW(x, 2) ROW(x, 3) ROW(x, 4) ROW(x, 5) ROW(x, 6) ROW(x, 7) ROW(x, 8) ROW(x, 9) ROW(x, a) ROW(x, b) \
	ROW(x, c) ROW(x, d) ROW(x, e) ROW(x, f) ROW(x, 10) ROW(x, 11) ROW(x, 12) ROW(x, 13)
ALL(SLOT)
#define NAME(n) [0x##n] = {.call = slot_##n},

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
static const union slot {
	word word;
	int (*call)(word, word, word, word);
} table[SLOTS] = {
	ALL(NAME)
	[NEARNESS] = {.call = nearness},
	[TEXT] = {.call = text},
	[MONITORED] = {.call = monitored},
	[HANDLE] = {.call = handle},
	[ENFORCED] = {.call = enforced},
	[COMPUTE] = {.call = compute},
	[GRAPHICS] = {.call = none},
	[MPS] = {.call = none},
	[0] = {.word = SLOTS * sizeof(word)},
	[1] = {.word = 0},
	[2] = {.word = 0},
};
#pragma GCC diagnostic pop
/* clang-format on */

nvmlReturn_t cwi_nvmlInternalGetExportTable(const void **exportTable, const void *exportTableId)
{
	static const unsigned char id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
					     0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
	const unsigned char *asked = exportTableId;

	if (!exportTable || !asked)
		return NVML_INVALID_ARGUMENT;
	if (!memcmp(asked, id, sizeof id)) {
		*exportTable = table;
		return NVML_SUCCESS;
	}
	if (cw_nvml_tracing()) {
		fprintf(stderr, "causeway: nvmlInternalGetExportTable: no table ");
		for (int i = 0; i < 16; i++)
			fprintf(stderr, "%02x", asked[i]);
		fputc('\n', stderr);
	}
	*exportTable = NULL;
	return NVML_INVALID_ARGUMENT;
}
