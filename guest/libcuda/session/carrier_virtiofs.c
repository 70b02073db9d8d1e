/*
 * The carrier of a VM: files of a virtiofs mount. Control messages are WRITEs; regions are memory
 * of this process under loans (loan.c).
 *
 * Doorbells are asynchronous WRITEs: the ringing thread does not wait for the host. Waits are READs
 * that the host completes when the slot is answered, at once if `waiting` is 0 when they arrive, or
 * after a second.
 *
 * Exit: pending READs keep a process from exiting until they complete. close() asks for that by
 * MsgRegionEnd of region 0, which ends the session; a killed process leaves by the end of the term.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "session/loan.h"
#include "session/printable.h"
#include "session/rdma.h"

/*
 * Each READ that lends pages keeps a request pending in a queue that all processes of the VM share.
 * The host counts them; LOANS is what a process may have at one of before, which does not. PIECE:
 * how much one request of this process lends, about; the kernel makes READs of it.
 */
enum { LOANS = 256, MOST_LOANS = 1 << 16, DEFAULT_READ = 128 * 1024, PIECE = 16 << 20, USUAL_PAGES = 256, PROBE = 1020 * 4096 };

/* EAGAIN: the host has given the message back, as when the VM is about to pause or to move. */
static int control(struct cw_session *s, uint32_t type, uint32_t region, const void *va, uint64_t size)
{
	enum { TRIES = 50, NAP_NS = 20000000 };
	struct {
		struct cw_hello h;
		char text[sizeof cw_rdma_apart];
	} m;
	size_t len = sizeof m.h;
	ssize_t n;
	cw_hello_fill(&m.h, type, region, va, size);
	if (type == CW_MSG_HELLO) { /* why the session comes this way, if it was to go another */
		m.h.text_len = (uint32_t)strlen(cw_rdma_apart);
		memcpy(m.text, cw_rdma_apart, m.h.text_len);
		len += m.h.text_len;
	}
	for (int tries = 0;; tries++) {
		n = pwrite(cw_fd(s), &m, len, CW_FILE_CONTROL);
		if (n >= 0 || (errno != EINTR && errno != EAGAIN) || tries == TRIES)
			break;
		if (errno == EAGAIN)
			nanosleep(&(struct timespec){0, NAP_NS}, NULL);
	}
	return n == (ssize_t)len ? 0 : n < 0 ? -errno : -EIO;
}

/* The host's own words on a refused control write, if it has any. */
static void explain(struct cw_session *s, const char *mount, const char *what, int err)
{
	char text[320];
	ssize_t n = pread(s->fd, text, sizeof text - 1, CW_FILE_ERROR);
	if (n > 0) {
		cw_printable(text, (size_t)n);
		cw_why(s, "%s: the host refused the session: %s", mount, text);
	} else {
		cw_why(s, "%s: %s: %s", mount, what, strerror(-err));
	}
}

/* The number behind "name=" in the info file's text, or 0. */
static uint64_t info_number(const char *text, const char *name)
{
	uint64_t n = 0;
	const char *p = strstr(text, name);
	if (!p || (p != text && p[-1] != '\n'))
		return 0;
	for (p += strlen(name); *p >= '0' && *p <= '9' && n < 1u << 30; p++)
		n = n * 10 + (uint64_t)(*p - '0');
	return n;
}

/* The file's text, or none of it. */
static void read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
}

/*
 * A kernel whose READs may be larger than 1 MiB (since Linux 6.13, if its sysctl says so) tells
 * nobody how large they were when the file system was mounted: the host sees it by the first that
 * is. This is one that is completed at once.
 */
static void probe(struct cw_session *s)
{
	char text[32];
	read_text("/proc/sys/fs/fuse/max_pages_limit", text, sizeof text);
	if (strtoul(text, NULL, 10) <= USUAL_PAGES)
		return;
	void *p = mmap(NULL, PROBE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return; /* then the host learns it later */
	if (pread(s->fd, p, PROBE, CW_FILE_ERROR) < 0)
		cw_log(CW_LOG_INFO, "a READ of %d bytes: %s", PROBE, strerror(errno));
	munmap(p, PROBE);
}

/* MOUNT/info: max_read, the bytes that fit one READ; max_loans, how many may be pending as loans
 * before the host is asked. */
static void read_info(const char *mount)
{
	char path[4200], text[2048];
	size_t len = strlen(mount);
	memcpy(path, mount, len);
	memcpy(path + len, "/info", 6);
	read_text(path, text, sizeof text);
	uint64_t bytes = info_number(text, "max_read=") & ~(uint64_t)4095, loans = info_number(text, "max_leases=");
	cw_loans.max_read = bytes >= 4096 && bytes <= 1u << 30 ? (uint32_t)bytes : DEFAULT_READ;
	cw_loans.max_loans = loans >= 1 && loans <= MOST_LOANS ? (uint32_t)loans : LOANS;
	cw_loans.piece = cw_loans.max_read < PIECE ? PIECE / cw_loans.max_read * cw_loans.max_read : cw_loans.max_read;
}

static int open_file(struct cw_session *s, const char *mount)
{
	char path[4200];
	size_t len = strlen(mount);
	if (len > 4096)
		return -ENAMETOOLONG;
	memcpy(path, mount, len);
	memcpy(path + len, "/session", 9);
	int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	int err = errno;
	if (err == ENOENT || err == ENOTDIR)
		cw_why(s, "no Causeway at %s: mount the vGPU (mount -t virtiofs TAG %s) or set CAUSEWAY", mount, mount);
	else if (err == ENOTCONN)
		cw_why(s, "%s: the vGPU's process on the host has ended: have it detached and attached again, or restart this VM", mount);
	else
		cw_why(s, "cannot open %s: %s", path, strerror(err));
	return -err;
}

/* Ends every loan; waits for nothing. */
static void stop(struct cw_session *s, int how)
{
	cw_lock_acquire(&cw_loans.lock);
	cw_loans.stopping = how;
	cw_loan_end(-1);
	cw_lock_release(&cw_loans.lock);
	control(s, CW_MSG_REGION_END, 0, s->base, CW_REGION0_SIZE);
}

/* The thread looks at `stopping` once a second. With it gone, io_destroy waits for the READs, at
 * most a term. */
static void vfs_abandon(struct cw_session *s)
{
	if (s->base)
		stop(s, 2);
	while (atomic_load(&cw_loans.running)) {
		struct timespec nap = {0, 5000000};
		nanosleep(&nap, NULL);
	}
	if (cw_loans.aio)
		syscall(SYS_io_destroy, cw_loans.aio);
	cw_loan_forget();
	if (s->base)
		munmap(s->base, CW_REGION0_SIZE);
	cw_own_close(s->fd, &s->fd_own);
	s->base = NULL;
}

static int vfs_open(struct cw_session *s, const char *mount)
{
	int err = open_file(s, mount);
	if (err < 0)
		return err;
	s->fd = err = cw_own_take(err, CW_MARK_SESSION, &s->fd_own);
	if (err < 0) {
		cw_why(s, "%s: no descriptor: %s", mount, strerror(-err));
		return err;
	}
	memset(&cw_loans, 0, sizeof cw_loans); /* abandon has left nothing behind */
	s->base = NULL;
	probe(s);
	read_info(mount);
	cw_loans.ring = 1;
	void *base = cw_map_shared(-1, CW_REGION0_SIZE, NULL);
	err = cw_region0_init(s, base);
	if (err == 0 && syscall(SYS_io_setup, CW_AIO_EVENTS, &cw_loans.aio) != 0) {
		err = -errno;
		cw_why(s, "io_setup: %s (raise fs.aio-max-nr)", strerror(-err));
	}
	if (err == 0 && (err = control(s, CW_MSG_HELLO, 0, base, CW_REGION0_SIZE)) != 0)
		explain(s, mount, "cannot open a session", err);
	if (err == 0 && (err = cw_loan_region(s, 0, base, CW_REGION0_SIZE)) != 0)
		cw_why(s, "%s: cannot lend the session's ring: %s", mount, strerror(-err));
	if (err == 0 && (err = cw_loan_start(s)) != 0)
		cw_why(s, "cannot start a thread: %s", strerror(-err));
	else if (err == 0 && (err = control(s, CW_MSG_START, 0, base, CW_REGION0_SIZE)) != 0)
		explain(s, mount, "the worker did not start", err);
	if (err != 0)
		vfs_abandon(s);
	return err;
}

static void unadopt(const struct cw_region *r)
{
	if (r->file < 0)
		madvise(r->va, r->size, MADV_DOFORK);
}

/* Of memory that the GPU may not reach, the host says who has what there is. */
static void say_refusal(struct cw_session *s)
{
	char text[320];
	ssize_t n = pread(cw_fd(s), text, sizeof text - 1, CW_FILE_ERROR);
	if (n > 0)
		cw_log(CW_LOG_INFO, "the host refused a region: %.*s", (int)n, text);
}

static int vfs_add_region(struct cw_session *s, struct cw_region *r)
{
	if (!r->adopted) {
		r->va = cw_map_shared(-1, r->size, r->va);
		if (!r->va)
			return -ENOMEM;
	} else if (r->file < 0) {
		/* Private pages could part from their loan when a child is forked (Linux 6.1 copies
		 * them on write). */
		madvise(r->va, r->size, MADV_DONTFORK);
	}
	int err = control(s, CW_MSG_REGION, r->id, (void *)(uintptr_t)r->at, r->size);
	if (err == -ENOBUFS)
		say_refusal(s);
	if (err == 0) {
		err = cw_loan_region(s, r->id, r->va, r->size);
		if (err != 0)
			control(s, CW_MSG_REGION_END, r->id, (void *)(uintptr_t)r->at, r->size);
	}
	if (err != 0 && r->adopted)
		unadopt(r);
	else if (err != 0)
		munmap(r->va, r->size);
	return err;
}

static void vfs_end_region(struct cw_session *s, struct cw_region *r)
{
	cw_lock_acquire(&cw_loans.lock);
	cw_loan_end(r->id);
	cw_lock_release(&cw_loans.lock);
	control(s, CW_MSG_REGION_END, r->id, (void *)(uintptr_t)r->at, r->size);
	/* A READ that is still pending holds the pages themselves, not their addresses. */
	if (r->adopted)
		unadopt(r);
	else
		munmap(r->va, r->size);
}

static void vfs_doorbell(struct cw_session *s)
{
	int fd = cw_fd(s);
	if (fd < 0 || cw_aio_submit(fd, IOCB_CMD_PWRITE, &cw_loans.ring, sizeof cw_loans.ring, CW_FILE_DOORBELL, NULL) == 0)
		return;
	ssize_t n;
	do
		n = pwrite(fd, &cw_loans.ring, sizeof cw_loans.ring, CW_FILE_DOORBELL);
	while (n < 0 && errno == EINTR);
}

static int vfs_alive(struct cw_session *s) { return atomic_load(&cw_loans.gone) || cw_fd(s) < 0 ? -EPIPE : 0; }

static int vfs_wait_slot(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	char buf[8];
	if (atomic_load(word) != 1)
		return 0;
	if (pread(cw_fd(s), buf, sizeof buf, (off_t)(CW_FILE_WAIT | (uint64_t)slot << 12)) < 0 && errno != EINTR && errno != EAGAIN)
		return -EPIPE;
	return vfs_alive(s);
}

static void vfs_forked(struct cw_session *s, int owned)
{
	(void)owned;
	cw_own_close(s->fd, &s->fd_own);
}

static void vfs_close(struct cw_session *s) { stop(s, 1); }

const struct cw_carrier cw_carrier_virtiofs = {
	.name = "virtiofs",
	.scarce = 1,
	.spin_us = 50,
	.open = vfs_open,
	.add_region = vfs_add_region,
	.end_region = vfs_end_region,
	.doorbell = vfs_doorbell,
	.wait_slot = vfs_wait_slot,
	.alive = vfs_alive,
	.forked = vfs_forked,
	.close = vfs_close,
	.abandon = vfs_abandon,
};
