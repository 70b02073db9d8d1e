/* The last messages of this library, for cuLogs*: errors and warnings that cw_log was given,
 * whether or not stderr shows them. */
#ifndef CW_SESSION_LOGRING_H
#define CW_SESSION_LOGRING_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { CW_LOG_LINES = 100, CW_LOG_TEXT = 480, CW_LOG_LISTENERS = 32 };

struct cw_log_line {
	uint64_t number; /* 0, 1, 2, ... in the process */
	int64_t when;	 /* nanoseconds of the wall clock */
	uint64_t thread;
	int level; /* CUlogLevel: 0 error, 1 warning */
	uint32_t len;
	char text[CW_LOG_TEXT]; /* NUL-terminated */
};

/* Keeps a message and hands it to the listeners, on the calling thread, without a lock held. */
void cw_logring_add(int level, const char *text, size_t len);
/* How many messages there have been. */
uint64_t cw_logring_count(void);
/* A copy of message number, 0 if it is not kept any more or not there yet. */
int cw_logring_get(uint64_t number, struct cw_log_line *out);
/* A listener's number (1...), 0 if there are too many; and its end: 1, or 0 if there is none of
 * this number. */
uint32_t cw_logring_listen(void (*fn)(void *data, int level, char *message, size_t length), void *data);
int cw_logring_unlisten(uint32_t id);

#pragma GCC visibility pop
#endif
