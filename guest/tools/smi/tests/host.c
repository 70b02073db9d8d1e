/*
 * host KIND PROGRAM [ARGUMENTS]: runs a program with a host that answers libnvidia-ml, for tests.
 * KIND: "full", two devices of which everything is known, with processes and NVLinks; "bare", one
 * of which little is; "odd", that with a process of an odd name; "none", no device; "gone", a host
 * that does not answer. The processes have numbers that Linux does not give.
 */
#include "fake_host.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct answer {
	struct cw_snapshot head;
	struct cw_device devices[2];
	struct cw_process processes[3];
	struct cw_pair pairs[4];
	struct cw_link links[36];
};

enum { ODD_BYTES = 300000 }; /* sizes are no whole MiB */

static void name(struct cw_device *d, unsigned i)
{
	memset(d, 0xff, sizeof *d); /* unknown */
	memset(d->vbios, 0, sizeof d->vbios);
	snprintf(d->name, sizeof d->name, "Fake H%u00", i + 1);
	for (unsigned k = 0; k < sizeof d->uuid; k++)
		d->uuid[k] = (uint8_t)(16 * i + k);
	d->minor_number = i;
	d->major = 9;
	d->minor = 0;
	d->memory_total = 16ull << 30;
	d->memory_reserved = 0;
	d->memory_used = (300ull << 20) + ODD_BYTES;
	d->memory_free = d->memory_total - d->memory_used;
}

static void fill(uint32_t *to, unsigned count, uint32_t first, uint32_t step)
{
	for (unsigned i = 0; i < count; i++)
		to[i] = first + i * step;
}

static void sensors(struct cw_device *d, unsigned i)
{
	d->energy = 123456789;
	d->use_gpu = 37 + i, d->use_memory = 12, d->use_encoder = 1, d->use_decoder = 2, d->use_jpg = 3, d->use_ofa = 4;
	fill(d->clock, 4, 1980, 5);
	fill(d->clock_max, 4, 2100, 7);
	fill(d->clock_app, 4, 1800, 9);
	fill(d->clock_app_default, 4, 1830, 11);
	fill(d->threshold, 4, 87, 3);
	fill(d->threshold_margin, 4, (uint32_t)-8, 3);
	d->temperature = 41, d->temperature_memory = 52, d->margin = 46;
	d->power = 123456, d->power_now = 124321, d->power_module = 234567, d->power_memory = 45678, d->power_limit = 650000;
	d->power_default = 700000, d->power_min = 200000, d->power_max = 700000, d->power_managed = 1;
	d->pstate = 0, d->fan = 30 + i, d->fans = 1;
	d->clock_reasons = i ? 0x8 : 0x4, d->clock_reasons_known = 0x1ff;
}

static void board(struct cw_device *d, unsigned i)
{
	strcpy(d->vbios, "96.00.A5.00.01");
	d->pci_domain = 0, d->pci_bus = 0x1a + i, d->pci_device = 0, d->pci_id = 0x233510de, d->pci_subsystem = 0x18be10de;
	d->memory_reserved = (600ull << 20) + ODD_BYTES, d->memory_free -= d->memory_reserved;
	d->bar1_total = 128ull << 30, d->bar1_used = (2ull << 20) + ODD_BYTES;
	d->ecc_corrected = 1, d->ecc_uncorrected = 2, d->ecc_corrected_total = 3, d->ecc_uncorrected_total = 4;
	d->ecc_current = d->ecc_pending = d->ecc_default = 1;
	d->brand = 14, d->architecture = 9, d->cores = 16896, d->memory_bus_width = 6144;
	d->pcie_gen = 4, d->pcie_width = 8, d->pcie_max_gen = 5, d->pcie_max_width = 16, d->pcie_max_speed = 32000;
	d->pcie_tx = 1234, d->pcie_rx = 567890, d->pcie_replays = 7;
	d->mig_current = d->mig_pending = 0, d->max_mig = 7;
	d->compute_mode = 0, d->persistence = 1, d->display = 0, d->accounting = 0, d->virtualization = 0;
	fill(d->remapped, 4, 1, 1);
	d->remapped[2] = 0, d->remapped[3] = 0;
	d->multi_gpu_board = 0, d->board = 0x1a00;
}

static void peers(struct answer *a)
{
	for (unsigned i = 0; i < 4; i++)
		a->pairs[i] = (struct cw_pair){.a = i / 2, .b = i % 2, .topology = 40};
	for (unsigned i = 0; i < 36; i++)
		a->links[i] = (struct cw_link){.device = i / 18,
					       .link = i % 18,
					       .state = 1,
					       .link_version = 4,
					       .capabilities = 0x3f,
					       .remote_type = 2,
					       .remote_bus = 7,
					       .remote_id = 0x22a310de,
					       .speed = 26562};
	for (unsigned i = 0; i < 3; i++)
		a->processes[i] =
			(struct cw_process){.device = i == 2, .pid = 4194303 + i, .used = ((uint64_t)(100 * (i + 1)) << 20) + ODD_BYTES};
	strcpy(a->processes[0].name, "/sbin/init");
	strcpy(a->processes[1].name, "/opt/a folder/with/a/rather/long/path/to/a/program/python3");
	strcpy(a->processes[2].name, "short & <sweet>");
}

/* What else a device can say: the second is unlike the first where it can be. */
static void other(struct cw_device *d)
{
	strcpy(d->name, "Fake GPU with a long product name 80GB");
	d->persistence = 0, d->display = 1, d->mig_current = 0, d->mig_pending = 1, d->ecc_current = d->ecc_pending = 0;
	d->ecc_corrected = d->ecc_uncorrected = d->ecc_corrected_total = d->ecc_uncorrected_total = ~0ull, d->compute_mode = 3,
	d->pstate = 8, d->fan = 100, d->temperature = 9;
	d->power = 9876, d->power_limit = 75000, d->use_gpu = 100, d->accounting = 1, d->virtualization = 1, d->power_managed = 0;
	d->remapped[2] = 1, d->remapped[3] = 1, d->multi_gpu_board = 1, d->brand = 2, d->architecture = 7, d->minor = 6, d->major = 8;
	d->use_memory = 0, d->memory_used = (d->memory_total = 80ull << 30) - d->memory_reserved - d->memory_free;
}

static struct answer *make(const char *kind)
{
	struct answer *a = calloc(1, sizeof *a);
	int odd = !strcmp(kind, "odd");
	unsigned count = !strcmp(kind, "full") ? 2 : odd || !strcmp(kind, "bare") ? 1 : 0;

	CHECK(a);
	a->head = (struct cw_snapshot){
		.magic = CW_SNAPSHOT_MAGIC, .version = CW_SNAPSHOT_VERSION, .device_count = count, .cuda_version = 13000};
	strcpy(a->head.driver_version, "580.159.03");
	strcpy(a->head.nvml_version, "13.580.159.03");
	for (unsigned i = 0; i < count; i++)
		name(&a->devices[i], i);
	a->head.size = sizeof a->head + count * sizeof a->devices[0];
	if (count == 2) {
		for (unsigned i = 0; i < count; i++)
			board(&a->devices[i], i), sensors(&a->devices[i], i);
		other(&a->devices[1]);
		peers(a);
		a->head.process_count = 3, a->head.pair_count = 4, a->head.link_count = 36;
		a->head.size = sizeof *a;
	}
	if (odd) { /* processes follow the devices that there are */
		struct cw_process *p = (struct cw_process *)&a->devices[1];

		*p = (struct cw_process){.pid = 4194303, .used = ~0ull, .name = "\033[31m\n/b\303\244r/\377\302\205\340\200\200x"};
		a->head.process_count = 1;
		a->head.size += sizeof *p;
	}
	return a;
}

int main(int argc, char **argv)
{
	struct answer *a;
	int status;
	pid_t pid;

	CHECK(argc > 2);
	a = make(argv[1]);
	fake_start();
	fake_serve(a, strcmp(argv[1], "gone") ? a->head.size : 0);
	free(a);
	if (!strcmp(argv[1], "gone"))
		setenv("CAUSEWAY", "unix:/nonexistent/session", 1);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		execvp(argv[2], argv + 2);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
