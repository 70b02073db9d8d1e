/* What rdma_device.c opens and rdma_stream.c moves bytes over. */
#ifndef CW_SESSION_RDMA_STREAM_H
#define CW_SESSION_RDMA_STREAM_H

#include "session/rdma.h"

#include "ibv/shim.h" /* of remote/verbs: the hosts' end has the same */

#pragma GCC visibility push(hidden)

enum { CW_RDMA_RECEIVES = 256, CW_RDMA_SENDS = 256 };
struct cw_rdma {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct cw_queue queue;
	struct cw_own device_own, events_own; /* what ctx and queue have descriptors of */
	struct ibv_mr *window_mr, *out_mr;
	uint8_t *window, *out;
	uint32_t out_size, inlined, peer_key;
	uint64_t peer_address;

	struct cw_lock lock;
	_Atomic uint32_t turn, waiters;
	int polling;
	int software; /* its port's */
	int err;      /* final: -errno */
	int flushed;
	char why[400];
	/* As in remote/verbs.Conn. */
	uint64_t sent, credited, posted, done, got, taken, final;
	uint64_t owed_bytes;
	uint32_t messages, unsignaled, owed_count;
	int ends;
	/* Whether the link is there: what had been done when that was looked at last, when that
	 * was, and the time since it changed. */
	uint64_t progress;
	int64_t looked;
	uint32_t quiet_ms;
	int probing;
};

extern struct cw_lib cw_rdma_lib;
/* Whether those are still theirs: libibverbs asks the kernel by their numbers. */
int cw_rdma_has_files(const struct cw_rdma *r);
/* Begins anew with another queue pair; -errno: the stream has ended. */
int cw_rdma_fresh(struct cw_rdma *r);

#pragma GCC visibility pop
#endif
