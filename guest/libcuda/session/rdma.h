/*
 * A stream of bytes to a GPU server by RDMA WRITEs of a reliable connection: the client's end of
 * remote/verbs, which says how it goes (doc.go, conn.go). rdma_port.c finds a port of the VM's,
 * rdma_stream.c opens it and moves bytes, carrier_rdma.c agrees on it with the server and carries a
 * session over it.
 */
#ifndef CW_SESSION_RDMA_H
#define CW_SESSION_RDMA_H

#include <sys/types.h>
#include <sys/uio.h>

#include "session/internal.h"

#pragma GCC visibility push(hidden)

enum { CW_RDMA_WINDOW = 1 << 20, CW_RDMA_LEAST_WINDOW = 64 << 10, CW_RDMA_INFINIBAND = 1, CW_RDMA_ETHERNET = 2 };

/* A port of an RDMA device, and the address of it that is used. */
struct cw_rdma_port {
	char device[64];
	int number, link, gid_index;
	int software; /* the kernel makes its packets (soft RoCE) */
	uint16_t lid;
	uint8_t gid[16];
};

/* Active ports, at most max of them. name: NULL or "auto" for all, DEVICE, or DEVICE/PORT. */
int cw_rdma_ports(const char *sysfs, const char *name, struct cw_rdma_port *out, int max);
/* Of ports the one that leads to a server's address, with its GID; failing that the first that has
 * an address at all. NULL: none has. */
struct cw_rdma_port *cw_rdma_choose(const char *sysfs, struct cw_rdma_port *ports, int n, const char *server);

/* What an end says of itself (remote/verbs/offer.go). */
struct cw_rdma_offer {
	int link, reach;
	uint32_t mtu, queue, psn, key, size;
	uint64_t address;
	uint16_t lid;
	uint8_t gid[16];
};

struct cw_rdma;

/* Loads libibverbs.so.1, once. NULL, or why it cannot. */
const char *cw_rdma_load(void);
/* Opens a port: memory, queue pair, what the other end is told. 0 or -errno, and why. */
int cw_rdma_open(struct cw_rdma **out, const struct cw_rdma_port *port, struct cw_rdma_offer *own, char *why, size_t cap);
/* Readies the queue pair for a peer whose offer was checked. 0 or -errno, and why. */
int cw_rdma_connect(struct cw_rdma *r, const struct cw_rdma_port *port, const struct cw_rdma_offer *own, const struct cw_rdma_offer *peer,
		    char *why, size_t cap);
/* Sends all bytes; one thread at a time. 0 or -errno. */
int cw_rdma_send(struct cw_rdma *r, struct iovec *iov, int n);
/* Receives at least a byte, at most n, until a time (cw_now_ms; 0: for ever); one thread at a time.
 * 0: the peer has said that this was all. */
ssize_t cw_rdma_recv(struct cw_rdma *r, void *p, size_t n, int64_t until);
/* Waits a while until the peer's adapter has what was sent. How much that was, or -errno. */
int64_t cw_rdma_drain(struct cw_rdma *r, int64_t until);
/* The peer says that n bytes were all. */
void cw_rdma_ended(struct cw_rdma *r, uint64_t n);
/* Ends the stream for a reason; the first is kept. */
void cw_rdma_fail(struct cw_rdma *r, int err, const char *why);
/* Has nothing use the queue pair any more, for a reason; waits of it end with -ECONNRESET, as where
 * the queue pair fails. */
void cw_rdma_lose(struct cw_rdma *r, const char *why);
/* Destroys a queue pair that nobody uses: what is still under way to it arrives nowhere. Memory,
 * and the keys to it, stay. 0 or -errno. */
int cw_rdma_shut(struct cw_rdma *r);
/* Makes another in its place, of which the other end is told. 0 or -errno, and why; -ECONNRESET:
 * there may be one later. */
int cw_rdma_reopen(struct cw_rdma *r, const struct cw_rdma_port *port, struct cw_rdma_offer *own, char *why, size_t cap);
/* Why it ended; empty: it did not. */
void cw_rdma_why(struct cw_rdma *r, char *out, size_t cap);
/* Has the peer read and write memory by itself, or not any more. */
int cw_rdma_register(struct cw_rdma *r, void *p, size_t n, void **mr, uint32_t *key);
int cw_rdma_deregister(struct cw_rdma *r, void *mr);
/* Gives everything back. Nobody uses it any more. */
void cw_rdma_free(struct cw_rdma *r);
/* In a forked child: closes descriptors. Async-signal-safe. */
void cw_rdma_forked(struct cw_rdma *r);

/* rdma_oob.c: the channel out of band, by this VM's host: the session file of a mount, or a Unix
 * socket (s->fd). One thread receives. */
struct cw_rdma_oob {
	int mount;	  /* set before the carrier is opened */
	_Atomic int stop; /* who receives gives up */
	uint8_t buf[CW_FILE_DIRECT_MOST];
	size_t at, end;
};
extern struct cw_rdma_oob cw_rdma_oob;
int cw_rdma_oob_send(struct cw_session *s, const void *p, size_t n);
/* Exactly n bytes, until a time (0: for ever). -EPIPE at the end, -ETIMEDOUT. */
int cw_rdma_oob_recv(struct cw_session *s, void *out, size_t n, int64_t until);
/* declined: why there is no offer; or empty. */
int cw_rdma_offer_send(struct cw_session *s, const struct cw_rdma_offer *o, const char *declined);
int cw_rdma_offer_recv(struct cw_session *s, struct cw_rdma_offer *o);
/* Sends how this end fared, and receives how the other did. own: why not; empty if all is well. 0,
 * or -errno with s->why set. */
int cw_rdma_agree(struct cw_session *s, const char *own);
/*
 * Has a queue pair at either end know the other, and some bytes go each way: a new one (*r), or
 * another in the place of one that is lost. reach: whether the server reaches memory by itself. 0,
 * or -errno and s->why; again, -ECONNRESET: it has not come to that, which who is at the other end
 * of the channel knows, and may come to it later.
 */
int cw_rdma_lift(struct cw_session *s, struct cw_rdma **r, const struct cw_rdma_port *port, int *reach, int again);
/* Little-endian numbers of n bytes. */
void cw_rdma_put(uint8_t *b, uint64_t v, int n);
uint64_t cw_rdma_get(const uint8_t *b, int n);

/* carrier_rdma.c: where devices are shown. */
extern const char *cw_rdma_sysfs;
extern int64_t cw_rdma_leave_ms; /* a process that ends waits for the server's word for so long */
/* Why a program's session at a mount is not by RDMA, for the host; empty: nobody asked. */
extern char cw_rdma_apart[256];
/* Whether a session is to be tried by RDMA: CAUSEWAY_RDMA, and for a mount what its info says.
 * NULL: it is none. */
int cw_rdma_wanted(const char *mount);

#pragma GCC visibility pop
#endif
