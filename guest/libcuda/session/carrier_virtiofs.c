/*
 * The carrier of a VM: files of a virtiofs mount. Regions are memory of this process under leases: asynchronous O_DIRECT READs
 * that stay pending, so that the kernel pins the pages and their descriptors tell the host where they lie.
 *
 * Lease thread: owns the renewal. Every second it submits each piece's READ again; the host then completes the older one with
 * 0 bytes. A READ that completes with no other pending (the host moves, or this process was stopped for longer than a term) is
 * submitted at once. It runs with all signals blocked and takes `lock` only.
 *
 * Doorbells are asynchronous WRITEs: the ringing thread does not wait for the host. Waits are READs that the host completes
 * when the slot is answered, at once if `waiting` is 0 when they arrive, or after a second.
 *
 * Exit: pending READs keep a process from exiting until they complete. close() asks for that by MsgRegionEnd of region 0, which
 * ends the session; a killed process leaves by the end of the term.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "session/internal.h"

/* LEASES: pieces that a process may lend. Each keeps a request pending in a queue that all processes of the VM share. */
enum { AIO_EVENTS = 512, LEASES = 256, RENEW_MS = 1000, RETRY_MS = 10, STACK = 128 * 1024, DEFAULT_READ = 128 * 1024 };

/* A part of a region that one READ leases. */
struct piece {
	struct piece *next;
	uint64_t offset; /* in the file: FileLease | region | byte offset */
	uint8_t *va;
	uint32_t len;
	uint32_t region;
	int pending;	/* READs in flight */
	int ended;	/* not renewed any more; freed with the last READ */
	int64_t since;	/* of the youngest READ, ms */
	int64_t due;	/* of the next, ms */
};

static struct {
	struct cw_lock lock;
	aio_context_t aio;
	struct piece *pieces;
	uint32_t max_read;   /* bytes of one READ */
	uint32_t max_leases; /* pieces that may exist */
	uint32_t leases;     /* that do, ended ones included */
	int stopping;	     /* no renewals; 2: the thread ends too */
	_Atomic int running; /* the lease thread */
	_Atomic int gone; /* -errno of a lease that failed */
	uint64_t ring;	  /* what a doorbell writes */
} v;

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int submit(int fd, int opcode, void *buf, size_t len, uint64_t offset, void *data)
{
	struct iocb cb = {0}, *list = &cb;
	cb.aio_data = (uintptr_t)data;
	cb.aio_lio_opcode = (uint16_t)opcode;
	cb.aio_fildes = (uint32_t)fd;
	cb.aio_buf = (uintptr_t)buf;
	cb.aio_nbytes = len;
	cb.aio_offset = (int64_t)offset;
	long n = syscall(SYS_io_submit, v.aio, 1, &list);
	return n == 1 ? 0 : n == 0 ? -EAGAIN : -errno;
}

/* Under the lock. */
static int lease(struct cw_session *s, struct piece *p, int64_t now)
{
	int err = submit(s->fd, IOCB_CMD_PREAD, p->va, p->len, p->offset, p);
	if (err == 0) {
		p->pending++;
		p->since = now;
	}
	p->due = now + (err == 0 ? RENEW_MS : RETRY_MS);
	return err;
}

/* Under the lock: unlinks and frees pieces of a region, or of all (region < 0), that nothing refers to; the others follow with
 * their last READ. */
static void end_pieces(int64_t region)
{
	for (struct piece **at = &v.pieces; *at;) {
		struct piece *p = *at;
		if (region < 0 || p->region == region)
			p->ended = 1;
		if (p->ended && p->pending == 0) {
			*at = p->next;
			v.leases--;
			free(p);
		} else {
			at = &p->next;
		}
	}
}

/* A READ has completed. */
static void completed(struct cw_session *s, struct piece *p, int64_t res, int64_t now)
{
	p->pending--;
	if (p->ended) {
		if (p->pending == 0)
			end_pieces(p->region);
		return;
	}
	if (res < 0 && res != -EINTR && res != -EAGAIN) {
		atomic_store(&v.gone, (int)res);
		cw_mark_dead(s, "the host ended the session");
		end_pieces(-1);
		return;
	}
	/* A host that answers at once, over and over, must not make this a busy loop. */
	if (p->pending == 0 && !v.stopping) {
		if (now - p->since < RETRY_MS)
			p->due = now + RETRY_MS;
		else
			lease(s, p, now);
	}
}

static void *lease_thread(void *arg)
{
	struct cw_session *s = arg;
	struct io_event ev[64];
	prctl(PR_SET_NAME, "causeway-lease");
	for (;;) {
		int64_t now = now_ms(), next = now + RENEW_MS;
		cw_lock_acquire(&v.lock);
		for (struct piece *p = v.pieces; p && !v.stopping; p = p->next) {
			if (p->ended)
				continue;
			if (p->due <= now)
				lease(s, p, now);
			if (p->due < next)
				next = p->due;
		}
		cw_lock_release(&v.lock);
		int64_t ms = next > now ? next - now : 1;
		struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
		long n = syscall(SYS_io_getevents, v.aio, 1, 64, ev, &wait);
		now = now_ms();
		cw_lock_acquire(&v.lock);
		for (long i = 0; i < n; i++)
			if (ev[i].data != 0)
				completed(s, (struct piece *)(uintptr_t)ev[i].data, ev[i].res, now);
		int stop = v.stopping == 2;
		cw_lock_release(&v.lock);
		if (stop || (n < 0 && errno != EINTR))
			break;
	}
	atomic_store(&v.running, 0);
	return NULL;
}

/* Glibc before 2.34 keeps these in libpthread, hence compat.h. The thread inherits a mask with every signal blocked. */
static int start_lease_thread(struct cw_session *s)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t t;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	atomic_store(&v.running, 1);
	int err = pthread_create(&t, &attr, lease_thread, s);
	if (err != 0)
		atomic_store(&v.running, 0);
	pthread_attr_destroy(&attr);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return -err;
}

/* Cuts a region into pieces and leases each. Pages are written to first, so that they exist and are this process's own. */
static int lease_region(struct cw_session *s, uint32_t region, uint8_t *va, uint64_t size)
{
	int err = 0;
	for (uint64_t at = 0; at < size; at += 4096)
		__atomic_fetch_or(va + at, 0, __ATOMIC_RELAXED);
	cw_lock_acquire(&v.lock);
	if ((size + v.max_read - 1) / v.max_read > v.max_leases - v.leases)
		err = -ENOBUFS;
	for (uint64_t at = 0; at < size && err == 0; at += v.max_read) {
		struct piece *p = calloc(1, sizeof *p);
		if (!p) {
			err = -ENOMEM;
			break;
		}
		p->region = region;
		p->offset = CW_FILE_LEASE | (uint64_t)region << 44 | at;
		p->va = va + at;
		p->len = size - at < v.max_read ? (uint32_t)(size - at) : v.max_read;
		p->next = v.pieces;
		v.pieces = p;
		v.leases++;
		err = lease(s, p, now_ms());
	}
	if (err != 0)
		end_pieces(region);
	cw_lock_release(&v.lock);
	return err;
}

static int control(struct cw_session *s, uint32_t type, uint32_t region, const void *va, uint64_t size)
{
	struct cw_hello h;
	ssize_t n;
	cw_hello_fill(&h, type, region, va, size);
	do
		n = pwrite(s->fd, &h, sizeof h, CW_FILE_CONTROL);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof h ? 0 : n < 0 ? -errno : -EIO;
}

/* The host's own words on a refused control write, if it has any. */
static void explain(struct cw_session *s, const char *mount, const char *what, int err)
{
	char text[200];
	ssize_t n = pread(s->fd, text, sizeof text - 1, CW_FILE_ERROR);
	if (n > 0)
		cw_why(s, "%s: the host refused the session: %.*s", mount, (int)n, text);
	else
		cw_why(s, "%s: %s: %s", mount, what, strerror(-err));
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

/* MOUNT/info: max_read, the bytes that fit one READ; max_leases, if the host wants another budget. */
static void read_info(const char *mount)
{
	char path[4200], text[2048];
	size_t len = strlen(mount);
	memcpy(path, mount, len);
	memcpy(path + len, "/info", 6);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	uint64_t bytes = info_number(text, "max_read=") & ~(uint64_t)4095, leases = info_number(text, "max_leases=");
	v.max_read = bytes >= 4096 && bytes <= 1u << 30 ? (uint32_t)bytes : DEFAULT_READ;
	v.max_leases = leases >= 1 && leases <= AIO_EVENTS ? (uint32_t)leases : LEASES;
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
	else
		cw_why(s, "cannot open %s: %s", path, strerror(err));
	return -err;
}

/* Ends every lease; waits for nothing. */
static void stop(struct cw_session *s, int how)
{
	cw_lock_acquire(&v.lock);
	v.stopping = how;
	end_pieces(-1);
	cw_lock_release(&v.lock);
	control(s, CW_MSG_REGION_END, 0, s->base, CW_REGION0_SIZE);
}

/* The thread looks at `stopping` once a second. With it gone, io_destroy waits for the READs, at most a term. */
static void vfs_abandon(struct cw_session *s)
{
	if (s->base)
		stop(s, 2);
	while (atomic_load(&v.running)) {
		struct timespec nap = {0, 5000000};
		nanosleep(&nap, NULL);
	}
	if (v.aio)
		syscall(SYS_io_destroy, v.aio);
	while (v.pieces) {
		struct piece *p = v.pieces;
		v.pieces = p->next;
		free(p);
	}
	if (s->base)
		munmap(s->base, CW_REGION0_SIZE);
	close(s->fd);
	s->base = NULL;
}

static int vfs_open(struct cw_session *s, const char *mount)
{
	int err = open_file(s, mount);
	if (err < 0)
		return err;
	s->fd = err;
	memset(&v, 0, sizeof v); /* abandon has left nothing behind */
	s->base = NULL;
	read_info(mount);
	v.ring = 1;
	void *base = cw_map_shared(-1, CW_REGION0_SIZE, NULL);
	err = cw_region0_init(s, base);
	if (err == 0 && syscall(SYS_io_setup, AIO_EVENTS, &v.aio) != 0) {
		err = -errno;
		cw_why(s, "io_setup: %s (raise fs.aio-max-nr)", strerror(-err));
	}
	if (err == 0 && (err = control(s, CW_MSG_HELLO, 0, base, CW_REGION0_SIZE)) != 0)
		explain(s, mount, "cannot open a session", err);
	if (err == 0 && (err = lease_region(s, 0, base, CW_REGION0_SIZE)) != 0)
		cw_why(s, "%s: cannot lease the session's ring: %s", mount, strerror(-err));
	if (err == 0 && (err = start_lease_thread(s)) != 0)
		cw_why(s, "cannot start a thread: %s", strerror(-err));
	else if (err == 0 && (err = control(s, CW_MSG_START, 0, base, CW_REGION0_SIZE)) != 0)
		explain(s, mount, "the worker did not start", err);
	if (err != 0)
		vfs_abandon(s);
	return err;
}

static int vfs_add_region(struct cw_session *s, struct cw_region *r)
{
	if (!r->adopted) {
		r->va = cw_map_shared(-1, r->size, r->va);
		if (!r->va)
			return -ENOMEM;
	} else {
		/* Private pages could part from their lease when a child is forked (Linux 6.1 copies them on write). */
		madvise(r->va, r->size, MADV_DONTFORK);
	}
	int err = control(s, CW_MSG_REGION, r->id, r->va, r->size);
	if (err == 0) {
		err = lease_region(s, r->id, r->va, r->size);
		if (err != 0)
			control(s, CW_MSG_REGION_END, r->id, r->va, r->size);
	}
	if (err != 0 && r->adopted)
		madvise(r->va, r->size, MADV_DOFORK);
	else if (err != 0)
		munmap(r->va, r->size);
	return err;
}

static void vfs_end_region(struct cw_session *s, struct cw_region *r)
{
	cw_lock_acquire(&v.lock);
	end_pieces(r->id);
	cw_lock_release(&v.lock);
	control(s, CW_MSG_REGION_END, r->id, r->va, r->size);
	/* A READ that is still pending holds the pages themselves, not their addresses. */
	if (r->adopted)
		madvise(r->va, r->size, MADV_DOFORK);
	else
		munmap(r->va, r->size);
}

static void vfs_doorbell(struct cw_session *s)
{
	if (submit(s->fd, IOCB_CMD_PWRITE, &v.ring, sizeof v.ring, CW_FILE_DOORBELL, NULL) == 0)
		return;
	ssize_t n;
	do
		n = pwrite(s->fd, &v.ring, sizeof v.ring, CW_FILE_DOORBELL);
	while (n < 0 && errno == EINTR);
}

static int vfs_alive(struct cw_session *s)
{
	(void)s;
	return atomic_load(&v.gone) ? -EPIPE : 0;
}

static int vfs_wait_slot(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	char buf[8];
	if (atomic_load(word) != 1)
		return 0;
	if (pread(s->fd, buf, sizeof buf, (off_t)(CW_FILE_WAIT | (uint64_t)slot << 12)) < 0 && errno != EINTR && errno != EAGAIN)
		return -EPIPE;
	return vfs_alive(s);
}

static void vfs_forked(struct cw_session *s) { close(s->fd); }

static void vfs_close(struct cw_session *s) { stop(s, 1); }

const struct cw_carrier cw_carrier_virtiofs = {
	.name = "virtiofs",
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
