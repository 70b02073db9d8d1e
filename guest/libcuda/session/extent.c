/*
 * Extents: memory of the application's that the host itself copies from or to a region, by
 * asynchronous WRITEs and READs of the session file at the region's place. The kernel holds the
 * pages until the host has completed the request; nothing else does.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/utsname.h>

#include "session/extent.h"
#include "session/loan.h"

static struct {
	struct cw_lock lock; /* held from take to give */
	aio_context_t aio;
	int failed;	  /* the kernel gives no context */
	_Atomic int pins; /* 0: not asked yet, 1, -1: no */
} ex;

int cw_extent_pins(void)
{
	int pins = atomic_load_explicit(&ex.pins, memory_order_relaxed);
	if (pins == 0) {
		struct utsname u;
		char *end;
		unsigned long major = uname(&u) == 0 ? strtoul(u.release, &end, 10) : 0, minor = 0;
		if (major != 0 && *end == '.')
			minor = strtoul(end + 1, NULL, 10);
		pins = major > 6 || (major == 6 && minor >= 9) ? 1 : -1;
		atomic_store_explicit(&ex.pins, pins, memory_order_relaxed);
	}
	return pins > 0;
}

uint32_t cw_extent_take(void)
{
	if (cw_s.carrier != &cw_carrier_virtiofs || !cw_lock_try(&ex.lock))
		return 0;
	if (!ex.aio && !ex.failed)
		ex.failed = syscall(SYS_io_setup, CW_EXTENTS, &ex.aio) != 0;
	if (ex.aio)
		return cw_loans.max_read;
	cw_lock_release(&ex.lock);
	return 0;
}

void cw_extent_give(void) { cw_lock_release(&ex.lock); }

int cw_extent_submit(uint32_t region, uint32_t offset, void *p, uint32_t len, int to_region, void *tag)
{
	struct iocb cb = {0}, *list = &cb;
	int fd = cw_fd(&cw_s);
	if (fd < 0)
		return -EBADF;
	cb.aio_data = (uintptr_t)tag;
	cb.aio_lio_opcode = to_region ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
	cb.aio_fildes = (uint32_t)fd;
	cb.aio_buf = (uintptr_t)p;
	cb.aio_nbytes = len;
	cb.aio_offset = (int64_t)(CW_FILE_EXTENT | (uint64_t)region << 44 | offset);
	long n;
	do
		n = syscall(SYS_io_submit, ex.aio, 1, &list);
	while (n < 0 && errno == EINTR);
	return n == 1 ? 0 : n == 0 ? -EAGAIN : -errno;
}

int cw_extent_reap(struct cw_extent_end *ends, int most, int wait)
{
	struct io_event ev[CW_EXTENTS];
	struct timespec zero = {0, 0};
	long n;
	if (most > CW_EXTENTS)
		most = CW_EXTENTS;
	do
		n = syscall(SYS_io_getevents, ex.aio, wait ? 1 : 0, most, ev, wait ? NULL : &zero);
	while (n < 0 && errno == EINTR);
	for (long i = 0; i < n; i++)
		ends[i] = (struct cw_extent_end){(void *)(uintptr_t)ev[i].data, ev[i].res};
	return n < 0 ? -errno : (int)n;
}
