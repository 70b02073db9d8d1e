/*
 * Device identity through libcuda.so.1, for hosts that answer no questions of this library. A
 * process may ask NVML and then fork children that use CUDA, so asking must not start CUDA in the
 * process itself: unless it runs already, a short-lived child asks and hands the answer back
 * through a pipe.
 */
#include "device.h"
#include "snapshot.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(CW_NO_SYMVER)
/* the versions that glibc 2.17 has, in libdl */
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif

enum { CUDA_NOT_INITIALIZED = 3, CUDA_NO_DEVICE = 100, ANSWER_MS = 30000 };
enum { MAJOR = 75, MINOR = 76, PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 };

/* The CUDA entries that are used; every result is a CUresult. */
static struct {
	int (*init)(unsigned);
	int (*version)(int *);
	int (*count)(int *);
	int (*name)(char *, int, int);
	int (*uuid)(uint8_t[16], int);
	int (*attribute)(int *, int, int);
	int (*memory)(size_t *, int);
} cuda;

/* What a child hands back. */
struct told {
	int result;
	struct cw_snapshot head;
	struct cw_device devices[CW_SNAPSHOT_DEVICES];
};

static int symbol(void *lib, const char *name, void *slot)
{
	void *p = dlsym(lib, name);

	memcpy(slot, &p, sizeof p);
	return p != NULL;
}

static int load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return NVML_LIBRARY_NOT_FOUND;
	if (!symbol(lib, "cuInit", &cuda.init) || !symbol(lib, "cuDriverGetVersion", &cuda.version) ||
	    !symbol(lib, "cuDeviceGetCount", &cuda.count) || !symbol(lib, "cuDeviceGetName", &cuda.name) ||
	    !symbol(lib, "cuDeviceGetUuid_v2", &cuda.uuid) || !symbol(lib, "cuDeviceGetAttribute", &cuda.attribute) ||
	    !symbol(lib, "cuDeviceTotalMem_v2", &cuda.memory))
		return NVML_FUNCTION_NOT_FOUND;
	return NVML_SUCCESS;
}

static int describe(struct cw_device *d, int i)
{
	int major, minor, domain, bus, device;
	size_t total;

	memset(d, 0xff, sizeof *d); /* nothing is known */
	memset(d->name, 0, sizeof d->name);
	memset(d->vbios, 0, sizeof d->vbios);
	if (cuda.name(d->name, sizeof d->name, i) || cuda.uuid(d->uuid, i) || cuda.attribute(&major, MAJOR, i) ||
	    cuda.attribute(&minor, MINOR, i) || cuda.memory(&total, i))
		return NVML_UNKNOWN;
	d->major = (uint32_t)major;
	d->minor = (uint32_t)minor;
	d->memory_total = total;
	if (!cuda.attribute(&domain, PCI_DOMAIN, i) && !cuda.attribute(&bus, PCI_BUS, i) && !cuda.attribute(&device, PCI_DEVICE, i)) {
		d->pci_domain = (uint32_t)domain;
		d->pci_bus = (uint32_t)bus;
		d->pci_device = (uint32_t)device;
	}
	return NVML_SUCCESS;
}

/* Asks in this process. A host without a device is no error: there are none. */
static int ask(struct told *t)
{
	int cu = cuda.init(0), version = 0, count = 0, res = NVML_SUCCESS;

	if (cu && cu != CUDA_NO_DEVICE)
		return NVML_DRIVER_NOT_LOADED;
	if (cuda.version(&version) || (cu == 0 && cuda.count(&count)))
		return NVML_UNKNOWN;
	if (count > (int)CW_SNAPSHOT_DEVICES)
		count = CW_SNAPSHOT_DEVICES;
	t->head = (struct cw_snapshot){.magic = CW_SNAPSHOT_MAGIC,
				       .version = CW_SNAPSHOT_VERSION,
				       .device_count = (uint32_t)count,
				       .cuda_version = (uint32_t)version};
	for (int i = 0; i < count && !res; i++)
		res = describe(&t->devices[i], i);
	return res;
}

static int read_all(int fd, void *to, size_t len)
{
	for (size_t got = 0; got < len;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int ready = poll(&p, 1, ANSWER_MS);
		ssize_t n;

		if (ready < 0 && errno == EINTR)
			continue;
		if (ready <= 0)
			return 0;
		n = read(fd, (char *)to + got, len - got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		got += (size_t)n;
	}
	return 1;
}

/* Asks in a child. */
static int ask_in_child(struct told *s)
{
	int fds[2], ok;
	pid_t pid;

	if (pipe(fds))
		return NVML_UNKNOWN;
	pid = fork();
	if (pid == 0) {
		const char *p = (const char *)s;
		size_t left = sizeof *s;

		close(fds[0]);
		s->result = ask(s);
		while (left) {
			ssize_t n = write(fds[1], p, left);

			if (n < 0 && errno != EINTR)
				break;
			p += n > 0 ? n : 0;
			left -= n > 0 ? (size_t)n : 0;
		}
		_exit(left != 0);
	}
	close(fds[1]);
	ok = pid > 0 && read_all(fds[0], s, sizeof *s);
	close(fds[0]);
	if (pid > 0) {
		if (!ok)
			kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	return ok ? s->result : NVML_UNKNOWN;
}

int cw_nvml_identity(void **answer, size_t *len)
{
	struct told *t = calloc(1, sizeof *t);
	int count = 0, res = t ? load() : NVML_MEMORY;
	char *out = NULL;

	if (!res)
		res = cuda.count(&count) == CUDA_NOT_INITIALIZED ? ask_in_child(t) : ask(t);
	if (!res) {
		*len = sizeof t->head + t->head.device_count * sizeof t->devices[0];
		out = malloc(*len);
		if (!out)
			res = NVML_MEMORY;
	}
	if (!res) {
		t->head.size = (uint32_t)*len;
		memcpy(out, &t->head, sizeof t->head);
		memcpy(out + sizeof t->head, t->devices, *len - sizeof t->head);
		*answer = out;
	}
	free(t);
	return res;
}
