/* See fabric.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fabric.h"

/* enum ibv_wc_status. */
enum { LOCAL_OPERATION = 2, LOCAL_PROTECTION = 4, FLUSHED = 5, REMOTE_ACCESS = 10, RETRY_EXCEEDED = 12, NOT_READY = 13 };

struct fabric *fabric;

void path(char *to, size_t size, const char *name, uint64_t id)
{
	const char *dir = getenv("ONEHOST");
	if (!dir || (size_t)snprintf(to, size, "%s/%s%.0llu", dir, name, (unsigned long long)id) >= size)
		to[0] = 0;
}

static void init_lock(struct fabric *f)
{
	pthread_mutexattr_t a;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&f->lock, &a);
	pthread_mutexattr_destroy(&a);
}

void join(void)
{
	char name[4096];
	path(name, sizeof name, "fabric", 0);
	int fd = name[0] ? open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (fd < 0)
		return;
	/* The first of all processes makes it, while others wait. */
	if (!flock(fd, LOCK_EX) && !ftruncate(fd, sizeof *fabric)) {
		void *p = mmap(NULL, sizeof *fabric, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (p != MAP_FAILED) {
			fabric = p;
			if (!fabric->made)
				init_lock(fabric);
			fabric->made = 1;
		}
	}
	flock(fd, LOCK_UN); /* else the mapping would keep it */
	close(fd);
}

void lock(void)
{
	/* Who was killed in the middle has left no pointer here that others follow. */
	if (pthread_mutex_lock(&fabric->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&fabric->lock);
}

void unlock(void) { pthread_mutex_unlock(&fabric->lock); }

void complete(struct slot *s, const struct ibv_wc *wc)
{
	if (s->to - s->from == COMPLETIONS) {
		s->overrun = 1;
		return;
	}
	s->wc[s->to % COMPLETIONS] = *wc;
	s->to++;
	if (!s->armed)
		return;
	s->armed = 0;
	char name[4096];
	path(name, sizeof name, "event", s->channel);
	int fd = open(name, O_WRONLY | O_NONBLOCK | O_CLOEXEC); /* nobody reads: it has ended */
	if (fd >= 0 && write(fd, "", 1) != 1 && errno != EAGAIN)
		s->overrun = 1;
	if (fd >= 0)
		close(fd);
}

/* Whether a key opens bytes of a process's to a right. */
static int opens(uint32_t key, pid_t owner, uint64_t at, uint64_t n, int right)
{
	const struct memory *m = &fabric->memories[key % MEMORIES];
	return key && m->key == key && m->owner == owner && at >= m->at && n <= m->size && at - m->at <= m->size - n &&
	       (m->access & right) == right;
}

/* The other end of a queue pair, if that is connected with it by an address that it has. */
static struct slot *other(const struct slot *s)
{
	struct slot *o = &fabric->slots[s->peer % QUEUES];
	if (!s->peer || o->num != s->peer || o->peer != s->num || o->broken)
		return NULL;
	for (int i = 0; i < GIDS; i++)
		if (!memcmp(o->gids[i].raw, s->dgid.raw, 16))
			return o;
	return NULL;
}

/* Whether all bytes went. */
static int transfers(pid_t to, int reads, uint64_t here, uint64_t there, uint64_t n)
{
	while (n > 0) {
		struct iovec l = {(void *)(uintptr_t)here, n}, r = {(void *)(uintptr_t)there, n};
		ssize_t part = reads ? process_vm_readv(to, &l, 1, &r, 1, 0) : process_vm_writev(to, &l, 1, &r, 1, 0);
		if (part <= 0)
			return 0;
		here += (uint64_t)part, there += (uint64_t)part, n -= (uint64_t)part;
	}
	return 1;
}

void breaks(struct slot *s)
{
	struct ibv_wc wc = {.status = FLUSHED, .opcode = IBV_WC_RECV};
	if (s->receives > 0)
		complete(s, &wc);
	s->broken = 1;
}

uint32_t perform(struct slot *s, const struct ibv_send_wr *w)
{
	uint64_t n = w->num_sge ? w->sg_list->length : 0;
	int reads = w->opcode == IBV_WR_RDMA_READ, immediate = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	if (s->broken)
		return FLUSHED;
	if (!reads && !immediate && w->opcode != IBV_WR_RDMA_WRITE)
		return LOCAL_OPERATION;
	if (n && !(w->send_flags & IBV_SEND_INLINE) &&
	    !opens(w->sg_list->lkey, s->owner, w->sg_list->addr, n, reads ? IBV_ACCESS_LOCAL_WRITE : 0))
		return LOCAL_PROTECTION;
	struct slot *o = other(s);
	if (!o)
		return RETRY_EXCEEDED;
	if (n && !opens(w->rdma.rkey, o->owner, w->rdma.remote_addr, n, reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE)) {
		breaks(o);
		return REMOTE_ACCESS;
	}
	if (immediate && o->receives <= 0)
		return NOT_READY;
	if (n && !transfers(o->owner, reads, w->sg_list->addr, w->rdma.remote_addr, n))
		return RETRY_EXCEEDED;
	if (reads)
		fabric->counts.reads++, fabric->counts.read += n;
	else
		fabric->counts.writes++, fabric->counts.written += n;
	if (immediate) {
		struct ibv_wc wc = {.opcode = IBV_WC_RECV_RDMA_WITH_IMM, .imm_data = w->imm_data, .byte_len = (uint32_t)n};
		fabric->counts.immediates++;
		o->receives--;
		complete(o, &wc);
	}
	return 0;
}

/* gone: a process that was killed has left what it had. */
static int gone(pid_t p)
{
	char name[64];
	snprintf(name, sizeof name, "/proc/%d", (int)p);
	return access(name, F_OK) != 0;
}

struct memory *free_memory(void)
{
	for (int turn = 0; turn < 2; turn++)
		for (int i = 1; i < MEMORIES; i++)
			if (!fabric->memories[i].key || (turn && gone(fabric->memories[i].owner)))
				return &fabric->memories[i];
	return NULL;
}

struct slot *free_slot(void)
{
	for (int turn = 0; turn < 2; turn++)
		for (int i = 1; i < QUEUES; i++)
			if (!fabric->slots[i].num || (turn && gone(fabric->slots[i].owner)))
				return &fabric->slots[i];
	return NULL;
}
