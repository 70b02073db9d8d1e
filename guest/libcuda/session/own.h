/*
 * Descriptors that last, of which a program may close any (closefrom, as daemons do) and open its
 * own under the number. So nothing is done with such a number before it was looked whether it is
 * still what it was. Who closes it between that look and the use is not seen.
 *
 * Before each doorbell that has to be quick. So the files of a session are marked, by the signal
 * that they would send if they were asked to (F_SETSIG), each kind by another: one short call
 * tells, where a virtiofs host might be asked for a file's status, and eventfds have one inode
 * together.
 */
#ifndef CW_SESSION_OWN_H
#define CW_SESSION_OWN_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* There is one of each in a process at a time, or none. */
enum cw_mark {
	CW_MARK_NONE, /* it is told by device and inode */
	CW_MARK_SESSION = 60,
	CW_MARK_BELL,
	CW_MARK_DEVICE,
	CW_MARK_EVENTS
};

/* What a descriptor is of. Zeros: nothing was noted, and every number will do. */
struct cw_own {
	uint64_t dev, ino;
	enum cw_mark mark; /* if the system has marks */
};

/* Notes what fd is. 0 or -errno. */
int cw_own_note(int fd, enum cw_mark mark, struct cw_own *own);
/* Likewise, once it was moved away from the numbers of stdin, stdout and stderr, which a program
 * may have closed for others to take. The descriptor, or -errno, and fd is closed; what is negative
 * it returns. */
int cw_own_take(int fd, enum cw_mark mark, struct cw_own *own);
/* Whether it still is. Async-signal-safe; errno stays. */
int cw_own_is(int fd, const struct cw_own *own);
/* Closes it if it is. */
void cw_own_close(int fd, const struct cw_own *own);

#pragma GCC visibility pop
#endif
