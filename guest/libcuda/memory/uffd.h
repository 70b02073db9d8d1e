/*
 * Faults of this process's own memory, by Linux's userfaultfd: a thread of the library learns of an
 * access and puts the bytes there before it goes on. System calls that are given such memory fault
 * like everybody else, which is what needs the privilege: without it they would fail.
 */
#ifndef CW_MEMORY_UFFD_H
#define CW_MEMORY_UFFD_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { CW_PAGE = 4096 };

/* Opens it, once for the process. 0 or -errno: EPERM where the process may not have faults of
 * system calls. */
int cw_uffd_open(void);
/* Whether writes to memory that is there can be seen. Linux 5.7. */
int cw_uffd_tracks(void);
/* Whether watched memory that is moved (mremap) stays watched: where the program asks for
 * duplicates, and Linux can. Who moves it waits until that is read, by cw_uffd_read or
 * cw_uffd_drain. */
int cw_uffd_remaps(void);
/* The descriptor, or -errno. */
int cw_uffd_number(void);
/* Nothing is asked of it any more. */
void cw_uffd_end(void);
/* The library is about to move something to that address; what is moved elsewhere is the program's
 * doing. */
void cw_uffd_moves(uint64_t to);
/* Whether the program may have moved watched memory of its own accord. It is watched where it is
 * now, which it would not be else. */
int cw_uffd_strange(void);
/* Faults there are the kernel's again; who waits is to be woken. */
void cw_uffd_unwatch(uint64_t at, uint64_t size);
/* Reads all that can be read; accesses are tried again. For who waits for something to be moved, or
 * holds up who reads. */
void cw_uffd_drain(void);

/* Whole pages, all. 0 or -errno. */

/* From now on faults of [at, at+size) are seen: writes to what is protected, and, if missing,
 * accesses of what is not there. */
int cw_uffd_watch(uint64_t at, uint64_t size, int missing);
/* Puts bytes where nothing is, perhaps protected, and lets go on who waits for them. What is there
 * stays as it is. */
int cw_uffd_fill(uint64_t at, const void *from, uint64_t size, int protect);
/* Zeros where nothing is, of one page. 1: something is. */
int cw_uffd_zero(uint64_t at, uint64_t size);
/* Whether watched memory is of one mapping: the program may have parts of it otherwise (mprotect).
 * Zeros come where nothing is, up to the first page that is there. */
int cw_uffd_is_one(uint64_t at, uint64_t size);
/* Protects what is there from writes, or not any longer, which lets go on who waits to write. */
int cw_uffd_protect(uint64_t at, uint64_t size, int on);
/* Who waits tries again. */
void cw_uffd_wake(uint64_t at, uint64_t size);

struct cw_fault {
	uint64_t at;	 /* the page */
	uint32_t thread; /* who waits, 0: not known */
	uint8_t write;
	uint8_t protect; /* a write to what is there and protected */
};
/* The next faults, at most so many; 0 if none comes for so long (-1: for some seconds). It looks
 * for them for some microseconds before it sleeps. -errno. */
int cw_uffd_read(struct cw_fault *out, int most, int timeout_ms, int64_t look_us);

#pragma GCC visibility pop
#endif
