/* The only process of the test guest: mounts the device, runs the checks of one boot, reboots or
 * powers off. Each check prints "ok NAME" or "FAIL NAME: why"; the last line of a boot is "boot N
 * done". */
#define _GNU_SOURCE
#include "guest.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void check(int ok, const char *name, const char *fmt, ...)
{
	va_list ap;

	if (ok) {
		printf("ok %s\n", name);
		return;
	}
	printf("FAIL %s: ", name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf(" (errno %d %s)\n", errno, strerror(errno));
}

void insert_modules(void)
{
	char name[256], path[512];
	FILE *f = fopen("/modules/order", "r");

	if (!f)
		return;
	while (fgets(name, sizeof(name), f)) {
		name[strcspn(name, "\n")] = 0;
		if (!name[0])
			continue;
		snprintf(path, sizeof(path), "/modules/%s", name);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || syscall(SYS_finit_module, fd, "", 0) < 0)
			printf("FAIL insmod %s: %s\n", name, strerror(errno));
		close(fd);
	}
	fclose(f);
}

int spawn(const char *path)
{
	int st = -1;
	pid_t p = fork();

	if (p == 0) {
		execl(path, path, (char *)NULL);
		_exit(127);
	}
	waitpid(p, &st, 0);
	return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

static int has_argument(const char *arg)
{
	char line[1024] = "";
	FILE *f = fopen("/proc/cmdline", "r");

	if (f) {
		if (!fgets(line, sizeof(line), f))
			line[0] = 0;
		fclose(f);
	}
	return strstr(line, arg) != NULL;
}

static int which_boot(void)
{
	char c = '0';
	int fd = open(MNT "/boot", O_RDWR | O_DIRECT);

	if (fd < 0 || pread(fd, &c, 1, 0) != 1)
		printf("FAIL boot file: %s\n", strerror(errno));
	close(fd);
	return c - '0';
}

int main(void)
{
	int r = -1, boot;

	setvbuf(stdout, NULL, _IONBF, 0);
	mkdir("/dev", 0755);
	mkdir("/proc", 0755);
	mkdir(MNT, 0755);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("proc", "/proc", "proc", 0, NULL);
	insert_modules();
	for (int i = 0; i < 100 && (r = mount("gpu0", MNT, "virtiofs", 0, NULL)) < 0; i++)
		usleep(20000);
	check(r == 0, "mount", "virtiofs");
	if (r == 0 && has_argument("mode=loop"))
		loop_sessions();
	boot = r == 0 ? which_boot() : 9;
	if (boot == 1) {
		test_files();
		test_loans();
	}
	if (r == 0)
		check(start_staying_read(), "staying", "READ to leave behind");
	printf("boot %d done\n", boot);
	reboot(boot == 1 ? RB_AUTOBOOT : RB_POWER_OFF);
	return 1;
}
