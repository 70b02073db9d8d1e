/*
 * Where answers come from. CAUSEWAY=unix:DIR/session: a connection to DIR/nvml is answered and
 * closed. No CAUSEWAY: the file "nvml" of the mount that this library was loaded from
 * (MOUNT/lib/libnvidia-ml.so.1), else of /run/causeway. Neither starts CUDA nor a worker.
 */
#include "snapshot.h"
#include "nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(CW_NO_SYMVER)
/* the version that glibc 2.17 has, in libdl */
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
#endif

enum { ANSWER_MS = 20000, PIECE = 64 << 10, ANSWER_MAX = 2 << 20 };

/* "nvml" beside the session socket or file. False: sessions go another way. */
static int locate(char *path, size_t cap, int *is_socket)
{
	const char *target = getenv("CAUSEWAY");
	char dir[4096];
	const char *slash;
	Dl_info info;
	int n;

	*is_socket = 0;
	if (target && *target) {
		if (strncmp(target, "unix:", 5) || !(slash = strrchr(target, '/')))
			return 0;
		*is_socket = 1;
		n = snprintf(path, cap, "%.*s/nvml", (int)(slash - target - 5), target + 5);
		return n > 0 && (size_t)n < cap;
	}
	if (dladdr((void *)&cw_nvml_fetch, &info) && info.dli_fname && strlen(info.dli_fname) < sizeof dir) {
		strcpy(dir, info.dli_fname);
		for (int up = 0; up < 2; up++) {
			char *end = strrchr(dir, '/');

			if (!end)
				break;
			*end = 0;
			if (up == 0)
				continue;
			n = snprintf(path, cap, "%s/session", dir);
			if (n > 0 && (size_t)n < cap && !access(path, F_OK)) {
				n = snprintf(path, cap, "%s/nvml", dir);
				return n > 0 && (size_t)n < cap;
			}
		}
	}
	n = snprintf(path, cap, "/run/causeway/nvml");
	return n > 0 && (size_t)n < cap;
}

int cw_nvml_source_present(void)
{
	const char *target = getenv("CAUSEWAY");
	char path[4096];
	char *name;
	int is_socket;

	if (!locate(path, sizeof path, &is_socket))
		return target && !strncmp(target, "tcp:", 4);
	name = strrchr(path, '/');
	strcpy(name, "/session"); /* hosts without "nvml" count too */
	return access(path, F_OK) == 0 || (is_socket && access(target + 5, F_OK) == 0);
}

static int dial(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof a.sun_path)
		return -ENAMETOOLONG;
	strcpy(a.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	while (connect(fd, (struct sockaddr *)&a, sizeof a))
		if (errno != EINTR) {
			int err = errno;

			close(fd);
			return -err;
		}
	return fd;
}

/* One piece at most; 0 at the end. */
static ssize_t piece(int fd, int is_socket, char *to, size_t cap, size_t at)
{
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int ready = is_socket ? poll(&p, 1, ANSWER_MS) : 1;
		ssize_t n;

		if (ready == 0)
			return -1;
		n = ready < 0 ? -1 : is_socket ? read(fd, to, cap) : pread(fd, to, cap, (off_t)at);
		if (n >= 0 || errno != EINTR)
			return n;
	}
}

static int read_answer(int fd, int is_socket, void **answer, size_t *len)
{
	char *buf = NULL;
	size_t have = 0;

	for (;;) {
		char *more = realloc(buf, have + PIECE);
		ssize_t n;

		if (!more) {
			free(buf);
			return NVML_MEMORY;
		}
		buf = more;
		n = piece(fd, is_socket, buf + have, PIECE, have);
		if (n < 0 || have + (size_t)n > ANSWER_MAX) {
			free(buf);
			return NVML_UNKNOWN;
		}
		have += (size_t)n;
		if (n == 0)
			break;
	}
	if (!have) { /* the host cannot say */
		free(buf);
		return NVML_FUNCTION_NOT_FOUND;
	}
	*answer = buf;
	*len = have;
	return NVML_SUCCESS;
}

int cw_nvml_fetch(void **answer, size_t *len)
{
	char path[4096];
	int is_socket, fd, res;

	if (!locate(path, sizeof path, &is_socket))
		return NVML_FUNCTION_NOT_FOUND;
	fd = is_socket ? dial(path) : open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return (is_socket ? fd == -ENOENT : errno == ENOENT) && cw_nvml_source_present() ? NVML_FUNCTION_NOT_FOUND
												 : NVML_DRIVER_NOT_LOADED;
	res = read_answer(fd, is_socket, answer, len);
	close(fd);
	return res;
}
