/* What memory a process may yet have, by files like the kernel's in a folder of the test's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "session/tests/check.h"

static char root[64] = "/tmp/causeway-spare-XXXXXX";
static FILE *within(const char *path, const char *how)
{
	char there[1024];
	snprintf(there, sizeof there, "%s%s", root, path);
	return fopen(there, how);
}
static int silent = 1;
static int f_sysinfo(struct sysinfo *s)
{
	*s = (struct sysinfo){.totalram = 4096, .freeram = 1024, .bufferram = 256, .mem_unit = 1 << 20};
	return silent ? -1 : 0;
}
#define sysinfo(s) f_sysinfo(s)
#define fopen within
#include "memory/spare.c"
#undef fopen
#undef sysinfo

#define MIB(n) ((uint64_t)(n) << 20)

static void put(const char *path, const char *text)
{
	char there[1024];
	snprintf(there, sizeof there, "%s%s", root, path);
	for (char *p = strchr(there + strlen(root) + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		mkdir(there, 0700);
		*p = '/';
	}
	FILE *f = fopen(there, "w");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

int main(void)
{
	CHECK(mkdtemp(root));
	CHECK(cw_memory_spare() == UINT64_MAX); /* nobody says */
	silent = 0;
	CHECK(cw_memory_spare() == MIB(1280)); /* no file can be opened */
	put("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          100 kB\nMemAvailable:    4194304 kB\n");
	CHECK(cw_memory_spare() == MIB(4096));
	put("/proc/self/cgroup", "4:memory:/old\n0::/\n");
	CHECK(cw_memory_spare() == MIB(4096));
	/* A container's. */
	put("/sys/fs/cgroup/memory.max", "1073741824\n");
	put("/sys/fs/cgroup/memory.current", "943718400\n");
	CHECK(cw_memory_spare() == MIB(1024 - 900));
	put("/sys/fs/cgroup/memory.stat", "anon 10\nfile 524288000\nkernel 5\nshmem 104857600\nfile_mapped 1\n");
	CHECK(cw_memory_spare() == MIB(1024 - 900 + 400));
	put("/sys/fs/cgroup/memory.current", "2147483648\n"); /* the limit was lowered */
	CHECK(cw_memory_spare() == 0);
	/* A service's, and what it is part of. */
	put("/sys/fs/cgroup/memory.max", "max\n");
	put("/proc/self/cgroup", "0::/a.slice/b.service\n");
	CHECK(cw_memory_spare() == MIB(4096));
	put("/sys/fs/cgroup/a.slice/memory.max", "209715200\n");
	put("/sys/fs/cgroup/a.slice/memory.current", "0\n");
	put("/sys/fs/cgroup/a.slice/b.service/memory.max", "314572800\n");
	put("/sys/fs/cgroup/a.slice/b.service/memory.current", "209715200\n");
	CHECK(cw_memory_spare() == MIB(100));
	CHECK(cw_memory_all() == MIB(200) && cw_memory_all() == MIB(200));
	/* Lines that are no such lines. */
	put("/proc/self/cgroup", "0::\n0::x\n");
	put("/proc/meminfo", "MemAvailable: lots\n");
	CHECK(cw_memory_spare() == MIB(1280));
	char command[128];
	snprintf(command, sizeof command, "rm -r %s", root);
	CHECK(system(command) == 0);
	puts("spare_test ok");
	return 0;
}
