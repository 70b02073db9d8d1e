/* Both ends of a session by RDMA agree, out of band, on a pair of queue pairs: the client's part of
 * remote/verbs/upgrade.go. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "session/rdma.h"

enum { WORD = 16, PROBE_MS = 10000, PROBE_AGAIN_MS = 2000 };

/* Has some bytes go each way: 0, or why they do not. */
static int probe(struct cw_rdma *r, const struct cw_rdma_port *port, int64_t patience_ms, char *why, size_t cap)
{
	uint8_t b[WORD] = "CWVBYE\0\1", back[WORD];
	struct iovec v = {b, WORD};
	int64_t until = cw_now_ms() + patience_ms;
	int err = cw_rdma_send(r, &v, 1);
	for (size_t n = 0; err == 0 && n < WORD;) {
		ssize_t k = cw_rdma_recv(r, back + n, WORD - n, until);
		if (k <= 0)
			err = k == 0 ? -EPIPE : (int)k;
		else
			n += (size_t)k;
	}
	if (err == -ETIMEDOUT)
		snprintf(why, cap, "nothing comes through within %d s (%s port %d)", (int)(patience_ms / 1000), port->device, port->number);
	else if (err != 0)
		cw_rdma_why(r, why, cap);
	else if (memcmp(b, back, WORD))
		snprintf(why, cap, "other bytes came than were sent");
	return err;
}

int cw_rdma_lift(struct cw_session *s, struct cw_rdma **at, const struct cw_rdma_port *port, int *reach, int again)
{
	struct cw_rdma_offer own = {0}, peer;
	char why[400] = "";
	int err = again ? cw_rdma_reopen(*at, port, &own, why, sizeof why) : cw_rdma_open(at, port, &own, why, sizeof why);
	if (err != 0) {
		*at = again ? *at : NULL;
		cw_rdma_offer_send(s, &own, why);
		if (err == -ECONNRESET) {
			int heard = cw_rdma_offer_recv(s, &peer);
			err = heard == 0 || heard == -EOPNOTSUPP ? err : heard;
		}
		cw_why(s, "%s", why);
		return err;
	}
	err = cw_rdma_offer_send(s, &own, "");
	if (err == 0)
		err = cw_rdma_offer_recv(s, &peer);
	if (err != 0)
		return again && err == -EOPNOTSUPP ? -ECONNRESET : err;
	if (own.link != peer.link)
		snprintf(why, sizeof why, "this end and the GPU server's are of different links");
	else
		cw_rdma_connect(*at, port, &own, &peer, why, sizeof why);
	*reach = peer.reach;
	err = cw_rdma_agree(s, why);
	if (err == 0) {
		probe(*at, port, again ? PROBE_AGAIN_MS : PROBE_MS, why, sizeof why);
		err = cw_rdma_agree(s, why);
	}
	return again && err == -EIO ? -ECONNRESET : err;
}
