/* What the application's own memory is made of, as the kernel tells: by a question for one mapping
 * (Linux 6.11), or by its list of all. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/backing.h"
#include "memory/mappings.h"
#include "session/compat.h"

enum { NAME = 4352 };

/* One mapping. */
struct mapping {
	uint64_t lo, hi, at, inode; /* at: offset in the file */
	int shared, writable;
	char path[NAME]; /* empty: anonymous */
};

struct maps {
	int fd;
	FILE *list; /* where the kernel answers no questions */
};

/* A line of the list. */
static void parse_mapping(const char *p, struct mapping *m)
{
	memset(m, 0, offsetof(struct mapping, path));
	m->lo = cw_hex(&p);
	m->hi = *p == '-' ? (p++, cw_hex(&p)) : 0;
	if (*p == ' ' && strlen(p) > 6) {
		m->writable = !strncmp(p + 1, "rw", 2);
		m->shared = p[4] == 's';
		p += 6;
		m->at = cw_hex(&p);
	}
	const char *path = strpbrk(p, "/[");
	snprintf(m->path, sizeof m->path, "%.*s", path ? (int)strcspn(path, "\n") : 0, path ? path : "");
	p = strchr(p, ':');
	p = p ? strchr(p, ' ') : NULL;
	m->inode = p ? strtoull(p, NULL, 10) : 0;
}

/* The first mapping that ends after addr. 0: there is none. */
static int next_mapping(struct maps *maps, uint64_t addr, struct mapping *m)
{
	char line[NAME];
	if (!maps->list) {
		struct cw_mapping_query q = {
			.flags = CW_QUERY_OR_NEXT, .addr = addr, .name_size = sizeof m->path, .name = (uintptr_t)m->path};
		m->path[0] = 0;
		if (cw_mapping_ask(maps->fd, &q) == 0) {
			m->lo = q.lo, m->hi = q.hi, m->at = q.at, m->inode = q.inode;
			m->shared = (q.vma_flags & CW_VMA_SHARED) != 0;
			m->writable = (q.vma_flags & CW_VMA_WRITABLE) && (q.vma_flags & CW_VMA_READABLE);
			if (q.name_size == 0)
				m->path[0] = 0;
			return 1;
		}
		if (errno == ENOENT || !(maps->list = fdopen(maps->fd, "re")))
			return 0;
	}
	while (fgets(line, sizeof line, maps->list)) {
		parse_mapping(line, m);
		if (m->hi > addr)
			return 1;
	}
	return 0;
}

/* The file behind a shared mapping: by its name if that still leads to it, else by the kernel's own
 * link. */
static int open_mapped(const struct mapping *m)
{
	char link[64];
	struct stat st;
	int fd = open(m->path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && cw_fstat(fd, &st) == 0 && st.st_ino == m->inode && S_ISREG(st.st_mode))
		return fd;
	if (fd >= 0)
		close(fd);
	snprintf(link, sizeof link, "/proc/self/map_files/%" PRIx64 "-%" PRIx64, m->lo, m->hi);
	fd = open(link, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (cw_fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static int begins(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

/* What a mapping is that does not stand for a whole range by itself. */
static enum cw_backing kind_of(const struct mapping *m, int ours)
{
	if (m->shared && !ours)
		return CW_OTHER;
	if (!m->writable)
		return CW_UNWRITABLE;
	return !m->path[0] || ours || begins(m->path, "[heap]") || begins(m->path, "[anon:") ? CW_ANONYMOUS : CW_PRIVATE;
}

enum cw_backing cw_backing_of(uint64_t from, uint64_t end, struct cw_backed *out)
{
	struct maps maps = {open("/proc/self/maps", O_RDONLY | O_CLOEXEC), NULL};
	enum cw_backing b = CW_ANONYMOUS;
	struct mapping m;
	uint64_t at = from, print = 0;
	int files = 1;
	char name[CW_MEMFD_NAME], own[sizeof name + 8];
	snprintf(own, sizeof own, "/memfd:%s", cw_memfd_name(name));
	*out = (struct cw_backed){.file = -1};
	if (maps.fd < 0)
		return CW_OTHER;
	while (at < end && next_mapping(&maps, at, &m) && m.lo <= at) {
		int ours = begins(m.path, own), whole = at == from && m.hi >= end && m.shared;
		uint64_t lo = m.lo < from ? from : m.lo, hi = m.hi < end ? m.hi : end;
		if (!m.shared || m.inode == 0)
			files = 0;
		print = cw_print(print, lo - from, hi - from, m.inode, m.at + (lo - m.lo));
		if (whole && m.writable && m.path[0] == '/' && !ours) {
			b = CW_SHARED;
			out->at = m.at + (from - m.lo);
			out->file = open_mapped(&m);
		} else {
			enum cw_backing kind = kind_of(&m, ours);
			b = kind < b ? kind : b;
		}
		at = m.hi;
	}
	if (maps.list)
		fclose(maps.list);
	else
		close(maps.fd);
	out->print = files && at >= end ? print : 0;
	return at < end ? CW_UNMAPPED : b;
}
