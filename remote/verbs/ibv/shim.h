/* libibverbs, loaded when it is asked for, and its calls in forms that take and give plain
 * numbers. */
#ifndef CW_VERBS_SHIM_H
#define CW_VERBS_SHIM_H

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

struct cw_lib {
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	int (*dereg_mr)(struct ibv_mr *);
	/* Null before rdma-core 34. */
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
	int (*destroy_comp_channel)(struct ibv_comp_channel *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
	void (*ack_cq_events)(struct ibv_cq *, unsigned int);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
};

/* cw_load fills lib in. It returns null, or the name of what is missing; text says why the library
 * itself cannot be loaded. */
static inline const char *cw_load(struct cw_lib *lib, const char *name, char **text)
{
	static const struct {
		const char *name;
		size_t at;
	} symbols[] = {
#define CW_SYMBOL(x) {"ibv_" #x, offsetof(struct cw_lib, x)}
		CW_SYMBOL(get_device_list), CW_SYMBOL(free_device_list),    CW_SYMBOL(get_device_name),
		CW_SYMBOL(open_device),	    CW_SYMBOL(close_device),	    CW_SYMBOL(query_port),
		CW_SYMBOL(alloc_pd),	    CW_SYMBOL(dealloc_pd),	    CW_SYMBOL(reg_mr),
		CW_SYMBOL(dereg_mr),	    CW_SYMBOL(create_comp_channel), CW_SYMBOL(destroy_comp_channel),
		CW_SYMBOL(create_cq),	    CW_SYMBOL(destroy_cq),	    CW_SYMBOL(get_cq_event),
		CW_SYMBOL(ack_cq_events),   CW_SYMBOL(create_qp),	    CW_SYMBOL(modify_qp),
		CW_SYMBOL(destroy_qp),
#undef CW_SYMBOL
	};
	void *h = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		*text = strdup(dlerror());
		return name;
	}
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *p = dlsym(h, symbols[i].name);
		if (!p) {
			dlclose(h);
			return symbols[i].name;
		}
		memcpy((char *)lib + symbols[i].at, &p, sizeof p);
	}
	void *p = dlsym(h, "ibv_reg_dmabuf_mr");
	memcpy(&lib->reg_dmabuf_mr, &p, sizeof p);
	return NULL;
}

/* cw_open opens the device of a name and a protection domain there. */
static inline int cw_open(struct cw_lib *lib, const char *name, struct ibv_context **ctx, struct ibv_pd **pd)
{
	int n = 0, err = ENODEV;
	struct ibv_device **list = lib->get_device_list(&n);
	if (!list)
		return errno ? errno : ENOSYS;
	for (int i = 0; i < n; i++) {
		if (strcmp(lib->get_device_name(list[i]), name))
			continue;
		err = 0;
		*ctx = lib->open_device(list[i]);
		if (!*ctx)
			err = errno ? errno : EIO;
		break;
	}
	lib->free_device_list(list);
	if (err)
		return err;
	*pd = lib->alloc_pd(*ctx);
	if (*pd)
		return 0;
	err = errno ? errno : ENOMEM;
	lib->close_device(*ctx);
	return err;
}

static inline int cw_close(struct cw_lib *lib, struct ibv_context *ctx, struct ibv_pd *pd)
{
	int err = lib->dealloc_pd(pd);
	return err ? err : lib->close_device(ctx) ? EIO : 0;
}

static inline int cw_mtu(struct cw_lib *lib, struct ibv_context *ctx, int port, uint32_t *mtu)
{
	struct ibv_port_attr a = {0};
	int err = lib->query_port(ctx, (uint8_t)port, &a);
	*mtu = a.active_mtu;
	return err;
}

static inline int cw_register(struct cw_lib *lib, struct ibv_pd *pd, uint64_t addr, size_t size, int access, struct ibv_mr **mr)
{
	*mr = lib->reg_mr(pd, (void *)(uintptr_t)addr, size, access);
	return *mr ? 0 : errno ? errno : ENOMEM;
}

/* cw_register_file registers size bytes of a dma-buf from off on, under the addresses from addr
 * on. */
static inline int cw_register_file(struct cw_lib *lib, struct ibv_pd *pd, int fd, uint64_t off, size_t size, uint64_t addr, int access,
				   struct ibv_mr **mr)
{
	if (!lib->reg_dmabuf_mr)
		return ENOSYS;
	*mr = lib->reg_dmabuf_mr(pd, off, size, addr, fd, access);
	return *mr ? 0 : errno ? errno : ENOMEM;
}

static inline int cw_deregister(struct cw_lib *lib, struct ibv_mr *mr) { return lib->dereg_mr(mr); }

/* A queue pair, its completion queue and what tells of completions. */
struct cw_queue {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned int events; /* that are not acknowledged */
};

static inline int cw_queue_close(struct cw_lib *lib, struct cw_queue *q)
{
	int err = 0;
	if (q->qp)
		err = lib->destroy_qp(q->qp);
	if (!err && q->events)
		lib->ack_cq_events(q->cq, q->events);
	if (!err && q->cq)
		err = lib->destroy_cq(q->cq);
	if (!err && q->channel)
		err = lib->destroy_comp_channel(q->channel);
	return err;
}

/* cw_queue_open makes one. *inlined is how many bytes may be inline: what is asked for, or none. */
static inline int cw_queue_open(struct cw_lib *lib, struct ibv_context *ctx, struct ibv_pd *pd, int sends, int receives, uint32_t *inlined,
				struct cw_queue *q)
{
	memset(q, 0, sizeof *q);
	errno = 0;
	q->channel = lib->create_comp_channel(ctx);
	if (q->channel)
		q->cq = lib->create_cq(ctx, sends + receives, NULL, q->channel, 0);
	for (int turn = 0; q->cq && !q->qp && turn < 2; turn++) {
		struct ibv_qp_init_attr a = {.send_cq = q->cq, .recv_cq = q->cq, .qp_type = IBV_QPT_RC};
		a.cap = (struct ibv_qp_cap){(uint32_t)sends, (uint32_t)receives, 1, 1, turn ? 0 : *inlined};
		q->qp = lib->create_qp(pd, &a);
		*inlined = a.cap.max_inline_data;
	}
	if (q->qp)
		return 0;
	int err = errno ? errno : ENOMEM;
	cw_queue_close(lib, q);
	return err;
}

struct cw_path {
	int port, gid_index;
	uint32_t mtu, own_psn, peer_psn, peer_qp;
	uint16_t pkey_index, peer_lid;
	int global;
	uint8_t peer_gid[16];
	uint8_t timeout;
};

/* cw_connect takes a queue pair through its states. *step says in which an error came. */
static inline int cw_connect(struct cw_lib *lib, struct ibv_qp *qp, const struct cw_path *p, const char **step)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = p->pkey_index,
		.port_num = (uint8_t)p->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	*step = "INIT";
	int err = lib->modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (err)
		return err;
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = p->mtu,
		.dest_qp_num = p->peer_qp,
		.rq_psn = p->peer_psn,
		.max_dest_rd_atomic = 8,
		.min_rnr_timer = 12, /* 0.64 ms */
		.ah_attr = {.dlid = p->peer_lid,
			    .port_num = (uint8_t)p->port,
			    .is_global = (uint8_t)p->global,
			    .sgid_index = (uint8_t)p->gid_index,
			    .hop_limit = 64},
	};
	memcpy(rtr.ah_attr.dgid.raw, p->peer_gid, 16);
	*step = "RTR";
	err = lib->modify_qp(qp, &rtr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = p->own_psn,
		.timeout = p->timeout,
		.retry_cnt = 6, /* of three bits; by 7 soft RoCE means for ever */
		.rnr_retry = 7, /* for ever */
		.max_rd_atomic = 8,
	};
	*step = "RTS";
	return lib->modify_qp(
		qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* A work request, and a completion. */
struct cw_work {
	uint64_t id, local, remote;
	uint32_t length, lkey, rkey, immediate, opcode, flags;
};

enum { CW_CHAIN = 16 };

/* cw_post posts up to CW_CHAIN work requests with one ring of the doorbell. */
static inline int cw_post(struct ibv_qp *qp, const struct cw_work *w, int n)
{
	struct ibv_send_wr wr[CW_CHAIN] = {0}, *bad;
	struct ibv_sge sge[CW_CHAIN];
	for (int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){w[i].local, w[i].length, w[i].lkey};
		wr[i].wr_id = w[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = w[i].length != 0;
		wr[i].opcode = w[i].opcode;
		wr[i].send_flags = w[i].flags;
		wr[i].imm_data = htonl(w[i].immediate);
		wr[i].rdma.remote_addr = w[i].remote;
		wr[i].rdma.rkey = w[i].rkey;
	}
	return qp->context->ops.post_send(qp, wr, &bad);
}

static inline int cw_post_receive(struct ibv_qp *qp, int n)
{
	int err = 0;
	while (n > 0 && !err) {
		struct ibv_recv_wr wr[CW_CHAIN] = {0}, *bad;
		int part = n < CW_CHAIN ? n : CW_CHAIN;
		for (int i = 0; i + 1 < part; i++)
			wr[i].next = &wr[i + 1];
		err = qp->context->ops.post_recv(qp, wr, &bad);
		n -= part;
	}
	return err;
}

struct cw_completion {
	uint64_t id;
	uint32_t status, vendor, received, immediate;
};

/*
 * cw_poll takes up to CW_CHAIN completions; negative: the queue is broken. Of one that failed only
 * id and status mean anything. What arrives and is no WRITE WITH IMMEDIATE, a SEND of a peer that
 * keeps no rules, has the immediate 0, which says nothing and ends the connection; taken for work
 * of this end's it would say that older work is under way still.
 */
static inline int cw_poll(struct ibv_cq *cq, struct cw_completion *c)
{
	struct ibv_wc wc[CW_CHAIN];
	int n = cq->context->ops.poll_cq(cq, CW_CHAIN, wc);
	for (int i = 0; i < n; i++) {
		c[i] = (struct cw_completion){wc[i].wr_id, wc[i].status, wc[i].vendor_err, 0, 0};
		if (!wc[i].status && wc[i].opcode >= IBV_WC_RECV) {
			c[i].received = 1;
			c[i].immediate = wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM ? ntohl(wc[i].imm_data) : 0;
		}
	}
	return n;
}

static inline int cw_arm(struct ibv_cq *cq) { return cq->context->ops.req_notify_cq(cq, 0); }

/* cw_event takes one event of the channel, which does not block. */
static inline int cw_event(struct cw_lib *lib, struct cw_queue *q)
{
	struct ibv_cq *cq;
	void *context;
	if (lib->get_cq_event(q->channel, &cq, &context))
		return errno ? errno : EIO;
	q->events++;
	return 0;
}

#endif
