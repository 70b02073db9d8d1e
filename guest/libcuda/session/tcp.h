/* Between carrier_tcp.c (open, regions, waits), tcp_net.c (frames in both directions) and
 * carrier_rdma.c, whose frames go by RDMA. */
#ifndef CW_SESSION_TCP_H
#define CW_SESSION_TCP_H

#include <sys/uio.h>

#include "session/internal.h"
#include "session/tcp_frames.h"

enum { CW_TCP_REGIONS = 1024 };

#pragma GCC visibility push(hidden)

/* What frames go over. */
struct cw_stream {
	int (*send)(struct cw_session *s, struct iovec *iov, int n); /* all of it: 0 or -errno */
	/* Some; 0: the end; or -errno. */
	ssize_t (*recv)(struct cw_session *s, void *p, size_t n);
	void (*cut)(struct cw_session *s); /* ends it, for both ends */
};
extern const struct cw_stream cw_tcp_plain;

struct cw_tcp {
	const struct cw_stream *io;
	struct cw_lock send_lock, region_lock;
	uint64_t pushed;	/* ring position, under send_lock */
	_Atomic uint64_t given; /* likewise, ahead of what is being sent: the server has no more */
	struct {
		uint32_t id;
		uint8_t *va;
		uint64_t size;	  /* 0: unused */
	} region[CW_TCP_REGIONS]; /* under region_lock */
	_Atomic int gone, running;
	/* incoming bytes: net thread only, and open before it starts */
	uint8_t buf[65536];
	size_t at, end;
};
extern struct cw_tcp cw_tcp;

/* Sends one frame, and records that were published meanwhile. */
int cw_tcp_send(struct cw_session *s, uint16_t type, uint16_t flags, uint64_t arg, const void *p, size_t n);
/* Pushes what was published since the last push, or leaves it to the thread that is sending. */
void cw_tcp_publish(struct cw_session *s);
/* Receives exactly n bytes. */
int cw_tcp_take(struct cw_session *s, void *out, size_t n);
/* Begins on a stream, which need not be there yet; says hello over it and hears the welcome; starts
 * the thread that receives. */
void cw_tcp_begin(const struct cw_stream *io);
int cw_tcp_greet(struct cw_session *s);
int cw_tcp_start(struct cw_session *s);

/* What carriers of frames have in common: see struct cw_carrier. */
int cw_tcp_add_region(struct cw_session *s, struct cw_region *r);
void cw_tcp_end_region(struct cw_session *s, struct cw_region *r);
int cw_tcp_alive(struct cw_session *s);
int cw_tcp_wait_slot(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word);

#pragma GCC visibility pop
#endif
