/*
 * The fake worker's end of the virtiofs carrier. The file system is served through /dev/fuse, whose
 * kernel client is the same; guest memory is reached by mapping the process's own shared mappings
 * (/proc/PID/map_files). One process serves one session.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "session/tests/fake_internal.h"

enum { ROOT = 1, SESSION = 2, INFO = 3, PIECES = 512, WAITS = 128, MAX_READ = 1 << 20, TERM_MS = 2000, WAIT_MS = 1000, LENT_MS = 60000 };

struct fake_vfs_stats fake_vfs_stats;

static struct {
	int fd, open_count;
	uint32_t pid;
	struct {
		uint32_t region, len;
		uint64_t off, unique; /* unique 0: no READ pending */
		int64_t renewed;
	} piece[PIECES];
	struct {
		uint32_t slot;
		uint64_t unique;
		int64_t since;
	} wait[WAITS];
	uint8_t token[CW_SLOT_COUNT + 1];
	int started, returned;
} v;

static const char info[] = "protocol=1\nmax_read=1048576\n";

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void reply(uint64_t unique, int err, const void *p, size_t n)
{
	struct fuse_out_header h = {(uint32_t)(sizeof h + n), -err, unique};
	struct iovec io[] = {{&h, sizeof h}, {(void *)(uintptr_t)p, n}};
	ssize_t done = writev(v.fd, io, n ? 2 : 1);
	CHECK(done == (ssize_t)h.len || errno == ENOENT);
}

static struct fuse_attr attr(uint64_t ino)
{
	struct fuse_attr a = {.ino = ino, .nlink = 1, .blksize = 4096};
	a.mode = ino == ROOT ? S_IFDIR | 0755 : ino == SESSION ? S_IFREG | 0666 : S_IFREG | 0444;
	a.size = ino == SESSION ? 1ull << 62 : ino == INFO ? sizeof info - 1 : 0;
	return a;
}

static void lookup(uint64_t unique, const char *name)
{
	struct fuse_entry_out e = {0};
	e.nodeid = !strcmp(name, "session") ? SESSION : !strcmp(name, "info") ? INFO : 0;
	if (e.nodeid == 0) {
		reply(unique, ENOENT, NULL, 0);
		return;
	}
	e.attr = attr(e.nodeid);
	reply(unique, 0, &e, sizeof e);
}

static void lend(struct fake_worker *w, uint64_t unique, uint64_t off, uint32_t size)
{
	uint32_t region = (uint32_t)((off - CW_FILE_LOAN) >> 44);
	uint64_t at = off & ((1ull << 44) - 1);
	int k = -1;
	CHECK(region < REGIONS && w->region[region].size && at + size <= w->region[region].size && size <= MAX_READ);
	for (int i = 0; i < PIECES; i++)
		if (v.piece[i].len && v.piece[i].region == region && v.piece[i].off == at)
			k = i;
	for (int i = 0; i < PIECES && k < 0; i++)
		if (!v.piece[i].len) {
			k = i;
			v.piece[i].unique = 0;
			fake_vfs_stats.loans++;
		}
	CHECK(k >= 0);
	if (v.piece[k].unique) {
		reply(v.piece[k].unique, 0, NULL, 0);
		fake_vfs_stats.renewals++;
	}
	v.piece[k].region = region;
	v.piece[k].off = at;
	v.piece[k].len = size;
	v.piece[k].unique = unique;
	v.piece[k].renewed = now_ms();
}

int fake_vfs_lent(struct fake_worker *w, uint32_t region)
{
	uint64_t lent = 0;
	for (int i = 0; i < PIECES; i++)
		if (v.piece[i].len && v.piece[i].region == region && v.piece[i].unique)
			lent += v.piece[i].len;
	return lent == w->region[region].size;
}

int fake_vfs_await_lent(struct fake_worker *w, uint32_t region)
{
	/* The READs of a region may come after the record that adds it, and again after a term in
	 * which the guest did not run. */
	for (int64_t until = now_ms() + LENT_MS; !fake_vfs_lent(w, region);) {
		if (now_ms() > until)
			return 0;
		fake_vfs_poll(w, 50);
	}
	return 1;
}

static void end_pieces(int64_t region, int forget)
{
	for (int i = 0; i < PIECES; i++)
		if (v.piece[i].len && (region < 0 || v.piece[i].region == region)) {
			if (v.piece[i].unique)
				reply(v.piece[i].unique, 0, NULL, 0);
			v.piece[i].unique = 0;
			if (forget)
				v.piece[i].len = 0;
		}
}

void fake_vfs_return_all(struct fake_worker *w)
{
	(void)w;
	end_pieces(-1, 0);
}

void fake_vfs_wake(struct fake_worker *w, uint32_t slot)
{
	int any = 0;
	(void)w;
	for (int i = 0; i < WAITS; i++)
		if (v.wait[i].unique && v.wait[i].slot == slot) {
			reply(v.wait[i].unique, 0, NULL, 0);
			v.wait[i].unique = 0;
			any = 1;
		}
	v.token[slot] = !any;
}

static void await(uint64_t unique, uint32_t slot)
{
	CHECK(slot <= CW_SLOT_COUNT);
	fake_vfs_stats.waits++;
	if (v.token[slot]) {
		v.token[slot] = 0;
		reply(unique, 0, NULL, 0);
		return;
	}
	for (int i = 0; i < WAITS; i++)
		if (!v.wait[i].unique) {
			v.wait[i].unique = unique;
			v.wait[i].slot = slot;
			v.wait[i].since = now_ms();
			return;
		}
	CHECK(!"too many waits");
}

/* A descriptor on the shared mapping of the guest process at va; -1 for private memory, which only
 * a VM's host can reach. */
static int guest_memory(uint64_t va, uint64_t size)
{
	char path[96];
	snprintf(path, sizeof path, "/proc/%u/map_files/%llx-%llx", v.pid, (unsigned long long)va, (unsigned long long)(va + size));
	return open(path, O_RDWR | O_CLOEXEC);
}

static int control(struct fake_worker *w, const struct cw_hello *h)
{
	CHECK(h->magic == CW_HELLO_MAGIC && h->region < REGIONS);
	switch (h->type) {
	case CW_MSG_HELLO:
		if (w->o.refuse)
			return w->o.refuse;
		v.pid = h->pid;
		/* fallthrough */
	case CW_MSG_REGION:
		CHECK(!w->region[h->region].size);
		w->region[h->region].size = h->size;
		w->region[h->region].fd = guest_memory(h->va, h->size);
		if (w->region[h->region].fd >= 0)
			return 0;
		w->region[h->region].size = 0;
		return EOPNOTSUPP;
	case CW_MSG_START:
		CHECK(fake_vfs_await_lent(w, 0));
		w->base = mmap(NULL, w->region[0].size, PROT_READ | PROT_WRITE, MAP_SHARED, w->region[0].fd, 0);
		CHECK(w->base != MAP_FAILED);
		w->ctl = (struct cw_control_page *)w->base;
		v.started = 1;
		return 0;
	case CW_MSG_REGION_END:
		/* region 0: the session's end */
		end_pieces(h->region == 0 ? -1 : (int64_t)h->region, 1);
		if (h->region != 0) {
			CHECK(!w->region[h->region].mem);
			close(w->region[h->region].fd);
			memset(&w->region[h->region], 0, sizeof w->region[0]);
		}
		return 0;
	}
	return EINVAL;
}

/* An extent between p and a region. Each fifth is refused for now, each seventh ends in its middle:
 * 0, or an errno, and *n. */
static int extent(struct fake_worker *w, uint64_t off, uint32_t size, uint8_t **at, uint32_t *n)
{
	uint64_t k = ++fake_vfs_stats.extents;
	off -= CW_FILE_EXTENT;
	*at = fake_region(w, (uint32_t)(off >> 44), off & ((1ull << 44) - 1), size);
	*n = k % 7 == 0 ? size / 2 : size;
	return !*at ? EINVAL : k % 5 == 0 ? EAGAIN : 0;
}

static void on_write(struct fake_worker *w, uint64_t unique, const struct fuse_write_in *in, const uint8_t *p)
{
	struct fuse_write_out out = {.size = in->size};
	struct cw_hello h;
	uint8_t *at;
	int err = EINVAL;
	if (in->offset >= CW_FILE_EXTENT) {
		err = extent(w, in->offset, in->size, &at, &out.size);
		if (err == 0)
			memcpy(at, p, out.size);
	} else if (in->offset == CW_FILE_DOORBELL) {
		fake_vfs_stats.doorbells++;
		err = 0;
	} else if (in->offset == CW_FILE_CONTROL && in->size >= sizeof h) {
		memcpy(&h, p, sizeof h);
		err = control(w, &h);
	}
	reply(unique, err, &out, err ? 0 : sizeof out);
}

static void on_read(struct fake_worker *w, uint64_t unique, uint64_t ino, const struct fuse_read_in *in)
{
	if (ino == INFO) {
		size_t n = in->offset < sizeof info - 1 ? sizeof info - 1 - in->offset : 0;
		reply(unique, 0, info + in->offset, n < in->size ? n : in->size);
	} else if (in->offset >= CW_FILE_EXTENT) {
		uint8_t *at;
		uint32_t n;
		int err = extent(w, in->offset, in->size, &at, &n);
		reply(unique, err, at, err ? 0 : n);
	} else if (in->offset >= CW_FILE_WAIT) {
		await(unique, (uint32_t)((in->offset - CW_FILE_WAIT) >> 12));
	} else if (in->offset >= CW_FILE_LOAN) {
		lend(w, unique, in->offset, in->size);
	} else {
		reply(unique, 0, "no room", in->offset == CW_FILE_ERROR ? 7 : 0);
	}
}

static void on_init(uint64_t unique, const struct fuse_init_in *in)
{
	struct fuse_init_out o = {.major = 7,
				  .minor = 31,
				  .max_readahead = in->max_readahead,
				  .max_background = 1000,
				  .congestion_threshold = 1000,
				  .max_write = MAX_READ,
				  .max_pages = 256,
				  .time_gran = 1};
	o.flags = FUSE_ASYNC_DIO | FUSE_MAX_PAGES | FUSE_BIG_WRITES;
	reply(unique, 0, &o, sizeof o);
}

static void on_request(struct fake_worker *w, const uint8_t *buf)
{
	struct fuse_in_header h;
	memcpy(&h, buf, sizeof h);
	const void *arg = buf + sizeof h;
	struct fuse_attr_out a = {.attr = attr(h.nodeid)};
	struct fuse_open_out o = {.fh = 1, .open_flags = h.nodeid == SESSION ? FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES : 0};
	switch (h.opcode) {
	case FUSE_INIT: on_init(h.unique, arg); return;
	case FUSE_LOOKUP: lookup(h.unique, arg); return;
	case FUSE_GETATTR: reply(h.unique, 0, &a, sizeof a); return;
	case FUSE_OPEN:
		v.open_count += h.nodeid == SESSION;
		reply(h.unique, 0, &o, sizeof o);
		return;
	case FUSE_READ: on_read(w, h.unique, h.nodeid, arg); return;
	case FUSE_WRITE: on_write(w, h.unique, arg, (const uint8_t *)arg + sizeof(struct fuse_write_in)); return;
	case FUSE_FLUSH: reply(h.unique, 0, NULL, 0); return;
	case FUSE_RELEASE:
		reply(h.unique, 0, NULL, 0);
		if (h.nodeid == SESSION)
			_exit(0);
		return;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
	case FUSE_DESTROY: return; /* INTERRUPT: as virtiofs, nothing */
	default: reply(h.unique, ENOSYS, NULL, 0);
	}
}

static void tick(void)
{
	int64_t now = now_ms();
	int lapsed = 0;
	for (int i = 0; i < PIECES; i++)
		lapsed |= v.piece[i].len && v.piece[i].unique && now - v.piece[i].renewed > TERM_MS;
	if (lapsed) {
		fake_vfs_stats.lapses++;
		end_pieces(-1, 0);
	}
	for (int i = 0; i < WAITS; i++)
		if (v.wait[i].unique && now - v.wait[i].since > WAIT_MS) {
			reply(v.wait[i].unique, 0, NULL, 0);
			v.wait[i].unique = 0;
		}
}

/* Serves requests that are there; waits for one at most ms. */
void fake_vfs_poll(struct fake_worker *w, int ms)
{
	static uint8_t buf[MAX_READ + 65536];
	struct pollfd p = {.fd = v.fd, .events = POLLIN};
	tick();
	if (ms > 0)
		poll(&p, 1, ms);
	for (;;) {
		ssize_t n = read(v.fd, buf, sizeof buf);
		if (n < 0 && errno == ENODEV)
			_exit(0); /* unmounted */
		if (n <= 0)
			return;
		on_request(w, buf);
	}
}

int fake_vfs_possible(void)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0 && geteuid() == 0;
}

int fake_vfs_mount(const char *dir)
{
	char opts[128];
	v.fd = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	CHECK(v.fd >= 0);
	snprintf(opts, sizeof opts, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", v.fd, MAX_READ);
	CHECK(mount("causeway", dir, "fuse", MS_NOSUID | MS_NODEV, opts) == 0);
	return v.fd;
}

void fake_vfs_umount(const char *dir)
{
	umount2(dir, MNT_DETACH);
	rmdir(dir);
}

void fake_vfs_start(struct fake_worker *w, int fuse)
{
	v.fd = fuse;
	while (!v.started)
		fake_vfs_poll(w, 1000);
}
