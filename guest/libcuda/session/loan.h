/* Between carrier_virtiofs.c (the control file) and loan.c (what keeps regions lent). */
#ifndef CW_SESSION_LOAN_H
#define CW_SESSION_LOAN_H

#include <linux/aio_abi.h>

#include "session/internal.h"

#pragma GCC visibility push(hidden)

/*
 * CW_AIO_EVENTS: of a process's context, of which a system has few (fs.aio-max-nr: 65536, all
 * processes together). A piece takes one, two while it is renewed, and doorbells one each:
 * CW_PIECES leaves room for those.
 */
enum { CW_AIO_EVENTS = 512, CW_PIECES = 448 };

struct cw_piece;

struct cw_loans {
	struct cw_lock lock;
	aio_context_t aio;
	struct cw_piece *pieces;
	uint32_t max_read; /* bytes of one READ */
	uint32_t piece;	   /* bytes of one piece: some READs, which the kernel makes of it */
	/* READs that pieces may have; a host that counts them itself says more than there can be */
	uint32_t max_loans;
	uint32_t loans;	     /* that they have, ended ones included */
	uint32_t count;	     /* pieces */
	int stopping;	     /* no renewals; 2: the thread ends too */
	_Atomic int running; /* the loan thread */
	_Atomic int gone;    /* -errno of a loan that failed */
	uint64_t ring;	     /* what a doorbell writes */
};
extern struct cw_loans cw_loans;

/* Submits one asynchronous request. -errno. */
int cw_aio_submit(int fd, int opcode, void *buf, size_t len, uint64_t offset, void *data);
/* Cuts a region into pieces and lends each. One region at a time. -ENOBUFS: the budget is spent. */
int cw_loan_region(struct cw_session *s, uint32_t region, uint8_t *va, uint64_t size);
/* Under the lock: ends the pieces of a region, or of all (region < 0). Their memory follows with
 * their last READ. */
void cw_loan_end(int64_t region);
/* Frees what is left, once the thread has ended and nothing is pending. */
void cw_loan_forget(void);
int cw_loan_start(struct cw_session *s);

#pragma GCC visibility pop
#endif
