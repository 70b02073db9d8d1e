/*
 * Frames over a stream by RDMA that goes on over another queue pair when its own is lost
 * (remote/resume, whose client this is): what carrier_rdma.c has between tcp_net.c and
 * rdma_stream.c.
 */
#ifndef CW_SESSION_RDMA_LASTING_H
#define CW_SESSION_RDMA_LASTING_H

#include "session/rdma.h"
#include "session/tcp.h"

#pragma GCC visibility push(hidden)

/*
 * Of what was sent so many bytes are kept. The server counts a byte as received when its program
 * has read it; it gives credit as it reads, and what it has no credit given for is a window, 1 MiB,
 * at most. What one read of its has begun, a frame of 1 MiB, may be forgotten with its queue pair.
 * So 2 MiB do, and a frame that was not posted any more, and what is left of a ring.
 */
enum { CW_LASTING_KEPT = 6 << 20 };
extern int64_t cw_lasting_limit_ms; /* for so long it may be without a queue pair */

struct cw_lasting {
	struct cw_rdma *r;
	/* Has another queue pair be connected, where so many bytes of the stream were received: 0,
	 * and how many the server has; -ECONNRESET: it may be tried again; or final. Nobody sends,
	 * or receives, meanwhile. */
	int (*again)(struct cw_session *s, uint64_t got, int64_t until, uint64_t *far);
	_Atomic int on; /* it goes on */
	struct cw_lock wire;
	uint8_t *kept; /* by position, modulo; and up to where; under wire, as is what is sent */
	uint64_t end;
	/* The receiving thread's. Bytes [at, to) of buf have come, and are none of the stream's
	 * yet. */
	int receiver;
	/* Of a frame that has begun; of the stream; of that acknowledged. */
	uint64_t rest, got, told;
	size_t at, to;
	uint8_t buf[65536];
};
extern struct cw_lasting cw_lasting;

/* Begins at a stream's first frame. 0 or -errno. */
int cw_lasting_begin(struct cw_rdma *r);
/* Sends a frame, behind its header. 0 or -errno. One thread at a time. */
int cw_lasting_send(struct cw_session *s, struct iovec *iov, int n);
/* Receives some of the session's frames. One thread does. 0: the end; or -errno. */
ssize_t cw_lasting_recv(struct cw_session *s, void *p, size_t n, int64_t until);
/* How many bytes of the queue pair's have left, as cw_rdma_drain, for a process that ends. */
int64_t cw_lasting_leave(int64_t until);
void cw_lasting_free(void);

#pragma GCC visibility pop
#endif
