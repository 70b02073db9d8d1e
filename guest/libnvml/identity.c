/*
 * Device identity through libcuda.so.1. A process may ask NVML and then fork children that use CUDA, so asking must not start CUDA
 * in the process itself: unless it runs already, a short-lived child asks and hands the answer back through a pipe.
 */
#include "nvml.h"
#include "snapshot.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
/* the versions that glibc 2.17 has, in libdl */
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif

enum { CUDA_NOT_INITIALIZED = 3, CUDA_NO_DEVICE = 100, ANSWER_MS = 30000 };
enum { MAJOR = 75, MINOR = 76, PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50, PCI_ID = 139, PCI_SUBSYSTEM = 140 };

/* The CUDA entries that are used; every result is a CUresult. */
static struct {
	int (*init)(unsigned);
	int (*version)(int *);
	int (*count)(int *);
	int (*name)(char *, int, int);
	int (*uuid)(uint8_t[16], int);
	int (*attribute)(int *, int, int);
} cuda;

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
	    !symbol(lib, "cuDeviceGetUuid_v2", &cuda.uuid) || !symbol(lib, "cuDeviceGetAttribute", &cuda.attribute))
		return NVML_FUNCTION_NOT_FOUND;
	return NVML_SUCCESS;
}

static int describe(struct cw_nvml_device *d, int i)
{
	if (cuda.name(d->name, sizeof d->name, i) || cuda.uuid(d->uuid, i) || cuda.attribute(&d->major, MAJOR, i) ||
	    cuda.attribute(&d->minor, MINOR, i))
		return NVML_UNKNOWN;
	d->pci_known = !cuda.attribute(&d->domain, PCI_DOMAIN, i) && !cuda.attribute(&d->bus, PCI_BUS, i) &&
		       !cuda.attribute(&d->device, PCI_DEVICE, i) && !cuda.attribute(&d->pci_id, PCI_ID, i) &&
		       !cuda.attribute(&d->subsystem, PCI_SUBSYSTEM, i);
	return NVML_SUCCESS;
}

/* Asks in this process. A host without a device is no error: there are none. */
static int ask(struct cw_nvml_snapshot *s)
{
	int cu = cuda.init(0), res = NVML_SUCCESS;

	if (cu && cu != CUDA_NO_DEVICE)
		return NVML_DRIVER_NOT_LOADED;
	if (cuda.version(&s->cuda_version))
		return NVML_UNKNOWN;
	if (cu == 0 && cuda.count(&s->count))
		return NVML_UNKNOWN;
	if (s->count > CW_NVML_DEVICES_MAX)
		s->count = CW_NVML_DEVICES_MAX;
	for (int i = 0; i < s->count && !res; i++)
		res = describe(&s->devices[i], i);
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
static int ask_in_child(struct cw_nvml_snapshot *s)
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

const struct cw_nvml_snapshot *cw_nvml_snapshot(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct cw_nvml_snapshot s;
	static int taken;
	int count = 0;

	pthread_mutex_lock(&lock);
	if (!taken) {
		taken = 1;
		s.result = load();
		if (!s.result)
			s.result = cuda.count(&count) == CUDA_NOT_INITIALIZED ? ask_in_child(&s) : ask(&s);
	}
	pthread_mutex_unlock(&lock);
	return &s;
}
