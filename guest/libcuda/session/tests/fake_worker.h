/* The other side of a session, for tests: a process of its own that speaks the unix carrier and
 * consumes a ring. */
#ifndef CW_FAKE_WORKER_H
#define CW_FAKE_WORKER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "session/session.h"
#include "session/tcp_frames.h"
#include "session/tests/check.h"

struct fake_worker;

/* One record: fixed part, and the reply to fill. Return 0 to answer (if asked), 1 to keep the reply
 * open. */
struct fake_call {
	struct fake_worker *w;
	const struct cw_record *rec;
	const uint8_t *fixed;
	uint32_t slot, seq;
	uint32_t result;
	const void *reply; /* whole payload; may be longer than a slot */
	size_t reply_len;
};
typedef int fake_handler(struct fake_call *c);

enum fake_first { FIRST_RIGHT, FIRST_SHORT, FIRST_NO_DEVICE, FIRST_MANY, FIRST_BEHIND, FIRST_LONG, FIRST_FEW, FIRST_ERROR, FIRST_KINDS };

struct fake_options {
	/* For ops that the fake does not know itself; NULL: they answer 801. */
	fake_handler *handler;
	uint32_t caps;
	uint32_t sleep_after_us; /* idle time before the worker sleeps on its doorbell */
	int refuse;		 /* errno to refuse the session with */
	int tcp;		 /* frames over the loopback instead of shared memory */
	/* Serves this folder by FUSE, as a virtiofs host does; root only. */
	const char *mount;
	enum fake_first first; /* what is wrong with its first reply */
	int slow_consume;      /* a pause between records, so that the ring fills */
};

/* Starts the worker and points CAUSEWAY at it. */
pid_t fake_worker_start(const struct fake_options *o);
/* Kills and reaps it. */
void fake_worker_kill(pid_t pid);

/* For handlers. */
void fake_answer(struct fake_worker *w, uint32_t slot, uint32_t seq, uint32_t result, const void *p, size_t n);
void fake_complete_word(struct fake_worker *w, uint32_t word, uint32_t value);
struct cw_control_page *fake_control(struct fake_worker *w);
/* Address in the worker of [offset, offset+size) of a region, or NULL. */
uint8_t *fake_region(struct fake_worker *w, uint32_t id, uint64_t offset, uint64_t size);
/* How many regions the guest has told of and not ended, but for its first, by all that it has
 * sent. */
int fake_regions(struct fake_worker *w);
/* Whether the guest gives bytes of its memory to a worker that cannot map it; one that can asks
 * nobody. */
int fake_reads(struct fake_worker *w, uint32_t region, uint64_t offset, uint64_t size);
/* Around the use of a region's memory: what a carrier that cannot map has to move. */
void fake_region_fetch(struct fake_worker *w, uint32_t id, uint64_t offset, uint64_t size);
void fake_region_store(struct fake_worker *w, uint32_t id, uint64_t offset, uint64_t size);
/* Bytes of a span, from the record or a blob. */
const uint8_t *fake_span(struct fake_call *c, struct cw_span s);
void fake_console(struct fake_worker *w, const char *text);

/* fake_vfs.c: 1 if this machine can; and what the host's side has seen. */
int fake_vfs_possible(void);
void fake_vfs_umount(const char *dir);
struct fake_vfs_stats {
	uint64_t loans, renewals, lapses, doorbells, waits, extents;
};
extern struct fake_vfs_stats fake_vfs_stats;
/* As before a migration: every loan ends at once. */
void fake_vfs_return_all(struct fake_worker *w);

/* fake_device.c: a handler that keeps "device memory" and does the memory operations. */
fake_handler fake_device;
/* A blocking stream whose fills happen when somebody waits for a stream; copies take their bytes at
 * once, as a driver's of few bytes do. */
enum { FAKE_SLOW_STREAM = 0x510 };

#endif
