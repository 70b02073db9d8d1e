/*
 * Prints what the RDMA device of scripts/rdma.sh's guest registers: mapped memory files, pages on
 * demand, dma-bufs and mappings of them. libibverbs asks a provider for dma-bufs, and soft RoCE's
 * has none; so the kernel is asked as a provider would, by the command that libibverbs exports to
 * them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 1 << 20, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };

typedef int (*reg_dmabuf)(struct ibv_pd *, uint64_t offset, size_t length, uint64_t iova, int fd, int access, void *verbs_mr);

static void say(const char *what, int error) { printf("%-48s %s\n", what, error ? strerror(error) : "yes"); }

static void registered(const char *what, struct ibv_mr *mr)
{
	say(what, mr ? 0 : errno);
	if (mr)
		ibv_dereg_mr(mr);
}

static int dmabuf_of(int memory)
{
	struct udmabuf_create create = {.memfd = (unsigned)memory, .flags = UDMABUF_FLAGS_CLOEXEC, .size = SIZE};
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int fd = device < 0 ? -1 : ioctl(device, UDMABUF_CREATE, &create);
	say("a dma-buf of a memory file", fd < 0 ? errno : 0);
	return fd;
}

static void by_command(struct ibv_pd *pd, int fd)
{
	char mr[512] = {0}, version[32];
	reg_dmabuf command = NULL;
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	for (int i = 20; i < 100 && library && !command; i++) {
		snprintf(version, sizeof version, "IBVERBS_PRIVATE_%d", i);
		command = (reg_dmabuf)dlvsym(library, "ibv_cmd_reg_dmabuf_mr", version);
	}
	if (!command) {
		say("the kernel registers a dma-buf: libibverbs", ENOSYS);
		return;
	}
	int error = command(pd, 0, SIZE, 0, fd, ACCESS, mr);
	say("the kernel registers a dma-buf", error < 0 ? errno : error);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	int memory = memfd_create("guest", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	if (!pd || memory < 0 || ftruncate(memory, SIZE) || fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK)) {
		perror("no RDMA device, or no memory");
		return 1;
	}
	void *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	registered("a mapped memory file is registered", ibv_reg_mr(pd, mapped, SIZE, ACCESS));
	registered("its pages on demand", ibv_reg_mr(pd, mapped, SIZE, ACCESS | IBV_ACCESS_ON_DEMAND));
	int fd = dmabuf_of(memory);
	if (fd < 0)
		return 1;
	registered("libibverbs's provider registers a dma-buf", ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, fd, ACCESS));
	by_command(pd, fd);
	void *window = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (window == MAP_FAILED)
		say("a mapping of a dma-buf", errno);
	else
		registered("a mapping of a dma-buf is registered", ibv_reg_mr(pd, window, SIZE, ACCESS));
	return 0;
}
