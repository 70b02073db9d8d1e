/*
 * A libibverbs.so.1 for tests that joins processes of one host: no adapter, no kernel module, no
 * packets. Queue pairs, completion queues and registered memory stand in a file that all processes
 * map, and who posts a work request does it then and there: by process_vm_writev(2) and
 * process_vm_readv(2) from and to the other process's memory, under the keys and rights that this
 * one has registered. So the code above is what it is over an adapter, in processes, network
 * namespaces and hosts' configurations of its own; what an adapter does by itself, in its own time,
 * is not shown: that work is under way while its poster goes on, packets that are lost or late, what
 * is pinned, and any speed.
 *
 * ONEHOST names the folder with that file, "fabric", and the FIFOs by which completion queues wake
 * who waits. Devices are those that sysfs shows (scripts/lib/onehost.sh has a namespace with such),
 * and a queue pair reaches another by an address of the other's port. The file begins with a
 * struct counts.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "abi.h"

#define SYSFS "/sys/class/infiniband"

enum { QUEUES = 256, MEMORIES = 4096, COMPLETIONS = 4096, GIDS = 8, MTU_1024 = 3, ACTIVE = 4 };
/* enum ibv_wc_status. */
enum { LOCAL_OPERATION = 2, LOCAL_PROTECTION = 4, FLUSHED = 5, REMOTE_ACCESS = 10, RETRY_EXCEEDED = 12, NOT_READY = 13 };

/* What was done by all processes. */
struct counts {
	uint64_t writes, written, reads, read, immediates, pairs;
};

/* A completion queue lies in its queue pair's slot: here each pair has one of its own. */
struct slot {
	uint32_t num; /* 0: nobody's */
	pid_t owner;
	uint32_t peer;
	union ibv_gid dgid, gids[GIDS];
	int receives, broken;
	uint64_t channel;
	int armed, overrun;
	_Atomic unsigned from, to;
	struct ibv_wc wc[COMPLETIONS];
};

struct memory {
	uint32_t key; /* 0: nobody's */
	pid_t owner;
	uint64_t at, size;
	int access;
};

struct fabric {
	struct counts counts;
	_Atomic int made;
	pthread_mutex_t lock; /* of all below: work is done in one order */
	uint32_t last_queue, last_key;
	uint64_t last_channel;
	struct slot slots[QUEUES];
	struct memory memories[MEMORIES];
};

struct device {
	char name[64];
};

struct context {
	struct ibv_context base;
	struct device device;
	union ibv_gid gids[GIDS];
};

struct pd {
	struct ibv_pd base;
	_Atomic int users;
};

struct channel {
	struct ibv_comp_channel base;
	uint64_t id;
};

struct cq {
	struct ibv_cq base;
	struct channel *channel;
	struct slot *slot; /* of its queue pair, once there is one */
};

struct qp {
	struct ibv_qp base;
	struct slot *slot;
	int ready;
};

static struct fabric *fabric;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void path(char *to, size_t size, const char *name, uint64_t id)
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

static void join(void)
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

static void lock(void)
{
	/* Who was killed in the middle has left no pointer here that others follow. */
	if (pthread_mutex_lock(&fabric->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&fabric->lock);
}

static void unlock(void) { pthread_mutex_unlock(&fabric->lock); }

struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **list = calloc(16, sizeof *list);
	DIR *d = opendir(SYSFS);
	*n = 0;
	pthread_once(&once, join);
	for (struct dirent *e; list && fabric && d && *n < 15 && (e = readdir(d));) {
		struct device *v = e->d_name[0] == '.' ? NULL : calloc(1, sizeof *v);
		if (!v)
			continue;
		snprintf(v->name, sizeof v->name, "%.63s", e->d_name);
		list[(*n)++] = (struct ibv_device *)v;
	}
	if (d)
		closedir(d);
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	for (int i = 0; list[i]; i++)
		free(list[i]);
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *d) { return ((struct device *)d)->name; }

/* under lock */
static void complete(struct slot *s, const struct ibv_wc *wc)
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

static int poll_cq(struct ibv_cq *base, int most, struct ibv_wc *wc)
{
	struct slot *s = ((struct cq *)base)->slot;
	int n = 0;
	if (!s || (s->from == s->to && !s->overrun))
		return 0;
	lock();
	while (n < most && s->from != s->to)
		wc[n++] = s->wc[s->from++ % COMPLETIONS];
	if (s->overrun && !n)
		n = -1;
	unlock();
	return n;
}

static int req_notify_cq(struct ibv_cq *base, int solicited)
{
	struct slot *s = ((struct cq *)base)->slot;
	(void)solicited;
	if (!s)
		return EINVAL;
	lock();
	s->armed = 1;
	unlock();
	return 0;
}

/* Whether a key opens bytes of a process's to a right. Under lock. */
static int opens(uint32_t key, pid_t owner, uint64_t at, uint64_t n, int right)
{
	const struct memory *m = &fabric->memories[key % MEMORIES];
	return key && m->key == key && m->owner == owner && at >= m->at && n <= m->size && at - m->at <= m->size - n && (m->access & right) == right;
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

static void breaks(struct slot *s)
{
	struct ibv_wc wc = {.status = FLUSHED, .opcode = IBV_WC_RECV};
	if (s->receives > 0)
		complete(s, &wc);
	s->broken = 1;
}

/* One work request. Under lock. */
static uint32_t perform(struct slot *s, const struct ibv_send_wr *w)
{
	uint64_t n = w->num_sge ? w->sg_list->length : 0;
	int reads = w->opcode == IBV_WR_RDMA_READ, immediate = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	if (s->broken)
		return FLUSHED;
	if (!reads && !immediate && w->opcode != IBV_WR_RDMA_WRITE)
		return LOCAL_OPERATION;
	if (n && !(w->send_flags & IBV_SEND_INLINE) && !opens(w->sg_list->lkey, s->owner, w->sg_list->addr, n, reads ? IBV_ACCESS_LOCAL_WRITE : 0))
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

static int post_send(struct ibv_qp *base, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	struct qp *q = (struct qp *)base;
	if (!q->ready) {
		*bad = w;
		return EINVAL;
	}
	lock();
	for (; w; w = w->next) {
		struct ibv_wc wc = {.wr_id = w->wr_id, .status = perform(q->slot, w)};
		if (wc.status || (w->send_flags & IBV_SEND_SIGNALED))
			complete(q->slot, &wc);
		if (wc.status && !q->slot->broken)
			breaks(q->slot);
	}
	unlock();
	return 0;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	(void)bad;
	lock();
	for (; w; w = w->next)
		((struct qp *)base)->slot->receives++;
	unlock();
	return 0;
}

/* read_gids: as sysfs has them. */
static void read_gids(struct context *c)
{
	for (int i = 0; i < GIDS; i++) {
		char name[4096];
		unsigned b[8];
		snprintf(name, sizeof name, SYSFS "/%s/ports/1/gids/%d", c->device.name, i);
		FILE *f = fopen(name, "re");
		if (!f)
			return;
		if (fscanf(f, "%4x:%4x:%4x:%4x:%4x:%4x:%4x:%4x", b, b + 1, b + 2, b + 3, b + 4, b + 5, b + 6, b + 7) == 8)
			for (int k = 0; k < 16; k++)
				c->gids[i].raw[k] = (uint8_t)(b[k / 2] >> (k % 2 ? 0 : 8));
		fclose(f);
	}
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct context *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->device = *(struct device *)d;
	read_gids(c);
	c->base.device = (struct ibv_device *)&c->device;
	c->base.cmd_fd = eventfd(0, EFD_CLOEXEC);
	c->base.ops.poll_cq = poll_cq;
	c->base.ops.req_notify_cq = req_notify_cq;
	c->base.ops.post_send = post_send;
	c->base.ops.post_recv = post_recv;
	return &c->base;
}

int ibv_close_device(struct ibv_context *c)
{
	close(c->cmd_fd);
	free(c);
	return 0;
}

int ibv_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a)
{
	(void)c;
	a->state = ACTIVE;
	a->active_mtu = MTU_1024;
	return port == 1 ? 0 : EINVAL;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct pd *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->base.context = c;
	return &p->base;
}

int ibv_dealloc_pd(struct ibv_pd *base)
{
	struct pd *p = (struct pd *)base;
	if (p->users)
		return EBUSY;
	free(p);
	return 0;
}

/* gone: a process that was killed has left what it had. */
static int gone(pid_t p)
{
	char name[64];
	snprintf(name, sizeof name, "/proc/%d", (int)p);
	return access(name, F_OK) != 0;
}

/* under lock; null: there is no room */
static struct memory *free_memory(void)
{
	for (int turn = 0; turn < 2; turn++)
		for (int i = 1; i < MEMORIES; i++)
			if (!fabric->memories[i].key || (turn && gone(fabric->memories[i].owner)))
				return &fabric->memories[i];
	return NULL;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t n, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	if (!mr)
		return NULL;
	lock();
	struct memory *m = free_memory();
	if (m) {
		/* A key is not used again soon. */
		m->key = (fabric->last_key = (fabric->last_key + 1) % (1 << 19)) * MEMORIES + (uint32_t)(m - fabric->memories);
		*m = (struct memory){m->key, getpid(), (uintptr_t)addr, n, access};
		*mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = n, .lkey = m->key, .rkey = m->key};
		((struct pd *)pd)->users++;
	}
	unlock();
	if (!m) {
		free(mr);
		errno = ENOMEM;
		return NULL;
	}
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	lock(); /* what is being copied there is done */
	struct memory *m = &fabric->memories[mr->rkey % MEMORIES];
	if (m->key == mr->rkey && m->owner == getpid())
		m->key = 0;
	unlock();
	((struct pd *)mr->pd)->users--;
	free(mr);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct channel *h = calloc(1, sizeof *h);
	char name[4096];
	if (!h)
		return NULL;
	lock();
	h->id = ++fabric->last_channel;
	unlock();
	path(name, sizeof name, "event", h->id);
	h->base.context = c;
	h->base.fd = mkfifo(name, 0600) ? -1 : open(name, O_RDWR | O_CLOEXEC);
	if (h->base.fd < 0) {
		free(h);
		return NULL;
	}
	return &h->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
	struct channel *h = (struct channel *)base;
	char name[4096];
	path(name, sizeof name, "event", h->id);
	unlink(name);
	close(h->base.fd);
	free(h);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *context, struct ibv_comp_channel *h, int vector)
{
	(void)context, (void)vector;
	struct cq *q = n <= COMPLETIONS ? calloc(1, sizeof *q) : NULL;
	if (!q) {
		errno = ENOMEM;
		return NULL;
	}
	q->base.context = c;
	q->channel = (struct channel *)h;
	return &q->base;
}

int ibv_destroy_cq(struct ibv_cq *q)
{
	free(q);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *h, struct ibv_cq **q, void **context)
{
	char b;
	(void)q, (void)context;
	return read(h->fd, &b, 1) == 1 ? 0 : -1;
}

void ibv_ack_cq_events(struct ibv_cq *q, unsigned int n) { (void)q, (void)n; }

/* under lock; null: there is no room */
static struct slot *free_slot(void)
{
	for (int turn = 0; turn < 2; turn++)
		for (int i = 1; i < QUEUES; i++)
			if (!fabric->slots[i].num || (turn && gone(fabric->slots[i].owner)))
				return &fabric->slots[i];
	return NULL;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct qp *q = calloc(1, sizeof *q);
	struct cq *c = (struct cq *)a->send_cq;
	if (!q || c->slot || a->send_cq != a->recv_cq) {
		free(q);
		errno = EINVAL;
		return NULL;
	}
	lock();
	struct slot *s = free_slot();
	if (s) {
		fabric->last_queue = (fabric->last_queue + 1) % (1 << 15);
		s->peer = 0, s->receives = s->broken = s->armed = s->overrun = 0, s->from = s->to = 0;
		s->num = (fabric->last_queue + 1) * QUEUES + (uint32_t)(s - fabric->slots);
		s->owner = getpid();
		s->channel = c->channel->id;
		memcpy(s->gids, ((struct context *)pd->context)->gids, sizeof s->gids);
		fabric->counts.pairs++;
	}
	unlock();
	if (!s) {
		free(q);
		errno = ENOMEM;
		return NULL;
	}
	c->slot = q->slot = s;
	q->base = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .qp_num = s->num};
	((struct pd *)pd)->users++;
	return &q->base;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *a, int mask)
{
	struct qp *q = (struct qp *)base;
	lock();
	if (mask & IBV_QP_DEST_QPN)
		q->slot->peer = a->dest_qp_num;
	if (mask & IBV_QP_AV)
		q->slot->dgid = a->ah_attr.dgid;
	unlock();
	q->ready |= a->qp_state == IBV_QPS_RTS;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
	struct qp *q = (struct qp *)base;
	lock();
	q->slot->num = 0;
	unlock();
	((struct cq *)base->send_cq)->slot = NULL;
	((struct pd *)base->pd)->users--;
	free(q);
	return 0;
}
