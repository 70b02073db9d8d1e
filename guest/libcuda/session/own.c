/* See own.h. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "session/compat.h"
#include "session/own.h"

#ifndef SYS_statx
#define SYS_statx 332
#endif

/* Of struct statx, which old headers lack. */
struct status {
	uint32_t mask, blksize;
	uint64_t attributes;
	uint32_t nlink, uid, gid;
	uint16_t mode, spare;
	uint64_t ino, size, blocks, attributes_mask;
	int64_t times[8];
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t rest[14];
};
_Static_assert(sizeof(struct status) == 256 && offsetof(struct status, dev_major) == 136, "struct statx");

/*
 * 0 or an errno. fstat would ask the host of a virtiofs mount, now and then; what is asked here is
 * there. Where a sandbox refuses that call the other one has to do.
 */
static int look(int fd, struct cw_own *own, int *sole)
{
	enum { EMPTY_PATH = 0x1000, DONT_SYNC = 0x4000, TYPE_AND_INODE = 0x101 };
	struct status x;
	struct stat st;
	if (syscall(SYS_statx, fd, "", EMPTY_PATH | DONT_SYNC, TYPE_AND_INODE, &x) == 0) {
		own->dev = (uint64_t)x.dev_major << 32 | x.dev_minor;
		own->ino = x.ino;
		*sole = S_ISSOCK(x.mode);
		return 0;
	}
	if (errno == EBADF || cw_fstat(fd, &st) != 0)
		return errno;
	own->dev = (uint64_t)major(st.st_dev) << 32 | minor(st.st_dev);
	own->ino = st.st_ino;
	*sole = S_ISSOCK(st.st_mode);
	return 0;
}

/* A file that others may be of, too, by its inode: eventfds have one together, a device's may be
 * opened again. But each has a signal that it would send, if it were asked to. */
enum { MARK = 31 + 30 };

int cw_own_note(int fd, struct cw_own *own)
{
	int sole = 1;
	memset(own, 0, sizeof *own);
	int err = look(fd, own, &sole);
	if (err == 0 && !sole && fcntl(fd, F_SETSIG, MARK) == 0)
		own->mark = MARK;
	return -err;
}

int cw_own_take(int fd, struct cw_own *own)
{
	int err = 0;
	if (fd < 0)
		return fd;
	if (fd <= 2) {
		int up = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		err = up < 0 ? -errno : 0;
		close(fd);
		fd = up;
	}
	if (err == 0 && (err = cw_own_note(fd, own)) != 0)
		close(fd);
	return err == 0 ? fd : err;
}

int cw_own_is(int fd, const struct cw_own *own)
{
	struct cw_own now = {0};
	int err = errno, sole, is = own->ino == 0;
	if (!is && fd >= 0 && look(fd, &now, &sole) == 0)
		is = now.dev == own->dev && now.ino == own->ino && (own->mark == 0 || fcntl(fd, F_GETSIG) == own->mark);
	errno = err;
	return is;
}

void cw_own_close(int fd, const struct cw_own *own)
{
	if (fd >= 0 && cw_own_is(fd, own))
		close(fd);
}
