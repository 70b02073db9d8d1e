/*
 * Loans: asynchronous O_DIRECT READs that stay pending, so that the kernel pins a region's pages
 * and their descriptors tell the host where they lie. A piece is one request of this process; the
 * kernel makes READs of it, each as large as it can, and completes it with the last of them.
 *
 * The loan thread owns the renewal. Every second it submits each piece again; the host then
 * completes the older READs with 0 bytes. It submits a few READs at a time, since all that comes
 * behind them in the VM's queue waits, and none of a piece whose older ones are not completed yet,
 * so a host that gets no CPU finds each piece twice there and not more. The host has to take each
 * READ of a renewal for the one at that place, or neither request would be completed. A piece that
 * completes with no other pending (the host moves, or this process was stopped for longer than a
 * term) is submitted at once. Each turn it looks whether the program has closed the file: a READ of
 * what has its number then would take the program's bytes. It runs with all signals blocked and
 * takes `lock` only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "session/loan.h"

/* BURST: READs after which renewals rest for GAP_MS. All that a queue of 1024 can hold takes a
 * quarter of a second so, a term is 1.7 s, and who has less than a few hundred MiB is awake a few
 * times a second. */
enum { RENEW_MS = 1000, RETRY_MS = 10, BURST = 16, GAP_MS = 5, STACK = 128 * 1024 };

/* A part of a region that one request lends. */
struct cw_piece {
	struct cw_piece *next;
	uint64_t offset; /* in the file: FileLoan | region | byte offset */
	uint8_t *va;
	uint32_t len;
	uint32_t region;
	int pending;   /* requests in flight */
	int ended;     /* not renewed any more; freed with the last request */
	int64_t since; /* of the youngest, ms */
	int64_t due;   /* of the next, ms */
};

struct cw_loans cw_loans;

static uint32_t reads(uint64_t size) { return (uint32_t)((size + cw_loans.max_read - 1) / cw_loans.max_read); }

int cw_aio_submit(int fd, int opcode, void *buf, size_t len, uint64_t offset, void *data)
{
	struct iocb cb = {0}, *list = &cb;
	cb.aio_data = (uintptr_t)data;
	cb.aio_lio_opcode = (uint16_t)opcode;
	cb.aio_fildes = (uint32_t)fd;
	cb.aio_buf = (uintptr_t)buf;
	cb.aio_nbytes = len;
	cb.aio_offset = (int64_t)offset;
	long n = syscall(SYS_io_submit, cw_loans.aio, 1, &list);
	return n == 1 ? 0 : n == 0 ? -EAGAIN : -errno;
}

/* Under the lock. */
static int loan(struct cw_session *s, struct cw_piece *p, int64_t now)
{
	int fd = cw_fd(s), err = fd < 0 ? -EBADF : cw_aio_submit(fd, IOCB_CMD_PREAD, p->va, p->len, p->offset, p);
	if (err == 0) {
		p->pending++;
		p->since = now;
	}
	p->due = now + (err == 0 ? RENEW_MS : RETRY_MS);
	return err;
}

/* Under the lock: unlinks and frees pieces of a region, or of all (region < 0), that nothing refers
 * to; the others follow with their last request. */
void cw_loan_end(int64_t region)
{
	for (struct cw_piece **at = &cw_loans.pieces; *at;) {
		struct cw_piece *p = *at;
		if (region < 0 || p->region == region)
			p->ended = 1;
		if (p->ended && p->pending == 0) {
			*at = p->next;
			cw_loans.loans -= reads(p->len);
			cw_loans.count--;
			free(p);
		} else {
			at = &p->next;
		}
	}
}

/* A request has completed. */
static void completed(struct cw_session *s, struct cw_piece *p, int64_t res, int64_t now)
{
	p->pending--;
	if (p->ended) {
		if (p->pending == 0)
			cw_loan_end(p->region);
		return;
	}
	if (res < 0 && res != -EINTR && res != -EAGAIN) {
		atomic_store(&cw_loans.gone, (int)res);
		cw_mark_dead(s, "the host ended the session");
		cw_loan_end(-1);
		return;
	}
	/* A host that answers at once, over and over, must not make this a busy loop. */
	if (p->pending == 0 && !cw_loans.stopping) {
		if (now - p->since < RETRY_MS)
			p->due = now + RETRY_MS;
		else
			loan(s, p, now);
	}
}

/* Under the lock: whether there is a file to lend by. Without one the pages are lent for the rest
 * of their term; with the last of its READs the host sees the file closed. */
static int has_file(struct cw_session *s)
{
	if (atomic_load(&cw_loans.gone) || cw_fd(s) >= 0)
		return 1;
	atomic_store(&cw_loans.gone, -EBADF);
	cw_loan_end(-1);
	return 0;
}

/* Under the lock: submits what is due. Until when there is no more to do. */
static int64_t renew(struct cw_session *s, int64_t now)
{
	int64_t next = now + RENEW_MS;
	uint32_t burst = 0;
	if (!has_file(s))
		return next;
	for (struct cw_piece *p = cw_loans.pieces; p && !cw_loans.stopping; p = p->next) {
		/* Its completion wakes the thread. */
		if (p->ended || (p->due <= now && p->pending > 1))
			continue;
		int64_t at = p->due;
		if (at <= now && burst >= BURST) {
			at = now + GAP_MS;
		} else if (at <= now) {
			burst += reads(p->len);
			loan(s, p, now);
			at = p->due;
		}
		if (at < next)
			next = at;
	}
	return next;
}

static void *loan_thread(void *arg)
{
	struct cw_session *s = arg;
	struct io_event ev[64];
	prctl(PR_SET_NAME, "causeway-loan");
	for (;;) {
		int64_t now = cw_now_ms();
		cw_lock_acquire(&cw_loans.lock);
		int64_t next = renew(s, now);
		cw_lock_release(&cw_loans.lock);
		int64_t ms = next > now ? next - now : 1;
		struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
		long n = syscall(SYS_io_getevents, cw_loans.aio, 1, 64, ev, &wait);
		now = cw_now_ms();
		cw_lock_acquire(&cw_loans.lock);
		for (long i = 0; i < n; i++)
			if (ev[i].data != 0)
				completed(s, (struct cw_piece *)(uintptr_t)ev[i].data, ev[i].res, now);
		int stop = cw_loans.stopping == 2;
		cw_lock_release(&cw_loans.lock);
		if (stop || (n < 0 && errno != EINTR))
			break;
	}
	atomic_store(&cw_loans.running, 0);
	return NULL;
}

int cw_loan_start(struct cw_session *s)
{
	atomic_store(&cw_loans.running, 1);
	int err = cw_thread_begin(STACK, 0, loan_thread, s);
	if (err != 0)
		atomic_store(&cw_loans.running, 0);
	return -err;
}

/* Under the lock: whether the READs and the requests of a region of so many bytes may be. */
static int fits(uint64_t size)
{
	uint64_t whole = size / cw_loans.piece, rest = size % cw_loans.piece;
	uint64_t loans = whole * reads(cw_loans.piece) + reads(rest), count = whole + (rest != 0);
	return loans <= cw_loans.max_loans - cw_loans.loans && count <= CW_PIECES - cw_loans.count;
}

static int loan_piece(struct cw_session *s, uint32_t region, uint8_t *va, uint64_t at, uint32_t len)
{
	struct cw_piece *p = calloc(1, sizeof *p);
	if (!p)
		return -ENOMEM;
	p->region = region;
	p->offset = CW_FILE_LOAN | (uint64_t)region << 44 | at;
	p->va = va + at;
	p->len = len;
	p->next = cw_loans.pieces;
	cw_loans.pieces = p;
	cw_loans.loans += reads(len);
	cw_loans.count++;
	return loan(s, p, cw_now_ms());
}

/* Cuts a region into pieces and lends each. Pages are written to first, so that they exist and are
 * this process's own. The lock is let go between pieces: the kernel takes its time to pin them, and
 * others must be renewed. */
int cw_loan_region(struct cw_session *s, uint32_t region, uint8_t *va, uint64_t size)
{
	for (uint64_t at = 0; at < size; at += 4096)
		__atomic_fetch_or(va + at, 0, __ATOMIC_RELAXED);
	cw_lock_acquire(&cw_loans.lock);
	int err = fits(size) ? 0 : -ENOBUFS;
	for (uint64_t at = 0; at < size && err == 0; at += cw_loans.piece) {
		if (at > 0) { /* long enough for who waits for the lock to have it */
			cw_lock_release(&cw_loans.lock);
			nanosleep(&(struct timespec){0, 50000}, NULL);
			cw_lock_acquire(&cw_loans.lock);
		}
		err = loan_piece(s, region, va, at, size - at < cw_loans.piece ? (uint32_t)(size - at) : cw_loans.piece);
	}
	if (err != 0)
		cw_loan_end(region);
	cw_lock_release(&cw_loans.lock);
	return err;
}

void cw_loan_forget(void)
{
	while (cw_loans.pieces) {
		struct cw_piece *p = cw_loans.pieces;
		cw_loans.pieces = p->next;
		free(p);
	}
}
