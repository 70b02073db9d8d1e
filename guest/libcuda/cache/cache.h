/*
 * A cache of compiled code in files, for NVRTC and nvJitLink (api/compilecache.c). libc only; it
 * knows nothing of sessions.
 *
 * Where: FOLDER/causeway-UID, where FOLDER is the driver's (CUDA_CACHE_PATH, else
 * ~/.nv/ComputeCache). A genuine driver that shares the folder keeps `index` and folders of one
 * digit there, which are left alone, and takes no notice of ours. The folder is of mode 0700 and
 * used only if it is the effective user's and nobody else may write there; it is opened anew by
 * every call, without following a link, and everything in it is reached through that descriptor. So
 * a FOLDER that users share, such as one in /tmp, lets nobody feed another user code.
 *
 * One file for an entry, named by its key, written under another name and renamed, so readers see
 * whole files or none. A header tells version, key and length, and a digest covers header and data:
 * what does not match is removed and counts as absent. `usage` counts blocks by its length, which
 * appends change atomically between processes; it may run ahead of the truth, and each eviction,
 * which only one process does at a time, sets it right.
 *
 * No state in the process but the settings, no lock, no descriptor that outlives a call: threads,
 * forks and processes need no care.
 */
#ifndef CW_CACHE_CACHE_H
#define CW_CACHE_CACHE_H

#include <limits.h>
#include <stdint.h>

#include "cache/blake2b.h"

#pragma GCC visibility push(hidden)

/* CUDA programming guide, environment variables. */
struct cw_cache_settings {
	int disabled; /* CUDA_CACHE_DISABLE=1 */
	/* CUDA_CACHE_MAXSIZE: bytes that our entries may take, in whole blocks */
	uint64_t max;
	char folder[PATH_MAX]; /* empty: there is none */
};

/* The environment's, read now. A process with more rights than its user has no folder. */
void cw_cache_settings_read(struct cw_cache_settings *s);
/* The same as the first caller in this process found it. Never NULL. */
const struct cw_cache_settings *cw_cache_settings(void);

struct cw_cache_key {
	uint8_t digest[CW_DIGEST];
};

/* Everything that decides what is compiled. Texts may be NULL. */
struct cw_cache_source {
	int kind;
	uint32_t arch, variant;
	const char *options, *host, *compiler;
	struct cw_cache_key data; /* of the bytes that are compiled */
	struct cw_cache_key from; /* of what was compiled from them before, or zeros */
};

void cw_cache_data_key(struct cw_cache_key *key, const void *data, size_t size);
void cw_cache_key(struct cw_cache_key *key, const struct cw_cache_source *src);

/* Whether there is a folder, which is made if need be: 0, or -errno as from cw_cache_put. */
int cw_cache_ready(const struct cw_cache_settings *s);

/* An entry: memory from malloc with size bytes behind the room that was asked for in front. */
struct cw_cache_found {
	void *memory;
	size_t size;
};

/* 0, or -errno: -ENOENT if there is no such entry, -EBADMSG if there was a damaged one; found is
 * then untouched. */
int cw_cache_get(const struct cw_cache_settings *s, const struct cw_cache_key *key, size_t front, struct cw_cache_found *found);
/* 0, or -errno: -EFBIG if the entry is larger than the cache may be, -EAGAIN if another process is
 * making room. */
int cw_cache_put(const struct cw_cache_settings *s, const struct cw_cache_key *key, const void *data, size_t size);

/* --- between the files of the cache ----------------------------------------------------------- */

enum {
	CW_CACHE_BLOCK = 4096, /* what limits count in: a file takes whole blocks */
	CW_CACHE_NAME = 2 * CW_DIGEST + 1,
};

/* A descriptor of our folder, or -errno: -EPERM if it is not ours alone. */
int cw_cache_folder(const struct cw_cache_settings *s, int create);
void cw_cache_name(char name[CW_CACHE_NAME], const struct cw_cache_key *key);
/* What entries of this many bytes are counted as. */
static inline uint64_t cw_cache_cost(uint64_t bytes) { return (bytes + CW_CACHE_BLOCK - 1) / CW_CACHE_BLOCK * CW_CACHE_BLOCK; }
/* Makes room for an entry of this cost by removing those that were not used for longest. 0, or as
 * cw_cache_put. */
int cw_cache_reserve(int dir, uint64_t cost, uint64_t max);
/* Counts a new entry. */
void cw_cache_count(int dir, uint64_t cost);

#pragma GCC visibility pop
#endif
