/* What the fake worker and its TCP end share. */
#ifndef CW_FAKE_INTERNAL_H
#define CW_FAKE_INTERNAL_H

#include "session/tests/fake_worker.h"

enum { REGIONS = 256, BLOBS = 16 };

struct fake_worker {
	struct fake_options o;
	int sock, bell;
	int tcp; /* sock speaks frames; base is a mirror */
	uint8_t *base;
	struct cw_control_page *ctl;
	uint64_t head;
	struct {
		int fd, more[CW_REGION_PARTS]; /* more: of the parts behind the first */
		uint8_t *mem;
		uint64_t size, part, offset; /* offset: of a file that is not the session's alone */
	} region[REGIONS];
	struct {
		uint32_t id;
		uint64_t total, have;
		uint8_t *mem;
	} blob[BLOBS];
	struct {
		uint8_t *mem;
		size_t len;
	} rest[CW_SLOT_COUNT]; /* replies longer than a slot */
	char console[65536];
};

/* fake_worker.c: consumes until the guest is gone; does not return. */
void fake_run(struct fake_worker *w);

/* fake_tcp.c */
int fake_tcp_accept(struct fake_worker *w, int listener);
void fake_tcp_poll(struct fake_worker *w);
void fake_tcp_send(struct fake_worker *w, uint16_t type, uint64_t arg, const void *p, size_t n, const void *q, size_t m);
void fake_tcp_pull(struct fake_worker *w, uint32_t region, uint64_t offset, uint64_t size, uint8_t *to);
/* 0: the guest refuses */
int fake_tcp_try(struct fake_worker *w, uint32_t region, uint64_t offset, uint64_t size, uint8_t *to);
void fake_tcp_control(struct fake_worker *w);

/* fake_vfs.c */
int fake_vfs_mount(const char *dir);
void fake_vfs_start(struct fake_worker *w, int fuse);
void fake_vfs_poll(struct fake_worker *w, int ms);
void fake_vfs_wake(struct fake_worker *w, uint32_t slot);
int fake_vfs_lent(struct fake_worker *w, uint32_t region);	 /* all of it */
int fake_vfs_await_lent(struct fake_worker *w, uint32_t region); /* for a minute at most */

#endif
