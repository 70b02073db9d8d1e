/* The channel out of band of a session by RDMA, by this VM's host: the offers and reasons of
 * remote/verbs/offer.go and upgrade.go. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "session/printable.h"
#include "session/rdma.h"

enum { OFFER = 64, REASON = 400, ANSWER_MS = 30000 };

struct cw_rdma_oob cw_rdma_oob;

int cw_rdma_oob_send(struct cw_session *s, const void *p, size_t n)
{
	ssize_t done;
	int fd = cw_fd(s);
	do
		done = cw_rdma_oob.mount ? pwrite(fd, p, n, CW_FILE_DIRECT) : send(fd, p, n, MSG_NOSIGNAL);
	while (done < 0 && errno == EINTR);
	return done == (ssize_t)n ? 0 : done < 0 ? -errno : -EIO;
}

/* Fills the buffer: -EPIPE at the end, -EAGAIN when nothing came for a while. */
static int recv_some(struct cw_session *s)
{
	ssize_t n;
	int fd = cw_fd(s);
	if (fd < 0)
		return -EPIPE;
	if (cw_rdma_oob.mount) {
		n = pread(fd, cw_rdma_oob.buf, sizeof cw_rdma_oob.buf, CW_FILE_DIRECT);
		if (n == 0)
			return -EAGAIN;
	} else {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		if (poll(&p, 1, 250) < 1)
			return -EAGAIN;
		n = recv(fd, cw_rdma_oob.buf, sizeof cw_rdma_oob.buf, 0);
	}
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return -EAGAIN;
	if (n <= 0)
		return -EPIPE;
	cw_rdma_oob.at = 0;
	cw_rdma_oob.end = (size_t)n;
	return 0;
}

int cw_rdma_oob_recv(struct cw_session *s, void *out, size_t n, int64_t until)
{
	uint8_t *p = out;
	while (n > 0) {
		size_t k = cw_rdma_oob.end - cw_rdma_oob.at < n ? cw_rdma_oob.end - cw_rdma_oob.at : n;
		memcpy(p, cw_rdma_oob.buf + cw_rdma_oob.at, k);
		cw_rdma_oob.at += k;
		p += k;
		n -= k;
		if (n == 0)
			break;
		int err = recv_some(s);
		if (err == -EAGAIN && (atomic_load(&cw_rdma_oob.stop) || (until && cw_now_ms() >= until)))
			return -ETIMEDOUT;
		if (err != 0 && err != -EAGAIN)
			return err;
	}
	return 0;
}

void cw_rdma_put(uint8_t *b, uint64_t v, int n)
{
	for (int i = 0; i < n; i++)
		b[i] = (uint8_t)(v >> 8 * i);
}

uint64_t cw_rdma_get(const uint8_t *b, int n)
{
	uint64_t v = 0;
	for (int i = 0; i < n; i++)
		v |= (uint64_t)b[i] << 8 * i;
	return v;
}

#define OFFER_MAGIC "CWVERBS\x01"

int cw_rdma_offer_send(struct cw_session *s, const struct cw_rdma_offer *o, const char *declined)
{
	uint8_t b[OFFER + REASON] = OFFER_MAGIC;
	size_t n = strlen(declined) < REASON ? strlen(declined) : REASON;
	cw_rdma_put(b + 8, n, 2);
	b[10] = (uint8_t)o->link;
	b[11] = (uint8_t)o->mtu;
	cw_rdma_put(b + 12, o->lid, 2);
	cw_rdma_put(b + 16, o->queue, 4);
	cw_rdma_put(b + 20, o->psn, 4);
	cw_rdma_put(b + 24, o->key, 4);
	cw_rdma_put(b + 28, o->size, 4);
	cw_rdma_put(b + 32, o->address, 8);
	memcpy(b + 40, o->gid, 16);
	memcpy(b + OFFER, declined, n);
	return cw_rdma_oob_send(s, b, OFFER + n);
}

/* As remote/verbs/offer.go checks it. Its numbers become the queue pair's path, and where this end
 * writes at the other. */
static int sound(const struct cw_rdma_offer *o)
{
	static const uint8_t none[16];
	int has_gid = memcmp(o->gid, none, sizeof none) != 0;
	return (o->link == CW_RDMA_ETHERNET ? has_gid : o->link == CW_RDMA_INFINIBAND && (o->lid != 0 || has_gid)) && o->mtu >= 1 &&
	       o->mtu <= 5 && o->queue != 0 && o->queue >> 24 == 0 && o->psn >> 24 == 0 && o->size >= CW_RDMA_LEAST_WINDOW &&
	       o->size <= CW_RDMA_WINDOW && (o->size & (o->size - 1)) == 0 && o->address + o->size >= o->address;
}

int cw_rdma_offer_recv(struct cw_session *s, struct cw_rdma_offer *o)
{
	uint8_t b[OFFER] = {0};
	char reason[REASON + 1];
	int err = cw_rdma_oob_recv(s, b, OFFER, cw_now_ms() + ANSWER_MS);
	size_t n = (size_t)cw_rdma_get(b + 8, 2);
	if (err == 0 && (memcmp(b, OFFER_MAGIC, 8) || n > REASON))
		err = -EPROTO;
	if (err == 0)
		err = cw_rdma_oob_recv(s, reason, n, cw_now_ms() + ANSWER_MS);
	if (err != 0) {
		cw_why(s, "the GPU server says nothing of its RDMA: %s", strerror(-err));
		return err;
	}
	cw_printable(reason, n);
	if (n > 0) {
		cw_why(s, "the GPU server: %.200s", reason);
		return -EOPNOTSUPP;
	}
	*o = (struct cw_rdma_offer){.link = b[10],
				    .reach = b[14] == 1,
				    .mtu = b[11],
				    .lid = (uint16_t)cw_rdma_get(b + 12, 2),
				    .queue = (uint32_t)cw_rdma_get(b + 16, 4),
				    .psn = (uint32_t)cw_rdma_get(b + 20, 4),
				    .key = (uint32_t)cw_rdma_get(b + 24, 4),
				    .size = (uint32_t)cw_rdma_get(b + 28, 4),
				    .address = cw_rdma_get(b + 32, 8)};
	memcpy(o->gid, b + 40, 16);
	if (!sound(o)) {
		cw_why(s, "the GPU server's RDMA offer is malformed");
		return -EPROTO;
	}
	return 0;
}

/* Sends how this end fared, and receives how the other did. own: why not, empty if all is well. */
int cw_rdma_agree(struct cw_session *s, const char *own)
{
	uint8_t b[2 + REASON];
	size_t n = strlen(own) < REASON ? strlen(own) : REASON;
	cw_rdma_put(b, n, 2);
	memcpy(b + 2, own, n);
	int err = cw_rdma_oob_send(s, b, 2 + n);
	if (err == 0)
		err = cw_rdma_oob_recv(s, b, 2, cw_now_ms() + ANSWER_MS);
	n = err == 0 ? (size_t)cw_rdma_get(b, 2) : 0;
	if (n > REASON)
		err = -EPROTO;
	char text[REASON + 1];
	if (err == 0)
		err = cw_rdma_oob_recv(s, text, n, cw_now_ms() + ANSWER_MS);
	cw_printable(text, err == 0 ? n : 0);
	if (own[0])
		cw_why(s, "%s", own);
	else if (err != 0)
		cw_why(s, "the GPU server does not go on: %s", strerror(-err));
	else if (n > 0)
		cw_why(s, "the GPU server: %.200s", text);
	return own[0] || n > 0 ? -EIO : err;
}
