/* Inside the session layer: the one session of the process, and what a carrier is. */
#ifndef CW_SESSION_INTERNAL_H
#define CW_SESSION_INTERNAL_H

#include "session/lock.h"
#include "session/session.h"

#pragma GCC visibility push(hidden)

struct cw_session;

/*
 * A carrier brings region 0 to the host and wakes both sides. Functions that can fail return 0 or a
 * negative errno, and leave a sentence in s->why for open.
 */
struct cw_carrier {
	const char *name;
	int private_after_fork; /* adopted memory is a forked child's own */
	/* Of this process's memory the worker can map little, so what may lie elsewhere leaves it
	 * to what may not. */
	int scarce;
	uint32_t spin_us; /* how long a waiter spins at most before it sleeps */
	/* The same where cores are few, whoever passes calls on to another machine runs on them,
	 * and the worker is there; 0: as ever. */
	uint32_t spin_far_us;
	/* Allocates region 0 (s->base), shakes hands, returns when the worker consumes. target:
	 * what followed the scheme. */
	int (*open)(struct cw_session *s, const char *target);
	/* Allocates r->va (near r->va if that is set) unless r->adopted, and declares the
	 * region. */
	int (*add_region)(struct cw_session *s, struct cw_region *r);
	/* Tells the host that nothing refers to the region any more; unmaps it unless adopted. */
	void (*end_region)(struct cw_session *s, struct cw_region *r);
	/* Wakes a worker that sleeps. NULL with publish. */
	void (*doorbell)(struct cw_session *s);
	/* Instead of a doorbell: called after every change of the tail (tcp). */
	void (*publish)(struct cw_session *s);
	/* Sleeps while *word == 1, at most about a second; slot CW_SLOT_COUNT is space_waiters.
	 * -EPIPE: the host is gone. */
	int (*wait_slot)(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word);
	/* 0, or -EPIPE when the host is gone. Does not block. */
	int (*alive)(struct cw_session *s);
	/* In a forked child: close descriptors, touch nothing else. owned: it has pages of its own
	 * for all memory that was moved into files. Async-signal-safe. */
	void (*forked)(struct cw_session *s, int owned);
	/* At process exit: make pending requests end. Threads may still be inside the library:
	 * nothing is freed. */
	void (*close)(struct cw_session *s);
	/* After an open whose session could not be used: undo open wholly, so that another may
	 * follow. */
	void (*abandon)(struct cw_session *s);
};

extern const struct cw_carrier cw_carrier_unix, cw_carrier_virtiofs, cw_carrier_tcp, cw_carrier_rdma;

struct cw_session {
	const struct cw_carrier *carrier;
	uint8_t *base; /* region 0 */
	struct cw_control_page *ctl;

	/* Ring: all under ring_lock, but for what says otherwise. */
	struct cw_lock ring_lock __attribute__((aligned(64)));
	uint64_t tail;
	uint64_t head_seen;
	/* Records so far that give a stream work; read without the lock: cw_work. */
	uint64_t work;
	/* Held by the thread that waits for room; never beside ring_lock. */
	struct cw_lock room_lock;
	_Atomic uint64_t rung_head; /* head when the doorbell was last rung: see ring.c */

	/* Slots: bit set = free. slot_seq[i] belongs to the slot's owner. */
	_Atomic uint64_t slots_free __attribute__((aligned(64)));
	_Atomic uint32_t slot_waiters;
	_Atomic uint32_t slot_gen;
	uint32_t slot_seq[CW_SLOT_COUNT];

	/* Waiting: pause iterations. */
	uint32_t spin_max __attribute__((aligned(64)));
	uint32_t spin_most; /* what the budget for a reply may grow to, where cores are plenty */
	uint32_t spins_per_us;
	uint32_t cpus;
	/* Threads that spin for a reply beyond spin_max. */
	_Atomic uint32_t long_spinners __attribute__((aligned(64)));

	struct cw_lock open_lock;
	/* Ordinal of the thread inside cw_session_open, which may send before the state is open. */
	_Atomic uint32_t opener;
	struct cw_lock console_lock;
	struct cw_lock region_lock;
	struct cw_region *regions;
	uint32_t next_region;
	uint64_t next_va;
	_Atomic uint32_t next_blob;
	struct cw_info info;
	char why[256]; /* why open failed */

	/* Carrier's own. An open session's are used by cw_fd and cw_bell. */
	int fd, bell;
	struct cw_own fd_own, bell_own;
	void *priv;
};

extern struct cw_session cw_s;

/* Marks the session dead once; every later call answers 719. */
void cw_mark_dead(struct cw_session *s, const char *why);
int cw_is_dead(struct cw_session *s);
/* The descriptors. -1: the program has closed them, or has others under their numbers, and the
 * session is dead. */
#define CW_CLOSED_BY_PROGRAM "the program has closed the library's descriptors, or put its own in their place"
int cw_fd(struct cw_session *s);
int cw_bell(struct cw_session *s);
void cw_why(struct cw_session *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* slots.c */
void cw_slots_init(struct cw_session *s);
uint32_t cw_slot_claim(struct cw_session *s);
void cw_slot_release(struct cw_session *s, uint32_t slot);
CUresult cw_slot_wait(struct cw_session *s, uint32_t slot, uint32_t seq);
static inline struct cw_slot *cw_slot_at(struct cw_session *s, uint32_t slot)
{
	return (struct cw_slot *)(s->base + CW_SLOTS_OFFSET + (size_t)slot * CW_SLOT_SIZE);
}

/* ring.c: as cw_begin for a slot that the caller holds (slot < CW_SLOT_COUNT), or without a reply
 * (CW_NO_SLOT). */
#define CW_NO_SLOT UINT32_MAX
CUresult cw_begin_slot(struct cw_session *s, struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, uint32_t slot);
/* Publishes padding where a record was begun. The slot stays the caller's. */
void cw_take_back(struct cw_session *s, struct cw_tx *tx);

/* ring.c: rings again if the worker sleeps on records. Waits that last call it now and then: a
 * doorbell that a carrier or a host lost must not stop a program for good, and publish rings once
 * only for each sleep. */
void cw_nudge(struct cw_session *s);

/* console.c */
void cw_console_drain(struct cw_session *s);

/* Gives the calling thread's preferred slot. */
uint32_t *cw_thread_slot(void);
int cw_spin_calibrate(struct cw_session *s);
void cw_spin_far(struct cw_session *s);

/* moving.c: files that take the place of adopted memory. Each is written by a thread of its own:
 * one file takes one writer at a time. */
struct cw_moving {
	uint8_t *shadow; /* where they are mapped until they do */
	size_t size;	 /* of each but the last */
	uint32_t count;
	uint32_t due; /* so many are filled when the worker is told */
	_Atomic uint32_t filled;
	_Atomic int failed;
	void (*tell)(struct cw_region *r);
	CUresult told; /* by what is in tx */
	uint32_t flags;
	struct cw_tx tx;
	int file[CW_REGION_PARTS];
	/* Out of the shadow, each written by who fills it: what lies there now is anybody's. */
	uint8_t moved[CW_REGION_PARTS];
};
/* Makes r->moving and r->print. -errno. */
int cw_moving_make(struct cw_region *r);
/* fork.c: sees to forks from the first session on, and is told before memory is moved. In the child
 * it ends the session. */
void cw_fork_watch(void);
void cw_fork_moved(void);
/* Gives this process pages of its own for [lo, hi), in place of those of a file. 0: there is no
 * memory, or it runs on them; then it can no longer write them. Async-signal-safe. */
int cw_fork_own(uint8_t *lo, uint8_t *hi, int prot);
void cw_session_forked(int owned);
/* Copies what the memory holds into the files and puts them in its place; tell is called, by any of
 * the hands, when the worker may begin to look at them: at once, or if there is much to copy, when
 * it will not catch up. 0 or -errno; what was placed then holds what it held. */
int cw_moving_fill(struct cw_region *r, void (*tell)(struct cw_region *r));
/* Forgets r->moving. */
void cw_moving_end(struct cw_region *r);

/* carrier helpers (carrier_common.c) */
void cw_hello_fill(struct cw_hello *h, uint32_t type, uint32_t region, const void *va, size_t size);
/* Anonymous shared memory behind a descriptor, sealed against shrinking where the kernel can.
 * -errno. */
int cw_memfd(size_t size);
/* Maps size bytes of fd (or anonymous memory if fd < 0), near hint; MADV_DONTFORK. NULL on
 * failure. */
void *cw_map_shared(int fd, size_t size, void *hint);
int cw_region0_init(struct cw_session *s, void *base);
/* 0 if h is an acceptable MsgWelcome of n bytes, else -errno with s->why set. */
int cw_welcome_check(struct cw_session *s, const void *msg, size_t n);

/* hint for staging and pinned regions: away from heaps and libraries of both sides */
#define CW_REGION_VA_BASE 0x6a0000000000ull

#pragma GCC visibility pop
#endif
