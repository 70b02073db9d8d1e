/* topo: how the devices reach each other and which CPUs are near, as a matrix. */
#include "commands.h"
#include "status.h"

#include <string.h>

enum { LINKS = 18, SWITCH = 2, WORD = 64, WORDS = 16 };

/* Active NVLinks of one device to the switches or to the other. */
static unsigned links_between(nvmlDevice_t a, nvmlDevice_t b)
{
	struct nvmlPciInfo other, end;
	unsigned n = 0;

	if (nvml.nvmlDeviceGetPciInfo_v3(b, &other))
		return 0;
	for (unsigned i = 0; i < LINKS; i++) {
		unsigned active = 0, kind = 0;

		if (nvml.nvmlDeviceGetNvLinkState(a, i, &active) || !active)
			continue;
		if (!nvml.nvmlDeviceGetNvLinkRemoteDeviceType(a, i, &kind) && kind == SWITCH)
			n++;
		else if (!nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(a, i, &end))
			n += end.domain == other.domain && end.bus == other.bus && end.device == other.device;
	}
	return n;
}

static void path(nvmlDevice_t a, nvmlDevice_t b, int links_too, char out[16])
{
	static const char *const names[] = {"PIX", "PIX", "PXB", "PHB", "NODE", "SYS"};
	enum { STEP = 10 };
	unsigned level, links = links_too ? links_between(a, b) : 0;

	if (links)
		snprintf(out, 16, "NV%u", links);
	else if (nvml.nvmlDeviceGetTopologyCommonAncestor(a, b, &level) || level / STEP >= sizeof names / sizeof *names)
		strcpy(out, "N/A");
	else
		strcpy(out, names[level / STEP]);
}

static void p2p(nvmlDevice_t a, nvmlDevice_t b, unsigned kind, char out[16])
{
	static const char *const names[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS"};
	unsigned status;

	if (nvml.nvmlDeviceGetP2PStatus(a, b, kind, &status) || status >= sizeof names / sizeof *names)
		strcpy(out, "U");
	else
		strcpy(out, names[status]);
}

/* Bits as ranges: "0-3,8". */
static void ranges(const unsigned long *bits, FILE *out)
{
	int first = 1;

	for (unsigned i = 0; i < WORDS * WORD; i++) {
		unsigned end = i;

		if (!(bits[i / WORD] >> i % WORD & 1))
			continue;
		while (end + 1 < WORDS * WORD && bits[(end + 1) / WORD] >> (end + 1) % WORD & 1)
			end++;
		fprintf(out, end > i ? "%s%u-%u" : "%s%u", first ? "" : ",", i, end);
		first = 0;
		i = end;
	}
	if (first)
		fputs("N/A", out);
}

static void affinity(nvmlDevice_t device, FILE *out)
{
	enum { NODE_SCOPE = 0 };
	unsigned long cpus[WORDS] = {0}, nodes[WORDS] = {0};
	unsigned node;

	fputc('\t', out);
	if (nvml.nvmlDeviceGetCpuAffinity(device, WORDS, cpus))
		memset(cpus, 0, sizeof cpus);
	ranges(cpus, out);
	fputc('\t', out);
	if (nvml.nvmlDeviceGetMemoryAffinity(device, WORDS, nodes, NODE_SCOPE))
		memset(nodes, 0, sizeof nodes);
	ranges(nodes, out);
	if (nvml.nvmlDeviceGetNumaNodeId(device, &node))
		fputs("\t\tN/A", out);
	else
		fprintf(out, "\t\t%u", node);
}

static void legend(int links_too, FILE *out)
{
	fputs("\nLegend:\n\n"
	      "  X    = Self\n"
	      "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
	      "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
	      "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
	      "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
	      "  PIX  = Connection traversing at most a single PCIe bridge\n",
	      out);
	if (links_too)
		fputs("  NV#  = Connection traversing a bonded set of # NVLinks\n", out);
}

/* Finds the devices and prints the line of their names. */
static int head(struct smi_gpus *gpus, const char *before, const char *after)
{
	int status = smi_choose(NULL, gpus);

	if (status)
		return status;
	printf("%s\t\033[4m", before);
	for (unsigned i = 0; i < gpus->count; i++)
		printf("GPU%u\t", i);
	printf("%s\033[0m\n", after);
	return STATUS_OK;
}

static int matrix(int links_too)
{
	struct smi_gpus gpus;
	int status = head(&gpus, "", "CPU Affinity\tNUMA Affinity\tGPU NUMA ID");
	char text[16];

	if (status)
		return status;
	for (unsigned i = 0; i < gpus.count; i++) {
		printf("GPU%u", i);
		for (unsigned k = 0; k < gpus.count; k++) {
			if (i != k)
				path(gpus.gpu[i].device, gpus.gpu[k].device, links_too, text);
			printf("\t%s", i == k ? " X " : text);
		}
		affinity(gpus.gpu[i].device, stdout);
		putchar('\n');
	}
	legend(links_too, stdout);
	return STATUS_OK;
}

static int peers(const char *which)
{
	static const char kinds[] = "rwnap"; /* in the order of nvmlGpuP2PCapsIndex_t */
	const char *at = which && strlen(which) == 1 ? strchr(kinds, *which) : NULL;
	struct smi_gpus gpus;
	char text[16];
	int status;

	if (!at || !*which) {
		printf("Option \"-p2p\" wants one of r, w, n, a and p.\n");
		return STATUS_INVALID;
	}
	status = head(&gpus, " ", "");
	if (status)
		return status;
	for (unsigned i = 0; i < gpus.count; i++) {
		printf(" GPU%u\t", i);
		for (unsigned k = 0; k < gpus.count; k++) {
			if (i != k)
				p2p(gpus.gpu[i].device, gpus.gpu[k].device, (unsigned)(at - kinds), text);
			printf("%s\t", i == k ? "X" : text);
		}
		putchar('\n');
	}
	fputs("\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  GNS  = GPU not supported\n"
	      "  TNS  = Topology not supported\n  NS   = Not supported\n  U    = Unknown\n",
	      stdout);
	return STATUS_OK;
}

static int usage(int status)
{
	fputs("\n    topo -- Display topological information about the system.\n\n    Usage: nvidia-smi topo [options]\n\n    Options "
	      "include:\n"
	      "    [-m | --matrix]:      How the GPUs reach each other, and which CPUs are near.\n"
	      "    [-mp | --matrix_pci]: The same by PCIe alone.\n"
	      "    [-p2p | --p2pstatus]: Peer access: r read, w write, n NVLink, a atomics, p PCIe.\n"
	      "    [-h | --help]:        This text.\n\n",
	      stdout);
	return status;
}

int smi_topo(int argc, char **argv)
{
	const char *option = argc > 1 ? argv[1] : "-h";

	if (!strcmp(option, "-h") || !strcmp(option, "--help"))
		return usage(STATUS_OK);
	if (argc == 2 && (!strcmp(option, "-m") || !strcmp(option, "--matrix")))
		return matrix(1);
	if (argc == 2 && (!strcmp(option, "-mp") || !strcmp(option, "--matrix_pci")))
		return matrix(0);
	if (argc <= 3 && (!strcmp(option, "-p2p") || !strcmp(option, "--p2pstatus")))
		return peers(argv[2]);
	printf("Option \"%s\" is not recognized.\n", argc > 2 ? argv[2] : option);
	return STATUS_INVALID;
}
