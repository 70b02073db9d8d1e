/* What processes share that verbs.c joins: see there. */
#ifndef ONEHOST_FABRIC_H
#define ONEHOST_FABRIC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "abi.h"

enum { QUEUES = 256, MEMORIES = 4096, COMPLETIONS = 4096, GIDS = 8 };

/* What was done by all processes. */
struct counts {
	uint64_t writes, written, reads, read, immediates, pairs;
};

/* A completion queue lies in its queue pair's slot: here each pair has one of its own. */
struct slot {
	uint32_t num; /* 0: nobody's */
	pid_t owner;
	uint32_t peer;
	union ibv_gid dgid, gids[GIDS];
	int receives, broken;
	uint64_t channel;
	int armed, overrun;
	_Atomic unsigned from, to;
	struct ibv_wc wc[COMPLETIONS];
};

struct memory {
	uint32_t key; /* 0: nobody's */
	pid_t owner;
	uint64_t at, size;
	int access;
};

struct fabric {
	struct counts counts;
	_Atomic int made;
	pthread_mutex_t lock; /* of all below: work is done in one order */
	uint32_t last_queue, last_key;
	uint64_t last_channel;
	struct slot slots[QUEUES];
	struct memory memories[MEMORIES];
};

extern struct fabric *fabric; /* null: it cannot be had */

void join(void);
void lock(void);
void unlock(void);

/* path is the name of a file in the fabric's folder; empty: there is none. */
void path(char *to, size_t size, const char *name, uint64_t id);

/* All below under lock. free_slot and free_memory: null, there is no room. */
struct slot *free_slot(void);
struct memory *free_memory(void);
void complete(struct slot *s, const struct ibv_wc *wc);

/* perform does one work request, and says how it ends; breaks ends a queue pair. */
uint32_t perform(struct slot *s, const struct ibv_send_wr *w);
void breaks(struct slot *s);

#endif
