/* See own.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/compat.h"
#include "session/own.h"

int cw_own_note(int fd, enum cw_mark mark, struct cw_own *own)
{
	struct stat st;
	memset(own, 0, sizeof *own);
	if (cw_fstat(fd, &st) != 0)
		return -errno;
	own->dev = st.st_dev;
	own->ino = st.st_ino;
	if (mark != CW_MARK_NONE && fcntl(fd, F_SETSIG, mark) == 0 && fcntl(fd, F_GETSIG) == (int)mark)
		own->mark = mark;
	return 0;
}

int cw_own_take(int fd, enum cw_mark mark, struct cw_own *own)
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
	if (err == 0 && (err = cw_own_note(fd, mark, own)) != 0)
		close(fd);
	return err == 0 ? fd : err;
}

int cw_own_is(int fd, const struct cw_own *own)
{
	struct stat st;
	int err = errno, is;
	if (own->mark != CW_MARK_NONE)
		is = fcntl(fd, F_GETSIG) == (int)own->mark;
	else
		is = own->ino == 0 || (cw_fstat(fd, &st) == 0 && st.st_dev == own->dev && st.st_ino == own->ino);
	errno = err;
	return is;
}

void cw_own_close(int fd, const struct cw_own *own)
{
	if (fd >= 0 && cw_own_is(fd, own))
		close(fd);
}
