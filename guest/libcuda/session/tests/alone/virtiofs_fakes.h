/* For virtiofs_test.c, which includes carrier_virtiofs.c before it: files, memory and loans that
 * fail when the test says so, and what was done. */
#ifndef CW_VIRTIOFS_FAKES_H
#define CW_VIRTIOFS_FAKES_H

enum { SESSION = 70, INFO = 71, LIMIT = 72, AIO = 4242 };

struct cw_session cw_s;
struct cw_global cw_g;
struct cw_loans cw_loans;

/* --- the files -------------------------------------------------------------------------------- */

static char mount_[5000];
/* limit: the kernel's sysctl; NULL: it has none */
static const char *info = "", *refusal = "", *limit;
static int probes, probe_errno, said_so;
static int open_errno, files, naps; /* files: that are open */
static uint32_t sent[256], sent_region[256];
static uint64_t sent_va, sent_size;
static int count_, eintr, eagain, short_;
static uint32_t refuse_type;
static int refuse_errno;
static int rung, ring_eintr, ring_none;
static int waits_errno;
static off_t waited;

static int f_open(const char *path, int flags)
{
	size_t n = strlen(mount_);
	if (!strcmp(path, "/proc/sys/fs/fuse/max_pages_limit")) {
		CHECK(flags == (O_RDONLY | O_CLOEXEC));
		errno = ENOENT;
		files += limit != NULL;
		return limit ? LIMIT : -1;
	}
	CHECK(!strncmp(path, mount_, n));
	if (!strcmp(path + n, "/info")) {
		CHECK(flags == (O_RDONLY | O_CLOEXEC));
		if (!info) {
			errno = ENOENT;
			return -1;
		}
		files++;
		return INFO;
	}
	CHECK(!strcmp(path + n, "/session") && flags == (O_RDWR | O_DIRECT | O_CLOEXEC));
	if (open_errno) {
		errno = open_errno;
		return -1;
	}
	files++;
	return SESSION;
}

static int f_close(int fd)
{
	CHECK(fd == SESSION || fd == INFO || fd == LIMIT);
	files--;
	return 0;
}

static ssize_t f_read(int fd, void *p, size_t n)
{
	const char *text = fd == INFO ? info : limit;
	CHECK((fd == INFO || fd == LIMIT) && strlen(text) < n);
	memcpy(p, text, strlen(text));
	return (ssize_t)strlen(text);
}

static int try(int *left, int err)
{
	if (*left > 0) {
		--*left;
		errno = err;
		return 1;
	}
	return 0;
}

char cw_rdma_apart[256];

static ssize_t f_pwrite(int fd, const void *p, size_t n, off_t at)
{
	CHECK(fd == SESSION);
	if (at == (off_t)CW_FILE_DOORBELL) {
		CHECK(n == 8 && *(const uint64_t *)p == 1);
		if (try(&ring_eintr, EINTR))
			return -1;
		if (try(&ring_none, EINTR)) /* errno is an older call's */
			return 0;
		rung++;
		return 8;
	}
	struct cw_hello h;
	CHECK(at == (off_t)CW_FILE_CONTROL && n >= sizeof h);
	if (try(&eintr, EINTR) || try(&eagain, EAGAIN))
		return -1;
	memcpy(&h, p, sizeof h);
	/* Why the session was to come another way is MsgHello's text. */
	CHECK(h.text_len == (h.type == CW_MSG_HELLO ? strlen(cw_rdma_apart) : 0) && n == sizeof h + h.text_len);
	CHECK(!memcmp((const uint8_t *)p + sizeof h, cw_rdma_apart, h.text_len));
	sent[count_ % 256] = h.type;
	sent_region[count_++ % 256] = h.region;
	sent_va = h.va;
	sent_size = h.size;
	if (h.type == refuse_type) {
		errno = refuse_errno;
		return -1;
	}
	return short_ ? (ssize_t)n - 1 : (ssize_t)n;
}

static ssize_t f_pread(int fd, void *p, size_t n, off_t at)
{
	CHECK(fd == SESSION);
	if (at == (off_t)CW_FILE_ERROR && n == 1020 * 4096) {
		/* Before anything is said of the session. */
		CHECK(count_ == 0 && cw_loans.max_read == 0);
		memset(p, 'x', n);
		probes++;
		errno = probe_errno;
		return probe_errno ? -1 : 0;
	}
	if (at == (off_t)CW_FILE_ERROR) {
		size_t len = strlen(refusal) < n ? strlen(refusal) : n;
		memcpy(p, refusal, len);
		return (ssize_t)len;
	}
	waited = at;
	CHECK(n == 8);
	if (waits_errno) {
		errno = waits_errno;
		return -1;
	}
	errno = ENOTCONN; /* an older call's */
	return 0;
}

static int f_nap(const struct timespec *t, struct timespec *rest)
{
	CHECK(t->tv_sec == 0 && t->tv_nsec > 0 && !rest);
	if (++naps % 3 == 0)
		atomic_store(&cw_loans.running, 0); /* the thread has ended */
	return 0;
}

/* --- memory, and loans ------------------------------------------------------------------------ */

static int contexts, setup_errno, mapped, advised, no_map, lent, loan_err, start_err, threads, forgot;
static void *hint_;
static uint8_t *place;

static long f_syscall(long number, ...)
{
	va_list args;
	va_start(args, number);
	if (number == SYS_io_setup) {
		CHECK(va_arg(args, int) == CW_AIO_EVENTS);
		aio_context_t *c = va_arg(args, aio_context_t *);
		if (setup_errno) {
			errno = setup_errno;
			va_end(args);
			return -1;
		}
		*c = AIO;
		contexts++;
	} else {
		CHECK(number == SYS_io_destroy && va_arg(args, aio_context_t) == AIO && !atomic_load(&cw_loans.running));
		contexts--;
	}
	va_end(args);
	return 0;
}

void *cw_map_shared(int fd, size_t size, void *hint)
{
	CHECK(fd == -1 && size > 0);
	hint_ = hint;
	if (no_map)
		return NULL;
	mapped++;
	return place;
}

static int f_munmap(void *p, size_t n)
{
	if (n == 1020 * 4096) {
		CHECK(probes > 0 && p != place);
		return munmap(p, n);
	}
	CHECK(p == place && n > 0);
	mapped--;
	return 0;
}

static int f_madvise(void *p, size_t n, int advice)
{
	CHECK(p == place && n > 0);
	advised += advice == MADV_DONTFORK ? 1 : advice == MADV_DOFORK ? -1 : 100;
	return 0;
}

int cw_region0_init(struct cw_session *s, void *base)
{
	if (!base) {
		cw_why(s, "no memory");
		return -ENOMEM;
	}
	s->base = base;
	return 0;
}

void cw_why(struct cw_session *s, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(s->why, sizeof s->why, fmt, ap);
	va_end(ap);
}

void cw_log(enum cw_log_level level, const char *fmt, ...)
{
	CHECK(level == CW_LOG_INFO && strlen(fmt) > 0);
	said_so++;
}

void cw_hello_fill(struct cw_hello *h, uint32_t type, uint32_t region, const void *va, size_t size)
{
	*h = (struct cw_hello){.type = type, .region = region, .va = (uintptr_t)va, .size = size};
}

static int64_t ended[8];
static int ended_count;

void cw_loan_end(int64_t region)
{
	CHECK(atomic_load(&cw_loans.lock.word) != 0);
	ended[ended_count++ % 8] = region;
	lent -= region < 0 ? lent : 1;
}

int cw_loan_region(struct cw_session *s, uint32_t region, uint8_t *va, uint64_t size)
{
	(void)s, (void)region;
	CHECK(va == place && size > 0);
	if (loan_err == 0)
		lent++;
	return loan_err;
}

void cw_loan_forget(void)
{
	CHECK(contexts == 0);
	forgot++;
}

int cw_loan_start(struct cw_session *s)
{
	CHECK(s == &cw_s);
	if (start_err == 0) {
		threads++;
		atomic_store(&cw_loans.running, 1);
	}
	return start_err;
}

static int aio_full;

int cw_aio_submit(int fd, int opcode, void *buf, size_t len, uint64_t offset, void *data)
{
	CHECK(fd == SESSION && opcode == IOCB_CMD_PWRITE && len == 8 && *(uint64_t *)buf == 1 && offset == CW_FILE_DOORBELL && !data);
	if (!aio_full)
		rung++;
	return aio_full ? -EAGAIN : 0;
}

#endif
