/*
 * What keeps the library loadable on glibc 2.17: symbols that moved or were renamed since are bound
 * to their old version, and system calls without a wrapper in 2.17 are made directly.
 * tests/check_symbols.sh verifies the result.
 */
#ifndef CW_SESSION_COMPAT_H
#define CW_SESSION_COMPAT_H

#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(CW_NO_SYMVER)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_attr_setstacksize,pthread_attr_setstacksize@GLIBC_2.2.5");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
#endif

#ifndef SYS_getrandom
#define SYS_getrandom 318
#endif
#ifndef SYS_memfd_create
#define SYS_memfd_create 319
#endif

/* The hexadecimal number at *p, which moves behind it. No sscanf: newer C libraries rename it. */
static inline uint64_t cw_hex(const char **p)
{
	uint64_t v = 0;
	for (;; (*p)++) {
		char c = **p;
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (digit < 0)
			return v;
		v = v << 4 | (uint64_t)digit;
	}
}

enum { CW_FUTEX_WAIT = 0, CW_FUTEX_WAKE = 1, CW_FUTEX_PRIVATE = 128 };

static inline long cw_futex_wait(_Atomic uint32_t *word, uint32_t value, int op, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, CW_FUTEX_WAIT | op, value, timeout, (void *)0, 0);
}

static inline long cw_futex_wake(_Atomic uint32_t *word, int n, int op)
{
	return syscall(SYS_futex, word, CW_FUTEX_WAKE | op, n, (void *)0, (void *)0, 0);
}

/* glibc had these under other names before 2.33. */
static inline int cw_fstat(int fd, struct stat *st) { return (int)syscall(SYS_fstat, fd, st); }
static inline int cw_fstatat(int dir, const char *name, struct stat *st, int flags)
{
	return (int)syscall(SYS_newfstatat, dir, name, st, flags);
}

static inline void cw_pause(void) { __builtin_ia32_pause(); }

#endif
