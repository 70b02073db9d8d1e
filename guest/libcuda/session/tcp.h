/* Between carrier_tcp.c (open, regions, waits) and tcp_net.c (frames in both directions). */
#ifndef CW_SESSION_TCP_H
#define CW_SESSION_TCP_H

#include "session/internal.h"
#include "session/tcp_frames.h"

enum { CW_TCP_REGIONS = 1024 };

#pragma GCC visibility push(hidden)

struct cw_tcp {
	struct cw_lock send_lock, region_lock;
	uint64_t pushed; /* ring position, under send_lock */
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
int cw_tcp_take(int fd, void *out, size_t n);
int cw_tcp_start(struct cw_session *s);

#pragma GCC visibility pop
#endif
