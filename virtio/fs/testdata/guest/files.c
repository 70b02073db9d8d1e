/* Served files: content, attributes, refusals, programs and libraries run from the mount. */
#define _GNU_SOURCE
#include "guest.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void test_content(void)
{
	char buf[256];
	struct stat st;
	int fd = open(MNT "/hello", O_RDONLY);
	ssize_t n = read(fd, buf, sizeof(buf) - 1);

	buf[n > 0 ? n : 0] = 0;
	check(n > 0 && !strcmp(buf, "served by the host\n"), "read", "%zd bytes: %s", n, buf);
	check(fstat(fd, &st) == 0 && st.st_size == n && S_ISREG(st.st_mode), "stat", "size %lld", (long long)st.st_size);
	char *m = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	check(m != MAP_FAILED && !memcmp(m, buf, (size_t)n), "mmap", "MAP_SHARED of a served file");
	close(fd);

	n = readlink(MNT "/link", buf, sizeof(buf));
	check(n == 5 && !memcmp(buf, "hello", 5), "readlink", "%zd", n);
	check(stat(MNT "/session", &st) == 0 && st.st_size == 1LL << 62 && (st.st_mode & 0777) == 0666, "control stat",
	      "size %lld mode %o", (long long)st.st_size, st.st_mode);
	struct statx sx;
	check(statx(AT_FDCWD, MNT "/hello", 0, STATX_BASIC_STATS | STATX_BTIME, &sx) == 0 && sx.stx_size == 19,
	      "statx", "size %lld", (long long)sx.stx_size);
	struct statvfs vfs;
	check(statvfs(MNT, &vfs) == 0 && vfs.f_namemax == 255, "statfs", "");
}

static void test_refusals(void)
{
	check(open(MNT "/hello", O_RDWR) < 0 && errno == EROFS, "open for writing", "");
	check(open(MNT "/new", O_RDWR | O_CREAT, 0666) < 0 && errno == EROFS, "create", "");
	check(open(MNT "/nothing", O_RDONLY) < 0 && errno == ENOENT, "missing", "");
	check(mkdir(MNT "/d", 0777) < 0 && errno == EROFS, "mkdir", "");
	check(unlink(MNT "/hello") < 0 && errno == EROFS, "unlink", "");
	check(truncate(MNT "/hello", 0) < 0 && errno == EROFS, "truncate", "");
	int fd = open(MNT "/session", O_WRONLY | O_TRUNC);
	check(fd >= 0, "open control with O_TRUNC", "");
	check(ftruncate(fd, 5) == 0, "truncate control", "");
	close(fd);
}

static void test_directory(void)
{
	int names = 0, many = 0;
	DIR *d = opendir(MNT);

	for (struct dirent *e; d && (e = readdir(d));)
		names += !strcmp(e->d_name, "hello") || !strcmp(e->d_name, "lib") || !strcmp(e->d_name, "session");
	if (d)
		closedir(d);
	check(names == 3, "readdir", "%d names", names);
	d = opendir(MNT "/many");
	for (struct dirent *e; d && (e = readdir(d));) {
		struct stat st;
		char path[512];
		snprintf(path, sizeof(path), MNT "/many/%s", e->d_name);
		many += e->d_name[0] == 'f' && stat(path, &st) == 0 && st.st_size == 1;
	}
	if (d)
		closedir(d);
	check(many == 1000, "readdir of a large directory", "%d names", many);
}

void test_files(void)
{
	test_content();
	test_refusals();
	test_directory();
	int st = spawn(MNT "/bin/static");
	check(st == 42, "exec", "status %d", st);
	st = spawn(MNT "/bin/dynamic");
	check(st == 43, "dlopen", "status %d", st);
}
