/* See spare.h. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "memory/spare.h"

enum { NAME = 512 };
#define GROUPS "/sys/fs/cgroup"

/* The number behind a word at the beginning of a line; before all, if the word is empty. What is no
 * number ("max") is `other`. */
static uint64_t number(const char *path, const char *word, uint64_t other)
{
	FILE *f = fopen(path, "re");
	size_t n = strlen(word);
	uint64_t found = other;
	char line[128], *end;
	while (f && fgets(line, sizeof line, f)) {
		if (strncmp(line, word, n) != 0)
			continue;
		unsigned long long v = strtoull(line + n, &end, 10);
		found = end == line + n ? other : v;
		break;
	}
	if (f)
		fclose(f);
	return found;
}

/* Where the file cannot be read, as by a process with all the descriptors that it may have, the
 * kernel says less (all: how much there is). */
static uint64_t of_machine(const char *what, int all)
{
	uint64_t kib = number("/proc/meminfo", what, UINT64_MAX);
	struct sysinfo s;
	if (kib <= UINT64_MAX >> 10)
		return kib << 10;
	if (sysinfo(&s) != 0)
		return UINT64_MAX;
	return (all ? (uint64_t)s.totalram : (uint64_t)s.freeram + s.bufferram) * s.mem_unit;
}

static uint64_t file_of(const char *group, const char *file, const char *word, uint64_t other)
{
	char path[NAME];
	int n = snprintf(path, sizeof path, "%s/%s", group, file);
	return n < 0 || n >= NAME ? other : number(path, word, other);
}

/* What a control group has left of its limit, or (all) the limit. */
static uint64_t rest_of(const char *group, int all)
{
	uint64_t most = file_of(group, "memory.max", "", UINT64_MAX);
	if (most == UINT64_MAX || all)
		return most;
	uint64_t used = file_of(group, "memory.current", "", 0), cache = file_of(group, "memory.stat", "file ", 0);
	/* Of the cache, and no spare. */
	uint64_t shared = file_of(group, "memory.stat", "shmem ", 0);
	uint64_t clean = cache > shared ? cache - shared : 0;
	used -= clean < used ? clean : used;
	return used < most ? most - used : 0;
}

/* The group that this process is in, and those around it. In a container what is mounted there is
 * the container's own. */
static uint64_t of_groups(int all)
{
	char line[NAME], group[2 * NAME];
	FILE *f = fopen("/proc/self/cgroup", "re");
	uint64_t least = rest_of(GROUPS, all);
	while (f && fgets(line, sizeof line, f)) {
		if (strncmp(line, "0::/", 4) != 0)
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(group, sizeof group, "%s%s", GROUPS, line + 3);
		for (char *cut; strlen(group) > strlen(GROUPS) + 1; *cut = 0) {
			uint64_t rest = rest_of(group, all);
			least = rest < least ? rest : least;
			cut = strrchr(group, '/');
		}
		break;
	}
	if (f)
		fclose(f);
	return least;
}

uint64_t cw_memory_spare(void)
{
	uint64_t machine = of_machine("MemAvailable:", 0), groups = of_groups(0);
	return machine < groups ? machine : groups;
}

uint64_t cw_memory_all(void)
{
	static _Atomic uint64_t known;
	uint64_t all = atomic_load(&known);
	if (all == 0) {
		uint64_t machine = of_machine("MemTotal:", 1), groups = of_groups(1);
		all = machine < groups ? machine : groups;
		atomic_store(&known, all);
	}
	return all;
}
