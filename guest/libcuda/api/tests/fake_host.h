/*
 * The session layer's other half, in this process: records are executed when they are committed, by
 * a small model of a worker. For tests of the entries; everything is deterministic and visible to
 * the sanitizers.
 */
#ifndef CW_API_FAKE_HOST_H
#define CW_API_FAKE_HOST_H

#include <stdio.h>
#include <string.h>

#include "gen/entries.h"
#include "gen/exports.h"
#include "gen/ops.h"
#include "session/session.h"

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
			fake.failures++; \
		} \
	} while (0)
#define CHECK_RES(call, want) \
	do { \
		int res_ = (int)(call); \
		if (res_ != (want)) { \
			fprintf(stderr, "%s:%d: %s: %d, want %d\n", __FILE__, __LINE__, #call, res_, (int)(want)); \
			fake.failures++; \
		} \
	} while (0)

/*
 * Two devices of compute capability 9.0. Every module and library has the functions
 *   k     (8 bytes at 0, 4 at 8, 12 at 16), at most 512 threads, 48 KiB dynamic shared memory
 *   none  without arguments
 * Occupancy: 2048 threads and 32 blocks per multiprocessor, 100 KiB of dynamic shared memory.
 */
/* Where each reply is due; there is one only for who makes cw_s.base. */
enum { FAKE_SLOT = 3, FAKE_SEQ = 77 };

struct fake {
	int failures;
	unsigned count[256]; /* records seen, by operation */
	uint32_t last_ctx;   /* of the last record */
	struct cw_record last;
	struct cw_in_Launch launch; /* the last launch */
	uint8_t params[256], attrs[72 * 8];
	uint32_t wanted; /* of the last WatchBudget */
	struct {
		uint64_t ptr, size;
	} shared[8]; /* other processes' memory, by the first byte of a token */
	int open[8]; /* and how often it is open at the worker's driver */
	/* That is opened so much further up, if it is asked to avoid an address. */
	uint64_t away;
	uint64_t limit;	  /* what each limit is */
	int local;	  /* and local memory of a function that is looked up */
	uint16_t fail_op; /* this operation answers fail_result */
	uint32_t fail_result;
	_Atomic int functions_done; /* cw_host_done */
};
extern struct fake fake;

/* Opens the session at cuInit: device 0 current nowhere. */
void fake_reset(void);

#endif
