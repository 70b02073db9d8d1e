/* What carriers have in common: shared memory, the hello message, its answer. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "session/internal.h"
#include "session/printable.h"

void cw_why(struct cw_session *s, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(s->why, sizeof s->why, fmt, ap);
	va_end(ap);
}

/* CUDA_ variables that no driver reads at its start, that are the host's to set, or that this
 * library obeys itself. */
static int harmless(const char *var)
{
	static const char *const names[] = {"CUDA_HOME",
					    "CUDA_PATH",
					    "CUDA_ROOT",
					    "CUDA_DIR",
					    "CUDA_VERSION",
					    "CUDA_TOOLKIT_PATH",
					    "CUDA_TOOLKIT_ROOT_DIR",
					    "CUDA_BIN_PATH",
					    "CUDA_INC_PATH",
					    "CUDA_LIB_PATH",
					    "CUDA_LAUNCH_BLOCKING",
					    "CUDA_PKG_VERSION",
					    "CUDA_ARCH_LIST",
					    "CUDA_CACHE_PATH",
					    "CUDA_CACHE_MAXSIZE"};
	size_t len = strcspn(var, "=");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strlen(names[i]) == len && !strncmp(var, names[i], len))
			return 1;
	return 0;
}

/* What the environment asks of the worker's driver before it starts (CW_ENV_...). */
static uint32_t env_flags(void)
{
	extern char **environ;
	uint32_t flags = 0;
	for (char **e = environ; e && *e; e++) {
		if (strncmp(*e, "CUDA_", 5) || harmless(*e))
			continue;
		flags |= strcmp(*e, "CUDA_VISIBLE_DEVICES=0") ? CW_ENV_OWN_DRIVER : CW_ENV_FIRST_DEVICE;
	}
	return flags;
}

void cw_hello_fill(struct cw_hello *h, uint32_t type, uint32_t region, const void *va, size_t size)
{
	memset(h, 0, sizeof *h);
	h->magic = CW_HELLO_MAGIC;
	h->version = CW_PROTOCOL_VERSION;
	h->type = type;
	h->region = region;
	h->va = (uintptr_t)va;
	h->size = size;
	h->pid = (uint32_t)getpid();
	if (type == CW_MSG_HELLO || type == CW_MSG_DIRECT)
		h->flags = env_flags();
}

/* Kernels before 3.17 have no memfd_create: a file in /dev/shm without a name serves. */
static int shm_unnamed(void)
{
	char name[64];
	static _Atomic uint32_t counter;
	snprintf(name, sizeof name, "/dev/shm/causeway-%d-%u", (int)getpid(), atomic_fetch_add(&counter, 1));
	int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	unlink(name);
	return fd;
}

/*
 * The name tells this library's files from those of another process that uses Causeway too, whose
 * memory reached this one by a socket. A child goes on with its parent's, as it has the parent's
 * memory.
 */
const char *cw_memfd_name(char name[CW_MEMFD_NAME])
{
	static _Atomic int first;
	int process = 0;
	if (atomic_compare_exchange_strong(&first, &process, (int)getpid()))
		process = atomic_load(&first);
	snprintf(name, CW_MEMFD_NAME, "causeway-%08x", (unsigned)process);
	return name;
}

int cw_memfd(size_t size)
{
	char name[CW_MEMFD_NAME];
	enum { CLOEXEC = 1, ALLOW_SEALING = 2, ADD_SEALS = 1033, SEALS = 1 | 2 | 4 /* seal, shrink, grow */ };
	int fd = (int)syscall(SYS_memfd_create, cw_memfd_name(name), CLOEXEC | ALLOW_SEALING);
	if (fd < 0)
		fd = errno == ENOSYS ? shm_unnamed() : -errno;
	if (fd < 0)
		return fd;
	if (ftruncate(fd, (off_t)size) != 0) {
		int err = errno;
		close(fd);
		return -err;
	}
	/* The host maps this file: a sealed size means that it need not fear SIGBUS. Fails
	 * harmlessly on /dev/shm. */
	syscall(SYS_fcntl, fd, ADD_SEALS, SEALS);
	return fd;
}

void *cw_map_shared(int fd, size_t size, void *hint)
{
	int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
	void *p = mmap(hint, size, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_DONTFORK);
	return p;
}

int cw_region0_init(struct cw_session *s, void *base)
{
	_Static_assert(CW_RING_OFFSET + CW_RING_SIZE <= CW_REGION0_SIZE, "ring lies in region 0");
	_Static_assert(CW_SLOTS_OFFSET + (uint64_t)CW_SLOT_COUNT * CW_SLOT_SIZE <= CW_RING_OFFSET, "slots lie before the ring");
	if (!base) {
		cw_why(s, "no memory for the session ring");
		return -ENOMEM;
	}
	s->base = base;
	s->ctl = base;
	s->ctl->magic = CW_HELLO_MAGIC;
	s->ctl->version = CW_PROTOCOL_VERSION;
	s->ctl->ring_size = CW_RING_SIZE;
	return 0;
}

int cw_welcome_check(struct cw_session *s, const void *msg, size_t n)
{
	struct cw_hello h;
	if (n < sizeof h) {
		cw_why(s, "the host answered with %zu bytes instead of a welcome", n);
		return -EPROTO;
	}
	memcpy(&h, msg, sizeof h);
	if (h.magic != CW_HELLO_MAGIC || h.type != CW_MSG_WELCOME) {
		cw_why(s, "the host does not speak Causeway's protocol");
		return -EPROTO;
	}
	if (h.version != CW_PROTOCOL_VERSION) {
		cw_why(s, "the host speaks protocol version %u, this library %u: use the libcuda.so.1 that the host provides", h.version,
		       CW_PROTOCOL_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (h.status != 0) {
		char text[sizeof s->why];
		size_t len = n - sizeof h < h.text_len ? n - sizeof h : h.text_len;
		len = len < sizeof text ? len : sizeof text - 1;
		memcpy(text, (const char *)msg + sizeof h, len);
		cw_printable(text, len);
		if (len > 0)
			cw_why(s, "the host refused the session: %s", text);
		else
			cw_why(s, "the host refused the session: %s", strerror((int)(h.status & 0x7fffffff)));
		return h.status <= 4095 ? -(int)h.status : -EPROTO;
	}
	return 0;
}
