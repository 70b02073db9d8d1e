#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "memory/uffd.h"
#include "session/compat.h"
#include "session/lock.h"

#ifndef SYS_userfaultfd
#define SYS_userfaultfd 323
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00) /* Linux 6.1 */
#endif

static struct {
	struct cw_lock lock;
	int asked, fd; /* -errno */
	int tracks, remaps;
	_Atomic uint64_t moves; /* where the library moves something */
	_Atomic int strange;
} uffd;

/* The system call asks for a privilege unless vm.unprivileged_userfaultfd is set; the device file
 * goes by its permissions. */
static int new_descriptor(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), err = errno, dev;
	if (fd >= 0)
		return fd;
	dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (dev < 0)
		return -err;
	fd = ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		fd = -errno;
	close(dev);
	return fd;
}

static int agree(int fd, uint64_t features)
{
	struct uffdio_api api = {.api = UFFD_API, .features = features};
	return ioctl(fd, UFFDIO_API, &api) == 0 ? 0 : -errno;
}

/* Duplicates (duplicates.c) are why anything would be moved; CAUSEWAY_MANAGED_DUPLICATES=0: there
 * are none. */
static int wants_moves(void)
{
	const char *e = getenv("CAUSEWAY_MANAGED_DUPLICATES");
	return !e || strcmp(e, "0") != 0;
}

int cw_uffd_open(void)
{
	cw_lock_acquire(&uffd.lock);
	if (!uffd.asked) {
		uffd.asked = 1;
		uffd.fd = new_descriptor();
		int err = uffd.fd;
		if (err >= 0) {
			uint64_t writes = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
			uffd.remaps = wants_moves() && agree(uffd.fd, writes | UFFD_FEATURE_EVENT_REMAP) == 0;
			uffd.tracks = uffd.remaps || agree(uffd.fd, writes) == 0;
			err = uffd.tracks ? 0 : agree(uffd.fd, UFFD_FEATURE_THREAD_ID);
		}
		if (err < 0 && uffd.fd >= 0) {
			close(uffd.fd);
			uffd.fd = err;
		}
	}
	int fd = uffd.fd;
	cw_lock_release(&uffd.lock);
	return fd < 0 ? fd : 0;
}

int cw_uffd_tracks(void) { return uffd.tracks; }
int cw_uffd_remaps(void) { return uffd.remaps; }
void cw_uffd_moves(uint64_t to) { atomic_store(&uffd.moves, to); }

/* Somebody has moved watched memory, and waits for this to be read: the program, unless the library
 * has gone on since. */
static void moved(const struct uffd_msg *m)
{
	if (m->event == UFFD_EVENT_REMAP && m->arg.remap.to != atomic_load(&uffd.moves))
		atomic_store(&uffd.strange, 1);
}

int cw_uffd_strange(void) { return atomic_load(&uffd.strange); }

void cw_uffd_unwatch(uint64_t at, uint64_t size)
{
	struct uffdio_range r = {at, size};
	ioctl(uffd.fd, UFFDIO_UNREGISTER, &r);
}

/* Whether the number is still of such a file: it alone refuses nothing to be woken with EINVAL. */
static int ours(void)
{
	struct uffdio_range nothing = {0};
	return uffd.fd >= 0 && ioctl(uffd.fd, UFFDIO_WAKE, &nothing) != 0 && errno == EINVAL;
}

/* The program may have closed it, and opened its own: that is not read. */
static ssize_t take(struct uffd_msg *m, size_t size)
{
	if (ours())
		return read(uffd.fd, m, size);
	errno = EBADF;
	return -1;
}

void cw_uffd_drain(void)
{
	struct uffd_msg m;
	while (take(&m, sizeof m) == (ssize_t)sizeof m) {
		moved(&m);
		if (m.event == UFFD_EVENT_PAGEFAULT)
			cw_uffd_wake(m.arg.pagefault.address & ~(uint64_t)(CW_PAGE - 1), CW_PAGE);
	}
}

int cw_uffd_number(void) { return uffd.fd; }

void cw_uffd_end(void)
{
	cw_lock_acquire(&uffd.lock);
	uffd.fd = -EBADF;
	cw_lock_release(&uffd.lock);
}

/* Whether the kernel is to be asked again: something is being moved (EAGAIN), which waits until
 * that is read. */
static int again(int err)
{
	if (err == EAGAIN && uffd.remaps)
		cw_uffd_drain();
	return err == EAGAIN || err == EINTR;
}

int cw_uffd_watch(uint64_t at, uint64_t size, int missing)
{
	struct uffdio_register r = {.range = {at, size}};
	r.mode = (missing ? UFFDIO_REGISTER_MODE_MISSING : 0) | (uffd.tracks ? UFFDIO_REGISTER_MODE_WP : 0);
	return r.mode == 0 || ioctl(uffd.fd, UFFDIO_REGISTER, &r) == 0 ? 0 : -errno;
}

/* A program that has parts of its memory otherwise (madvise, mlock, mprotect) has mappings that
 * meet there. The kernel takes no range that is of two (ENOENT); writes are protected over several
 * from Linux 6.4 on. Half of it is tried then. */
static uint64_t less(uint64_t size) { return size / 2 / CW_PAGE * CW_PAGE; }

int cw_uffd_fill(uint64_t at, const void *from, uint64_t size, int protect)
{
	uint64_t done = 0, most = size;
	while (done < size) {
		struct uffdio_copy c = {.dst = at + done, .src = (uintptr_t)from + done, .len = most < size - done ? most : size - done};
		c.mode = protect && uffd.tracks ? UFFDIO_COPY_MODE_WP : 0;
		int err = ioctl(uffd.fd, UFFDIO_COPY, &c) == 0 ? 0 : errno;
		if (err == ENOENT && c.len > CW_PAGE) {
			most = less(c.len);
			continue;
		}
		most = size;
		if (c.copy > 0)
			done += (uint64_t)c.copy;
		else if (err == EEXIST)
			done += CW_PAGE;
		else if (!again(err))
			return -err;
	}
	return 0;
}

/* 0 or errno. */
static int zero(uint64_t at, uint64_t size)
{
	int err;
	do {
		struct uffdio_zeropage z = {.range = {at, size}};
		err = ioctl(uffd.fd, UFFDIO_ZEROPAGE, &z) == 0 ? 0 : errno;
	} while (err != 0 && again(err));
	return err;
}

int cw_uffd_zero(uint64_t at, uint64_t size)
{
	int err = zero(at, size);
	return err == EEXIST ? 1 : -err;
}

int cw_uffd_is_one(uint64_t at, uint64_t size) { return zero(at, size) != ENOENT; }

int cw_uffd_protect(uint64_t at, uint64_t size, int on)
{
	uint64_t done = 0, most = size;
	while (uffd.tracks && done < size) {
		struct uffdio_writeprotect w = {.range = {at + done, most < size - done ? most : size - done},
						.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
		int err = ioctl(uffd.fd, UFFDIO_WRITEPROTECT, &w) == 0 ? 0 : errno;
		if (err == ENOENT && w.range.len > CW_PAGE) {
			most = less(w.range.len);
			continue;
		}
		most = size;
		if (err == 0)
			done += w.range.len;
		else if (!again(err))
			return -err;
	}
	return 0;
}

void cw_uffd_wake(uint64_t at, uint64_t size)
{
	struct uffdio_range r = {at, size};
	ioctl(uffd.fd, UFFDIO_WAKE, &r);
}

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int cw_uffd_read(struct cw_fault *out, int most, int timeout_ms, int64_t look_us)
{
	enum { AT_ONCE = 16, AGAIN_MS = 1700 };
	struct uffd_msg msg[AT_ONCE];
	struct pollfd p = {.fd = uffd.fd, .events = POLLIN};
	size_t room = sizeof msg[0] * (size_t)(most < AT_ONCE ? most : AT_ONCE);
	int count = 0;
	ssize_t got = -1;
	errno = EAGAIN;
	for (int64_t end = look_us ? now_us() + look_us : 0; end && got < 0 && errno == EAGAIN && now_us() < end;)
		got = take(msg, room);
	if (got < 0 && errno == EAGAIN) {
		/* A poll whose number has become another file's sees nothing of ours any more. */
		int n = ours() ? poll(&p, 1, timeout_ms < 0 ? AGAIN_MS : timeout_ms) : 1;
		if (n <= 0)
			return n == 0 || errno == EINTR ? 0 : -errno;
		got = take(msg, room);
	}
	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (size_t i = 0; i < (size_t)got / sizeof msg[0]; i++) {
		moved(&msg[i]);
		if (msg[i].event != UFFD_EVENT_PAGEFAULT)
			continue;
		uint64_t flags = msg[i].arg.pagefault.flags;
		out[count++] = (struct cw_fault){.at = msg[i].arg.pagefault.address & ~(uint64_t)(CW_PAGE - 1),
						 .thread = msg[i].arg.pagefault.feat.ptid,
						 .write = (flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0,
						 .protect = (flags & UFFD_PAGEFAULT_FLAG_WP) != 0};
	}
	return count;
}
