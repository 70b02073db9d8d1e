/*
 * Devices by libibverbs, which is loaded when it is asked for: a process whose C library has its
 * loader apart, and not loaded (glibc before 2.34 without libdl), has no RDMA.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "session/rdma_stream.h"

#ifndef CW_NO_SYMVER
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5\n.symver dlsym,dlsym@GLIBC_2.2.5\n.symver dlerror,dlerror@GLIBC_2.2.5\n.symver "
	"dlclose,dlclose@GLIBC_2.2.5\n");
#endif
#pragma weak dlopen
#pragma weak dlsym
#pragma weak dlerror
#pragma weak dlclose

enum { INLINE = 128, TIMEOUT = 19 /* 2.1 s, eight times: as at the other end */ };

struct cw_lib cw_rdma_lib;

const char *cw_rdma_load(void)
{
	static int loaded;
	static char why[200];
	char *text = NULL;
	if (loaded)
		return NULL;
	if (!dlopen || !dlsym || !dlerror || !dlclose)
		return "this process has no loader (libdl) for libibverbs.so.1";
	const char *missing = cw_load(&cw_rdma_lib, "libibverbs.so.1", &text);
	if (!missing) {
		loaded = 1;
		return NULL;
	}
	if (text)
		snprintf(why, sizeof why, "libibverbs.so.1 cannot be loaded, install rdma-core's libraries: %s", text);
	else
		snprintf(why, sizeof why, "libibverbs.so.1 has no %s", missing);
	free(text);
	return why;
}

static int failed(int err, char *why, size_t cap, const char *what)
{
	snprintf(why, cap, "%s: %s%s", what, strerror(err),
		 err == ENOMEM || err == EAGAIN ? ": the limit of locked memory (ulimit -l) may be too low" : "");
	return err > 0 ? -err : -EIO;
}

/* Of the first packet: who is on the fabric and not between the two ends has to guess it. */
static uint32_t packet_number(void)
{
	uint32_t n = 0;
	if (syscall(SYS_getrandom, &n, sizeof n, 0) != sizeof n) /* a kernel before 3.17 */
		n = (uint32_t)(cw_now_ms() * 2654435761u);
	return n & 0xffffff;
}

static int buffer(struct cw_rdma *r, uint8_t **p, struct ibv_mr **mr, int access)
{
	*p = mmap(NULL, CW_RDMA_WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*p == MAP_FAILED) {
		*p = NULL;
		return ENOMEM;
	}
	madvise(*p, CW_RDMA_WINDOW, MADV_DONTFORK); /* what is pinned stays this process's */
	return cw_register(&cw_rdma_lib, r->pd, (uintptr_t)*p, CW_RDMA_WINDOW, access, mr);
}

int cw_rdma_has_files(const struct cw_rdma *r)
{
	return (!r->ctx || cw_own_is(r->ctx->cmd_fd, &r->device_own)) &&
	       (!r->queue.channel || cw_own_is(r->queue.channel->fd, &r->events_own));
}

void cw_rdma_free(struct cw_rdma *r)
{
	/* What cannot be given back is the kernel's to give back, with the device's descriptor. */
	int has = cw_rdma_has_files(r);
	if (has && r->queue.channel)
		cw_queue_close(&cw_rdma_lib, &r->queue);
	if (has && r->window_mr)
		cw_deregister(&cw_rdma_lib, r->window_mr);
	if (has && r->out_mr)
		cw_deregister(&cw_rdma_lib, r->out_mr);
	if (has && r->ctx)
		cw_close(&cw_rdma_lib, r->ctx, r->pd);
	if (r->window)
		munmap(r->window, CW_RDMA_WINDOW);
	if (r->out)
		munmap(r->out, CW_RDMA_WINDOW);
	free(r);
}

/* A queue pair, with its events. 0, or an errno and what it is of. */
static int queue(struct cw_rdma *r, const char **what)
{
	r->inlined = INLINE;
	*what = "RDMA queue pair";
	int err = cw_queue_open(&cw_rdma_lib, r->ctx, r->pd, CW_RDMA_SENDS, CW_RDMA_RECEIVES, &r->inlined, &r->queue);
	if (err) {
		memset(&r->queue, 0, sizeof r->queue); /* what there was of it is given back */
		return err;
	}
	cw_own_note(r->queue.channel->fd, CW_MARK_EVENTS, &r->events_own);
	*what = "RDMA events";
	return fcntl(r->queue.channel->fd, F_SETFL, O_NONBLOCK) != 0 || fcntl(r->queue.channel->fd, F_SETFD, FD_CLOEXEC) != 0 ? errno : 0;
}

/* What the other end is told, but the port's MTU. */
static void describe(struct cw_rdma *r, const struct cw_rdma_port *port, struct cw_rdma_offer *own)
{
	own->link = port->link;
	own->lid = port->lid;
	memcpy(own->gid, port->gid, 16);
	own->queue = r->queue.qp->qp_num;
	own->psn = packet_number();
	own->address = (uintptr_t)r->window;
	own->key = r->window_mr->rkey;
	own->size = CW_RDMA_WINDOW;
}

int cw_rdma_open(struct cw_rdma **out, const struct cw_rdma_port *port, struct cw_rdma_offer *own, char *why, size_t cap)
{
	struct cw_rdma *r = calloc(1, sizeof *r);
	if (!r)
		return failed(ENOMEM, why, cap, "RDMA");
	memset(own, 0, sizeof *own);
	r->software = port->software;
	const char *what = port->device;
	int err = cw_open(&cw_rdma_lib, port->device, &r->ctx, &r->pd);
	if (err)
		r->ctx = NULL;
	else
		cw_own_note(r->ctx->cmd_fd, CW_MARK_DEVICE, &r->device_own);
	if (!err && (err = cw_mtu(&cw_rdma_lib, r->ctx, port->number, &own->mtu)))
		what = "query port";
	if (!err && ((err = buffer(r, &r->window, &r->window_mr, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) ||
		     (err = buffer(r, &r->out, &r->out_mr, IBV_ACCESS_LOCAL_WRITE))))
		what = "register memory for RDMA";
	if (!err)
		err = queue(r, &what);
	if (err) {
		err = failed(err, why, cap, what);
		cw_rdma_free(r);
		return err;
	}
	describe(r, port, own);
	*out = r;
	return 0;
}

int cw_rdma_shut(struct cw_rdma *r)
{
	if (!cw_rdma_has_files(r))
		return -EBADF;
	int err = r->queue.channel ? cw_queue_close(&cw_rdma_lib, &r->queue) : 0;
	if (err == 0)
		memset(&r->queue, 0, sizeof r->queue);
	return -err;
}

int cw_rdma_reopen(struct cw_rdma *r, const struct cw_rdma_port *port, struct cw_rdma_offer *own, char *why, size_t cap)
{
	const char *what = "query port";
	memset(own, 0, sizeof *own);
	int err = cw_rdma_fresh(r);
	if (err != 0) {
		snprintf(why, cap, "the session has ended");
		return err;
	}
	if ((err = cw_mtu(&cw_rdma_lib, r->ctx, port->number, &own->mtu)) != 0 || (err = queue(r, &what)) != 0) {
		failed(err, why, cap, what);
		return -ECONNRESET;
	}
	describe(r, port, own);
	return 0;
}

int cw_rdma_connect(struct cw_rdma *r, const struct cw_rdma_port *port, const struct cw_rdma_offer *own, const struct cw_rdma_offer *peer,
		    char *why, size_t cap)
{
	struct cw_path path = {
		.port = port->number,
		.gid_index = port->gid_index,
		.mtu = own->mtu < peer->mtu ? own->mtu : peer->mtu,
		.own_psn = own->psn,
		.peer_psn = peer->psn,
		.peer_qp = peer->queue,
		.peer_lid = peer->lid,
		.global = peer->link == CW_RDMA_ETHERNET || peer->lid == 0,
		.timeout = TIMEOUT,
	};
	const char *step = "";
	memcpy(path.peer_gid, peer->gid, 16);
	r->out_size = peer->size;
	r->peer_address = peer->address;
	r->peer_key = peer->key;
	int err = cw_connect(&cw_rdma_lib, r->queue.qp, &path, &step);
	if (!err)
		err = cw_post_receive(r->queue.qp, CW_RDMA_RECEIVES);
	return err ? failed(err, why, cap, step) : 0;
}

int cw_rdma_register(struct cw_rdma *r, void *p, size_t n, void **mr, uint32_t *key)
{
	struct ibv_mr *m = NULL;
	if (!cw_rdma_has_files(r))
		return -EBADF;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	int err = cw_register(&cw_rdma_lib, r->pd, (uintptr_t)p, n, access, &m);
	/* An adapter that looks pages up when it comes to them need not pin them. Linux 7.2's soft
	 * RoCE says that it does, and has other bytes then. */
	if (err && !r->software && cw_register(&cw_rdma_lib, r->pd, (uintptr_t)p, n, access | IBV_ACCESS_ON_DEMAND, &m) == 0)
		err = 0;
	if (err)
		return -err;
	*mr = m;
	*key = m->rkey;
	return 0;
}

int cw_rdma_deregister(struct cw_rdma *r, void *mr) { return cw_rdma_has_files(r) ? cw_deregister(&cw_rdma_lib, mr) : EBADF; }

void cw_rdma_forked(struct cw_rdma *r)
{
	if (r->queue.channel)
		cw_own_close(r->queue.channel->fd, &r->events_own);
	if (r->ctx)
		cw_own_close(r->ctx->cmd_fd, &r->device_own);
}
