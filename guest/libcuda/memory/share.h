/*
 * What one process hands to another of the same vGPU. The application sees 64 opaque bytes (IPC
 * handles, exported pool pointers) or a file descriptor; either way they hold a token, which the
 * workers' common parent turns into what was shared. A descriptor is a memory file of this process
 * with those 64 bytes in it, so it travels like the driver's own.
 */
#ifndef CW_MEMORY_SHARE_H
#define CW_MEMORY_SHARE_H

#include "memory/memory.h"

enum cw_share_kind {
	CW_SHARE_MEMORY = 1, /* cuIpcGetMemHandle */
	CW_SHARE_EVENT,
	CW_SHARE_PHYSICAL, /* cuMemExportToShareableHandle */
	CW_SHARE_POOL,
	CW_SHARE_POINTER, /* cuMemPoolExportPointer */
};

struct cw_shared {
	uint8_t token[CW_SHARE_TOKEN_SIZE];
	char magic[8];
	uint32_t kind;
	uint32_t version;
	uint8_t rsvd[16];
};
_Static_assert(sizeof(struct cw_shared) == 64, "IPC handles have 64 bytes");

#pragma GCC visibility push(hidden)

/* Fills in everything but the token. */
void cw_share_init(struct cw_shared *s, enum cw_share_kind kind);
/* Whether these 64 bytes were made by cw_share_init for this kind. */
int cw_share_is(const struct cw_shared *s, enum cw_share_kind kind);
/* A descriptor that holds s. -1: no descriptors or no memory left. */
int cw_share_to_fd(const struct cw_shared *s);
/* 1 if fd holds a token of this kind. */
int cw_share_from_fd(int fd, enum cw_share_kind kind, struct cw_shared *s);

#pragma GCC visibility pop
#endif
