/* See provider.h. One lock: what it does is not fast, and in order. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ibv/abi.h"
#include "session/tests/verbs/provider.h"

struct fake_verbs fake_verbs;

enum { QUEUES = 16, MEMORIES = 64, COMPLETIONS = 4096 };

struct cq {
	struct ibv_cq base;
	struct ibv_comp_channel *channel;
	int armed;
	unsigned from, to;
	struct ibv_wc wc[COMPLETIONS];
};

struct qp {
	struct ibv_qp base;
	struct cq *cq;
	uint32_t peer;
	int state, receives, broken;
	struct ibv_pd *pd;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct qp *queues[QUEUES];
static struct {
	struct ibv_mr mr;
	int access, used;
} memories[MEMORIES];
static int device; /* what an ibv_device is to its users: an address */

static int fails(_Atomic int *n) { return atomic_load(n) != 0 && atomic_fetch_sub(n, 1) == 1; }

struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **list = calloc(2, sizeof *list);
	list[0] = (struct ibv_device *)&device;
	*n = atomic_load(&fake_verbs.no_devices) ? 0 : 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d)
{
	(void)d;
	return "fake0";
}

/* Under lock. */
static void complete(struct cq *q, const struct ibv_wc *wc)
{
	q->wc[q->to++ % COMPLETIONS] = *wc;
	if (q->armed) {
		uint64_t one = 1;
		q->armed = 0;
		if (write(q->channel->fd, &one, sizeof one) != sizeof one)
			abort();
	}
}

static int poll_cq(struct ibv_cq *base, int most, struct ibv_wc *wc)
{
	struct cq *q = (struct cq *)base;
	int n = 0;
	pthread_mutex_lock(&lock);
	while (n < most && q->from != q->to)
		wc[n++] = q->wc[q->from++ % COMPLETIONS];
	pthread_mutex_unlock(&lock);
	return n;
}

static int req_notify_cq(struct ibv_cq *base, int solicited)
{
	(void)solicited;
	pthread_mutex_lock(&lock);
	((struct cq *)base)->armed = 1;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Whether a key opens bytes to a right. */
static int opens(uint32_t key, uint64_t at, uint64_t n, int right)
{
	for (int i = 0; i < MEMORIES; i++)
		if (memories[i].used && memories[i].mr.rkey == key)
			return at >= (uintptr_t)memories[i].mr.addr && n <= memories[i].mr.length &&
			       at - (uintptr_t)memories[i].mr.addr <= memories[i].mr.length - n && (memories[i].access & right) == right;
	return 0;
}

static uint32_t perform(struct qp *q, struct qp *peer, const struct ibv_send_wr *w)
{
	uint64_t n = w->num_sge ? w->sg_list->length : 0;
	int reads = w->opcode == IBV_WR_RDMA_READ;
	if (q->broken)
		return 5;
	long each = atomic_load(&fake_verbs.flaps);
	int lost = each && (atomic_fetch_add(&fake_verbs.works, 1) + 1) % each == 0;
	if (lost && atomic_fetch_add(&fake_verbs.lost, 1) % 2 == 0)
		return 12;
	int status = atomic_exchange(&fake_verbs.status, 0);
	if (status)
		return (uint32_t)status;
	/* Its number is another's by now. */
	if (!peer || peer->broken || peer->peer != q->base.qp_num)
		return 12;
	if (n && !opens(w->rdma.rkey, w->rdma.remote_addr, n, reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE))
		return 10;
	if (n && reads) {
		memcpy((void *)(uintptr_t)w->sg_list->addr, (void *)(uintptr_t)w->rdma.remote_addr, n);
		atomic_fetch_add(&fake_verbs.read, (long)n);
	} else if (n) {
		memcpy((void *)(uintptr_t)w->rdma.remote_addr, (void *)(uintptr_t)w->sg_list->addr, n);
		if (w->opcode == IBV_WR_RDMA_WRITE)
			atomic_fetch_add(&fake_verbs.written, (long)n);
	}
	if (w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || w->opcode == IBV_WR_SEND) {
		if (peer->receives-- <= 0)
			return 13;
		struct ibv_wc wc = {.opcode = w->opcode == IBV_WR_SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
				    .imm_data = w->imm_data,
				    .byte_len = (uint32_t)n};
		complete(peer->cq, &wc);
	}
	return lost ? 12 : 0;
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	struct qp *q = (struct qp *)base;
	if (fails(&fake_verbs.no_post)) {
		*bad = w;
		return ENOMEM;
	}
	pthread_mutex_lock(&lock);
	struct qp *peer = q->peer < QUEUES ? queues[q->peer] : NULL;
	for (; w && !atomic_load(&fake_verbs.deaf); w = w->next) {
		struct ibv_wc wc = {.wr_id = w->wr_id, .status = perform(q, peer, w)};
		q->broken |= wc.status != 0;
		if (wc.status || (w->send_flags & IBV_SEND_SIGNALED))
			complete(q->cq, &wc);
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	(void)bad;
	pthread_mutex_lock(&lock);
	for (; w; w = w->next)
		((struct qp *)base)->receives++;
	pthread_mutex_unlock(&lock);
	return 0;
}

static void *made(size_t size)
{
	atomic_fetch_add(&fake_verbs.live, 1);
	return calloc(1, size);
}

static int gone(void *p)
{
	atomic_fetch_sub(&fake_verbs.live, 1);
	free(p);
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	if (fails(&fake_verbs.no_open)) {
		errno = EACCES;
		return NULL;
	}
	struct ibv_context *c = made(sizeof *c);
	c->device = d;
	c->cmd_fd = eventfd(0, EFD_CLOEXEC);
	c->ops.poll_cq = poll_cq;
	c->ops.req_notify_cq = req_notify_cq;
	c->ops.post_send = post_send;
	c->ops.post_recv = post_recv;
	return c;
}

int ibv_close_device(struct ibv_context *c)
{
	close(c->cmd_fd);
	return gone(c);
}

int ibv_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a)
{
	(void)c;
	a->state = 4;
	a->active_mtu = 3;
	return port == 1 ? 0 : EINVAL;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	if (fails(&fake_verbs.no_pd)) {
		errno = ENOMEM;
		return NULL;
	}
	struct ibv_pd *p = made(sizeof *p);
	p->context = c;
	return p;
}

int ibv_dealloc_pd(struct ibv_pd *p) { return gone(p); }

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t n, int access)
{
	static uint32_t keys = 100;
	if (fails(&fake_verbs.no_register)) {
		if (access & IBV_ACCESS_REMOTE_READ) /* and on demand */
			atomic_store(&fake_verbs.no_register, 1);
		errno = ENOMEM;
		return NULL;
	}
	pthread_mutex_lock(&lock);
	int i = 0;
	while (i < MEMORIES && memories[i].used)
		i++;
	if (i == MEMORIES)
		abort();
	memories[i].used = 1;
	memories[i].access = access;
	memories[i].mr = (struct ibv_mr){
		.context = pd->context, .pd = pd, .addr = addr, .length = n, .handle = (uint32_t)i, .lkey = keys, .rkey = keys};
	keys++;
	pthread_mutex_unlock(&lock);
	atomic_fetch_add(&fake_verbs.live, 1);
	atomic_fetch_add(&fake_verbs.memory, 1);
	return &memories[i].mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	if (fails(&fake_verbs.no_deregister))
		return EBUSY;
	pthread_mutex_lock(&lock);
	memories[mr->handle].used = 0;
	pthread_mutex_unlock(&lock);
	atomic_fetch_sub(&fake_verbs.live, 1);
	atomic_fetch_sub(&fake_verbs.memory, 1);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct ibv_comp_channel *h = made(sizeof *h);
	h->context = c;
	h->fd = eventfd(0, EFD_CLOEXEC);
	return h;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *h)
{
	close(h->fd);
	return gone(h);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *context, struct ibv_comp_channel *h, int vector)
{
	(void)n, (void)context, (void)vector;
	if (fails(&fake_verbs.no_cq)) {
		errno = ENOMEM;
		return NULL;
	}
	struct cq *q = made(sizeof *q);
	q->base.context = c;
	q->channel = h;
	return &q->base;
}

int ibv_destroy_cq(struct ibv_cq *q) { return gone(q); }

int ibv_get_cq_event(struct ibv_comp_channel *h, struct ibv_cq **q, void **context)
{
	uint64_t n;
	(void)q, (void)context;
	return read(h->fd, &n, sizeof n) == sizeof n ? 0 : -1;
}

void ibv_ack_cq_events(struct ibv_cq *q, unsigned int n) { (void)q, (void)n; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	if (fails(&fake_verbs.no_qp)) {
		atomic_store(&fake_verbs.no_qp, 1); /* without inline room, too */
		errno = EINVAL;
		return NULL;
	}
	if (atomic_load(&fake_verbs.flaps) &&
	    (a->cap.max_inline_data ? atomic_fetch_add(&fake_verbs.made, 1) + 1 : atomic_load(&fake_verbs.made)) % 7 == 0) {
		atomic_fetch_add(&fake_verbs.refused, a->cap.max_inline_data ? 1 : 0);
		errno = ENOMEM;
		return NULL;
	}
	pthread_mutex_lock(&lock);
	uint32_t i = 1;
	while (i < QUEUES && queues[i])
		i++;
	if (i == QUEUES)
		abort();
	struct qp *q = made(sizeof *q);
	q->base = (struct ibv_qp){.context = pd->context, .pd = pd, .qp_num = i};
	q->cq = (struct cq *)a->send_cq;
	q->peer = QUEUES;
	queues[i] = q;
	pthread_mutex_unlock(&lock);
	return &q->base;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *a, int mask)
{
	struct qp *q = (struct qp *)base;
	if (fails(&fake_verbs.no_modify))
		return EINVAL;
	if (mask & IBV_QP_PKEY_INDEX)
		fake_verbs.pkey = a->pkey_index;
	pthread_mutex_lock(&lock);
	if (mask & IBV_QP_DEST_QPN)
		q->peer = a->dest_qp_num;
	pthread_mutex_unlock(&lock);
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
	pthread_mutex_lock(&lock);
	queues[base->qp_num] = NULL;
	pthread_mutex_unlock(&lock);
	return gone(base);
}
