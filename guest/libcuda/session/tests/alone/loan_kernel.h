/* For loan_test.c, which includes loan.c before it: a model of each piece, and a kernel that holds
 * what the thread does against it. */
#ifndef CW_LOAN_KERNEL_H
#define CW_LOAN_KERNEL_H

enum { FD = 7, AIO = 4242, READ = 8192, PIECE = 2 * READ, BUDGET = 60, MOST = 384, REGIONS = 10, FAR = 1 << 30, BURST_READS = 16, GAP = 5 };

struct cw_session cw_s;
struct cw_global cw_g;
const struct cw_carrier cw_carrier_virtiofs;

/* What a piece is by the model. */
static struct model {
	struct cw_piece *p;
	int pending, ended, now; /* now: a READ is due at once */
	int64_t since, due;
} all[MOST];
static int pieces; /* that are allocated */
static int burst;  /* READs of renewals since the thread slept */

static struct model *of(const struct cw_piece *p)
{
	for (int i = 0; i < MOST; i++)
		if (all[i].p == p)
			return &all[i];
	return NULL;
}

static int fail_get; /* this many from now, counted down; 0: none */

static void *get(size_t n, size_t size)
{
	struct model *m = of(NULL);
	if (fail_get && --fail_get == 0)
		return NULL;
	CHECK(m && n == 1 && size == sizeof(struct cw_piece));
	*m = (struct model){.p = calloc(1, size), .now = 1};
	pieces++;
	return m->p;
}

static void put(void *p)
{
	struct model *m = of(p);
	CHECK(m && m->pending == 0);
	m->p = NULL;
	pieces--;
	free(p);
}

/* --- regions ---------------------------------------------------------------------------------- */

static struct {
	uint8_t *va;
	uint64_t size;
	int lent;
} regions[REGIONS];

static int deaths;

void cw_mark_dead(struct cw_session *s, const char *why)
{
	CHECK(s == &cw_s && why[0]);
	deaths++;
}

static int begin_fails;

int cw_thread_begin(size_t stack, int faults, void *(*run)(void *), void *arg)
{
	CHECK(stack >= 64 * 1024 && !faults && run == loan_thread && arg == &cw_s && atomic_load(&cw_loans.running));
	return begin_fails;
}

/* --- the kernel ------------------------------------------------------------------------------- */

static struct cw_piece *requests[MOST * 2]; /* in flight, oldest first */
/* refuse: -1: takes none, else errno; once, so many submissions from now */
static int flying, refuse, refuse_in;

static struct iocb other; /* a request of no piece */

static long submit(const struct iocb *cb)
{
	if (cb->aio_data == 0) {
		other = *cb;
		return 1;
	}
	struct cw_piece *p = (struct cw_piece *)(uintptr_t)cb->aio_data;
	struct model *m = of(p);
	CHECK(m && !m->ended && atomic_load(&cw_loans.lock.word) != 0 && !cw_loans.stopping);
	CHECK(m->now || m->due <= clock_ms);
	CHECK(m->pending < 2); /* a third READ would say nothing */
	uint32_t region = p->region;
	uint64_t at = (uint64_t)cb->aio_offset & (((uint64_t)1 << 44) - 1), left = regions[region].size - at;
	CHECK(region < REGIONS && cb->aio_lio_opcode == IOCB_CMD_PREAD && cb->aio_fildes == FD);
	CHECK(((uint64_t)cb->aio_offset & ~(((uint64_t)1 << 44) - 1)) == (CW_FILE_LOAN | (uint64_t)region << 44));
	CHECK(at % PIECE == 0 && at < regions[region].size && cb->aio_nbytes == (left < PIECE ? left : PIECE));
	CHECK(cb->aio_buf == (uintptr_t)regions[region].va + at);
	if (!m->now) { /* a renewal: others let it pass after so many */
		CHECK(burst < BURST_READS);
		burst += (int)((cb->aio_nbytes + READ - 1) / READ);
	}
	m->now = 0;
	if (refuse && --refuse_in <= 0) {
		int err = refuse;
		refuse = 0;
		m->due = clock_ms + 10;
		errno = err;
		return err < 0 ? 0 : -1;
	}
	CHECK(flying < (int)(sizeof requests / sizeof *requests));
	requests[flying++] = p;
	m->pending++;
	m->since = clock_ms;
	m->due = clock_ms + 1000;
	return 1;
}

/* An event of a READ: what becomes of its piece. */
static void end_read(struct io_event *e, int i, int64_t res)
{
	struct cw_piece *p = requests[i];
	struct model *m = of(p);
	memmove(requests + i, requests + i + 1, (size_t)(--flying - i) * sizeof *requests);
	*e = (struct io_event){.data = (uintptr_t)p, .res = res};
	m->pending--;
	if (m->ended)
		return;
	if (res < 0 && res != -EINTR && res != -EAGAIN) {
		for (int k = 0; k < MOST; k++)
			all[k].ended = 1;
	} else if (m->pending == 0 && !cw_loans.stopping) {
		if (clock_ms - m->since < 10)
			m->due = clock_ms + 10;
		else
			m->now = 1;
	}
}

static int rests; /* pieces that waited behind a burst */

/* What holds whenever the thread sleeps. */
static int64_t sound(void)
{
	int64_t next = 1000;
	int listed = 0, reads_ = 0;
	for (struct cw_piece *p = cw_loans.pieces; p; p = p->next) {
		listed++;
		reads_ += (int)((p->len + READ - 1) / READ);
	}
	CHECK(listed == pieces && (int)cw_loans.count == pieces && (int)cw_loans.loans == reads_);
	CHECK(atomic_load(&cw_loans.lock.word) == 0);
	for (int i = 0; i < MOST; i++) {
		const struct model *m = &all[i];
		if (!m->p)
			continue;
		CHECK(m->pending > 0 || !m->ended); /* else it had been freed */
		if (m->ended || cw_loans.stopping)
			continue;
		CHECK(!m->now);
		if (m->due <= clock_ms && m->pending == 2)
			continue; /* what completes the older READ wakes the thread */
		int64_t left = m->due - clock_ms;
		if (left <= 0) { /* behind a burst */
			CHECK(burst >= BURST_READS);
			left = GAP;
			rests++;
		}
		next = left < next ? left : next;
	}
	burst = 0;
	return next;
}

static int (*step)(struct io_event *ev, int64_t sleep);

static long kernel(long number, ...)
{
	va_list args;
	va_start(args, number);
	CHECK(va_arg(args, aio_context_t) == AIO);
	long n = -1;
	if (number == SYS_io_submit) {
		CHECK(va_arg(args, int) == 1);
		n = submit(*va_arg(args, struct iocb **));
	} else {
		CHECK(number == SYS_io_getevents);
		int least = va_arg(args, int), most = va_arg(args, int);
		struct io_event *ev = va_arg(args, struct io_event *);
		const struct timespec *t = va_arg(args, struct timespec *);
		int64_t sleep = sound(), asked = (int64_t)t->tv_sec * 1000 + t->tv_nsec / 1000000;
		CHECK(least == 1 && most == 64 && t->tv_nsec < 1000000000 && t->tv_nsec % 1000000 == 0 && asked == sleep);
		n = step(ev, sleep);
	}
	va_end(args);
	return n;
}

#endif
