/*
 * What is used of libibverbs' binary interface, after infiniband/verbs.h of rdma-core, so that
 * building needs no RDMA headers. The layouts are those of every libibverbs.so.1; the assertions at
 * the end hold them to the header's numbers.
 *
 * Copyright (c) 2004, 2005 Topspin Communications.  All rights reserved.
 * Copyright (c) 2004, 2011-2012 Intel Corporation.  All rights reserved.
 * Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc.  All rights reserved.
 * Copyright (c) 2005 PathScale, Inc.  All rights reserved.
 *
 * OpenIB.org BSD license:
 *
 *     Redistribution and use in source and binary forms, with or
 *     without modification, are permitted provided that the following
 *     conditions are met:
 *
 *      - Redistributions of source code must retain the above
 *        copyright notice, this list of conditions and the following
 *        disclaimer.
 *
 *      - Redistributions in binary form must reproduce the above
 *        copyright notice, this list of conditions and the following
 *        disclaimer in the documentation and/or other materials
 *        provided with the distribution.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND,
 * EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
 * MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
 * NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS
 * BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN
 * ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
 * CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
#ifndef CW_VERBS_ABI_H
#define CW_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

struct ibv_device;
struct ibv_cq;
struct ibv_qp;
struct ibv_send_wr;
struct ibv_recv_wr;
struct ibv_wc;

struct ibv_context {
	struct ibv_device *device;
	struct {
		void *before_poll[11];
		int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
		int (*req_notify_cq)(struct ibv_cq *, int);
		void *before_post[12];
		int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
		int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
		void *rest[5];
	} ops;
	int cmd_fd;
};

struct ibv_pd {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct ibv_comp_channel {
	struct ibv_context *context;
	int fd;
	int refcnt;
};

struct ibv_cq {
	struct ibv_context *context;
};

struct ibv_qp {
	struct ibv_context *context;
	void *qp_context;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	void *srq;
	uint32_t handle;
	uint32_t qp_num;
};

/* What the library function of this name fills in; the last of it that is of interest is
 * active_mtu. */
struct ibv_port_attr {
	uint32_t state, max_mtu, active_mtu;
	int gid_tbl_len;
	uint32_t rest[28];
};

union ibv_gid {
	uint8_t raw[16];
	uint64_t align;
};

struct ibv_ah_attr {
	union ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct ibv_qp_cap {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct ibv_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq, *recv_cq;
	void *srq;
	struct ibv_qp_cap cap;
	uint32_t qp_type;
	int sq_sig_all;
};

struct ibv_qp_attr {
	uint32_t qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer;
	uint8_t port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
	uint32_t rate_limit;
};

struct ibv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	uint32_t opcode;
	uint32_t send_flags;
	uint32_t imm_data; /* big-endian */
	struct {
		uint64_t remote_addr;
		uint32_t rkey;
	} rdma;
	uint64_t rest[9];
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

struct ibv_wc {
	uint64_t wr_id;
	uint32_t status, opcode, vendor_err, byte_len;
	uint32_t imm_data; /* big-endian */
	uint32_t qp_num, src_qp, wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};

enum {
	IBV_QP_STATE = 1,
	IBV_QP_ACCESS_FLAGS = 0x8,
	IBV_QP_PKEY_INDEX = 0x10,
	IBV_QP_PORT = 0x20,
	IBV_QP_AV = 0x80,
	IBV_QP_PATH_MTU = 0x100,
	IBV_QP_TIMEOUT = 0x200,
	IBV_QP_RETRY_CNT = 0x400,
	IBV_QP_RNR_RETRY = 0x800,
	IBV_QP_RQ_PSN = 0x1000,
	IBV_QP_MAX_QP_RD_ATOMIC = 0x2000,
	IBV_QP_MIN_RNR_TIMER = 0x8000,
	IBV_QP_SQ_PSN = 0x10000,
	IBV_QP_MAX_DEST_RD_ATOMIC = 0x20000,
	IBV_QP_DEST_QPN = 0x100000,
};

enum { IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPT_RC = 2 };
enum { IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4, IBV_ACCESS_ON_DEMAND = 64 };
enum { IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_SEND = 2, IBV_WR_RDMA_READ = 4 };
enum { IBV_SEND_SIGNALED = 2, IBV_SEND_INLINE = 8, IBV_WC_RECV = 128, IBV_WC_RECV_RDMA_WITH_IMM = 129 };

#define CW_AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
CW_AT(ibv_context, ops.poll_cq, 96);
CW_AT(ibv_context, ops.req_notify_cq, 104);
CW_AT(ibv_context, ops.post_send, 208);
CW_AT(ibv_context, ops.post_recv, 216);
CW_AT(ibv_context, cmd_fd, 264);
CW_AT(ibv_mr, lkey, 36);
CW_AT(ibv_mr, rkey, 40);
CW_AT(ibv_comp_channel, fd, 8);
CW_AT(ibv_qp, qp_num, 52);
CW_AT(ibv_port_attr, gid_tbl_len, 12);
CW_AT(ibv_ah_attr, dlid, 24);
CW_AT(ibv_ah_attr, is_global, 29);
CW_AT(ibv_ah_attr, port_num, 30);
CW_AT(ibv_qp_init_attr, cap, 32);
CW_AT(ibv_qp_init_attr, qp_type, 52);
CW_AT(ibv_qp_attr, cap, 36);
CW_AT(ibv_qp_attr, ah_attr, 56);
CW_AT(ibv_qp_attr, pkey_index, 120);
CW_AT(ibv_qp_attr, max_rd_atomic, 126);
CW_AT(ibv_qp_attr, port_num, 129);
CW_AT(ibv_qp_attr, rnr_retry, 132);
CW_AT(ibv_send_wr, send_flags, 32);
CW_AT(ibv_send_wr, imm_data, 36);
CW_AT(ibv_send_wr, rdma, 40);
CW_AT(ibv_wc, wc_flags, 36);
_Static_assert(sizeof(struct ibv_ah_attr) == 32, "ibv_ah_attr");
_Static_assert(sizeof(struct ibv_qp_init_attr) == 64, "ibv_qp_init_attr");
_Static_assert(sizeof(struct ibv_qp_attr) == 144, "ibv_qp_attr");
_Static_assert(sizeof(struct ibv_sge) == 16, "ibv_sge");
_Static_assert(sizeof(struct ibv_send_wr) == 128, "ibv_send_wr");
_Static_assert(sizeof(struct ibv_recv_wr) == 32, "ibv_recv_wr");
_Static_assert(sizeof(struct ibv_wc) == 48, "ibv_wc");

#endif
