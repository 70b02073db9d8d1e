/*
 * A libibverbs.so.1 for tests that joins processes of one host: no adapter, no kernel module, no
 * packets. Queue pairs, completion queues and registered memory stand in a file that all processes
 * map (fabric.h), and who posts a work request does it then and there: by process_vm_writev(2) and
 * process_vm_readv(2) from and to the other process's memory, under the keys and rights that this
 * one has registered. So the code above is what it is over an adapter, in processes, network
 * namespaces and hosts' configurations of its own; what an adapter does by itself, in its own time,
 * is not shown: that work is under way while its poster goes on, packets that are lost or late,
 * what is pinned, and any speed.
 *
 * ONEHOST names the folder with that file, "fabric", which begins with a struct counts, and the
 * FIFOs by which completion queues wake who waits. Devices are those that sysfs shows
 * (scripts/lib/remote-rdma.sh has mounts with such), and a queue pair reaches another by an address
 * of the other's port.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi.h"
#include "fabric.h"

#define SYSFS "/sys/class/infiniband"

enum { MTU_1024 = 3, ACTIVE = 4 };

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

static pthread_once_t once = PTHREAD_ONCE_INIT;

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
