/* See mappings.h. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/mappings.h"

enum { READ_WRITE = CW_VMA_READABLE | CW_VMA_WRITABLE };

/* -1: the kernel does not answer. */
static int ask(uint64_t at, uint64_t end)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), res = 1;
	while (at < end && res == 1) {
		struct cw_mapping_query q = {.addr = at};
		if (fd < 0 || cw_mapping_ask(fd, &q) != 0)
			res = -1; /* or nothing is there, which the other way finds, too */
		else if ((q.vma_flags & READ_WRITE) != READ_WRITE)
			res = 0;
		at = q.hi;
	}
	if (fd >= 0)
		close(fd);
	return res;
}

static int look(uint64_t at, uint64_t end)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long lo, hi;
	char line[512], how[5];
	int plain = 1;
	while (f && plain && at < end && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx %4s", &lo, &hi, how) != 3 || hi <= at)
			continue;
		plain = lo <= at && how[0] == 'r' && how[1] == 'w';
		at = hi;
	}
	if (f)
		fclose(f);
	return plain && at >= end;
}

int cw_mapped_plainly(uint64_t at, uint64_t size)
{
	int res = ask(at, at + size);
	return res < 0 ? look(at, at + size) : res;
}
