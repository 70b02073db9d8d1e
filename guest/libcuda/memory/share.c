/* Tokens in the shapes that applications pass around. */
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/share.h"
#include "session/compat.h"

enum { VERSION = 1, CLOEXEC = 1 /* MFD_CLOEXEC */ };

static const char magic[8] = {'C', 'A', 'U', 'S', 'E', 'W', 'A', 'Y'};

void cw_share_init(struct cw_shared *s, enum cw_share_kind kind)
{
	memset(s, 0, sizeof *s);
	memcpy(s->magic, magic, sizeof magic);
	s->kind = kind;
	s->version = VERSION;
}

int cw_share_is(const struct cw_shared *s, enum cw_share_kind kind)
{
	return !memcmp(s->magic, magic, sizeof magic) && s->kind == (uint32_t)kind && s->version == VERSION;
}

int cw_share_to_fd(const struct cw_shared *s)
{
	int fd = (int)syscall(SYS_memfd_create, "causeway", CLOEXEC);
	if (fd >= 0 && pwrite(fd, s, sizeof *s, 0) != (ssize_t)sizeof *s) {
		close(fd);
		fd = -1;
	}
	return fd;
}

int cw_share_from_fd(int fd, enum cw_share_kind kind, struct cw_shared *s)
{
	return pread(fd, s, sizeof *s, 0) == (ssize_t)sizeof *s && cw_share_is(s, kind);
}
