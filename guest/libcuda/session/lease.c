/*
 * Leases: asynchronous O_DIRECT READs that stay pending, so that the kernel pins a region's pages and their descriptors tell the
 * host where they lie.
 *
 * The lease thread owns the renewal. Every second it submits each piece's READ again; the host then completes the older one with
 * 0 bytes. A READ that completes with no other pending (the host moves, or this process was stopped for longer than a term) is
 * submitted at once. It runs with all signals blocked and takes `lock` only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "session/lease.h"

enum { RENEW_MS = 1000, RETRY_MS = 10, STACK = 128 * 1024 };

/* A part of a region that one READ leases. */
struct cw_piece {
	struct cw_piece *next;
	uint64_t offset; /* in the file: FileLease | region | byte offset */
	uint8_t *va;
	uint32_t len;
	uint32_t region;
	int pending;   /* READs in flight */
	int ended;     /* not renewed any more; freed with the last READ */
	int64_t since; /* of the youngest READ, ms */
	int64_t due;   /* of the next, ms */
};

struct cw_leases cw_leases;

int cw_aio_submit(int fd, int opcode, void *buf, size_t len, uint64_t offset, void *data)
{
	struct iocb cb = {0}, *list = &cb;
	cb.aio_data = (uintptr_t)data;
	cb.aio_lio_opcode = (uint16_t)opcode;
	cb.aio_fildes = (uint32_t)fd;
	cb.aio_buf = (uintptr_t)buf;
	cb.aio_nbytes = len;
	cb.aio_offset = (int64_t)offset;
	long n = syscall(SYS_io_submit, cw_leases.aio, 1, &list);
	return n == 1 ? 0 : n == 0 ? -EAGAIN : -errno;
}

/* Under the lock. */
static int lease(struct cw_session *s, struct cw_piece *p, int64_t now)
{
	int err = cw_aio_submit(s->fd, IOCB_CMD_PREAD, p->va, p->len, p->offset, p);
	if (err == 0) {
		p->pending++;
		p->since = now;
	}
	p->due = now + (err == 0 ? RENEW_MS : RETRY_MS);
	return err;
}

/* Under the lock: unlinks and frees pieces of a region, or of all (region < 0), that nothing refers to; the others follow with
 * their last READ. */
void cw_lease_end(int64_t region)
{
	for (struct cw_piece **at = &cw_leases.pieces; *at;) {
		struct cw_piece *p = *at;
		if (region < 0 || p->region == region)
			p->ended = 1;
		if (p->ended && p->pending == 0) {
			*at = p->next;
			cw_leases.leases--;
			free(p);
		} else {
			at = &p->next;
		}
	}
}

/* A READ has completed. */
static void completed(struct cw_session *s, struct cw_piece *p, int64_t res, int64_t now)
{
	p->pending--;
	if (p->ended) {
		if (p->pending == 0)
			cw_lease_end(p->region);
		return;
	}
	if (res < 0 && res != -EINTR && res != -EAGAIN) {
		atomic_store(&cw_leases.gone, (int)res);
		cw_mark_dead(s, "the host ended the session");
		cw_lease_end(-1);
		return;
	}
	/* A host that answers at once, over and over, must not make this a busy loop. */
	if (p->pending == 0 && !cw_leases.stopping) {
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
		int64_t now = cw_now_ms(), next = now + RENEW_MS;
		cw_lock_acquire(&cw_leases.lock);
		for (struct cw_piece *p = cw_leases.pieces; p && !cw_leases.stopping; p = p->next) {
			if (p->ended)
				continue;
			if (p->due <= now)
				lease(s, p, now);
			if (p->due < next)
				next = p->due;
		}
		cw_lock_release(&cw_leases.lock);
		int64_t ms = next > now ? next - now : 1;
		struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
		long n = syscall(SYS_io_getevents, cw_leases.aio, 1, 64, ev, &wait);
		now = cw_now_ms();
		cw_lock_acquire(&cw_leases.lock);
		for (long i = 0; i < n; i++)
			if (ev[i].data != 0)
				completed(s, (struct cw_piece *)(uintptr_t)ev[i].data, ev[i].res, now);
		int stop = cw_leases.stopping == 2;
		cw_lock_release(&cw_leases.lock);
		if (stop || (n < 0 && errno != EINTR))
			break;
	}
	atomic_store(&cw_leases.running, 0);
	return NULL;
}

int cw_lease_start(struct cw_session *s)
{
	atomic_store(&cw_leases.running, 1);
	int err = cw_thread_begin(STACK, 0, lease_thread, s);
	if (err != 0)
		atomic_store(&cw_leases.running, 0);
	return -err;
}

/* Cuts a region into pieces and leases each. Pages are written to first, so that they exist and are this process's own. */
int cw_lease_region(struct cw_session *s, uint32_t region, uint8_t *va, uint64_t size)
{
	int err = 0;
	for (uint64_t at = 0; at < size; at += 4096)
		__atomic_fetch_or(va + at, 0, __ATOMIC_RELAXED);
	cw_lock_acquire(&cw_leases.lock);
	if ((size + cw_leases.max_read - 1) / cw_leases.max_read > cw_leases.max_leases - cw_leases.leases)
		err = -ENOBUFS;
	for (uint64_t at = 0; at < size && err == 0; at += cw_leases.max_read) {
		struct cw_piece *p = calloc(1, sizeof *p);
		if (!p) {
			err = -ENOMEM;
			break;
		}
		p->region = region;
		p->offset = CW_FILE_LEASE | (uint64_t)region << 44 | at;
		p->va = va + at;
		p->len = size - at < cw_leases.max_read ? (uint32_t)(size - at) : cw_leases.max_read;
		p->next = cw_leases.pieces;
		cw_leases.pieces = p;
		cw_leases.leases++;
		err = lease(s, p, cw_now_ms());
	}
	if (err != 0)
		cw_lease_end(region);
	cw_lock_release(&cw_leases.lock);
	return err;
}

void cw_lease_forget(void)
{
	while (cw_leases.pieces) {
		struct cw_piece *p = cw_leases.pieces;
		cw_leases.pieces = p->next;
		free(p);
	}
}
