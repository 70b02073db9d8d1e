/* For rdma_carrier_test.c, which includes carrier_rdma.c before it: a host, an adapter, frames and
 * time as the test wants them, and what was done. */
#ifndef CW_RDMA_CARRIER_FAKES_H
#define CW_RDMA_CARRIER_FAKES_H

enum { HOST = 70, INFO, LETTERS = 16 };

static struct cw_session *const s = &(struct cw_session){0};
struct cw_rdma_oob cw_rdma_oob;
struct cw_lasting cw_lasting;
struct cw_tcp cw_tcp;

static uint8_t place[64]; /* stands for memory and for what is not looked into */
static int is_open[80], maps, adapters, kept, step, fails_at, naps, shut;
static int64_t now;
static const char *info;

static int fails(void)
{
	if (++step != fails_at)
		return 0;
	errno = EMFILE;
	return 1;
}

static int files(void) { return is_open[HOST] + is_open[INFO]; }

static int f_open(const char *path, int flags)
{
	if (!strcmp(path, "/mnt/info")) {
		CHECK(flags == (O_RDONLY | O_CLOEXEC));
		return info ? (is_open[INFO] = 1, INFO) : -1;
	}
	CHECK(!strcmp(path, "/mnt/session") && flags == (O_RDWR | O_DIRECT | O_CLOEXEC));
	return fails() ? -1 : (is_open[HOST] = 1, HOST);
}

static ssize_t f_read(int fd, void *p, size_t n)
{
	CHECK(fd == INFO && n == 2047);
	size_t k = strlen(info) < n ? strlen(info) : n;
	memcpy(p, info, k);
	return (ssize_t)k;
}

static int f_close(int fd)
{
	CHECK(is_open[fd]);
	is_open[fd] = 0;
	return 0;
}

static char address[sizeof(struct sockaddr_un)];
static int f_socket(int domain, int type, int protocol)
{
	CHECK(domain == AF_UNIX && type == (SOCK_SEQPACKET | SOCK_CLOEXEC) && protocol == 0);
	return fails() ? -1 : (is_open[HOST] = 1, HOST);
}

static int f_connect(int fd, const struct sockaddr *a, socklen_t len)
{
	CHECK(fd == HOST && len == sizeof(struct sockaddr_un) && a->sa_family == AF_UNIX);
	memcpy(address, ((const struct sockaddr_un *)(const void *)a)->sun_path, sizeof((const struct sockaddr_un *)0)->sun_path);
	return fails() ? -1 : 0;
}

static int f_shutdown(int fd, int how)
{
	CHECK(fd == HOST && how == SHUT_RDWR && is_open[HOST]);
	shut++;
	return 0;
}

static int f_munmap(void *p, size_t n)
{
	CHECK(p == place && n == CW_REGION0_SIZE && maps > 0);
	maps--;
	return 0;
}

static void (*at_nap)(void);
static int f_nap(const struct timespec *t)
{
	CHECK(t->tv_sec == 0 && t->tv_nsec > 0 && t->tv_nsec <= 10000000);
	naps++;
	now += 2;
	if (at_nap)
		at_nap();
	return 0;
}

static void (*at_wait)(void);
static long f_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *limit)
{
	CHECK(atomic_load(word) == value && limit->tv_sec == 0 && limit->tv_nsec == 250000000);
	now += 250;
	if (at_wait)
		at_wait();
	return 0;
}

static int wakes;
static long f_wake(void) { return ++wakes; }

static char logged[512], log_level;
void cw_log(enum cw_log_level level, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	vsnprintf(logged, sizeof logged, fmt, args);
	va_end(args);
	log_level = (char)level;
}

void cw_why(struct cw_session *of, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	vsnprintf(of->why, sizeof of->why, fmt, args);
	va_end(args);
}

void cw_hello_fill(struct cw_hello *h, uint32_t type, uint32_t region, const void *va, size_t size)
{
	*h = (struct cw_hello){.type = type, .region = region, .va = (uintptr_t)va, .size = size};
}

/* --- the host --------------------------------------------------------------------------------- */

static uint32_t hello; /* the last that it was sent */
static uint8_t words[LETTERS][16];
static int words_sent, send_err;

static ssize_t f_pwrite(int fd, const void *p, size_t n, off_t at)
{
	CHECK(fd == HOST && is_open[HOST] && n == sizeof(struct cw_hello) && at == (off_t)CW_FILE_CONTROL);
	hello = ((const struct cw_hello *)p)->type;
	return fails() ? -1 : (ssize_t)n;
}

int cw_rdma_oob_send(struct cw_session *of, const void *p, size_t n)
{
	CHECK(of == s);
	if (n == sizeof(struct cw_hello))
		hello = ((const struct cw_hello *)p)->type;
	else {
		CHECK(n == 16 && words_sent < LETTERS);
		memcpy(words[words_sent++], p, 16);
	}
	return send_err ? send_err : fails() ? -EPIPE : 0;
}

/* What comes: a welcome of these sizes, or words, and behind them the end. */
static uint32_t text_len;
static char text_[600];
static uint8_t come[LETTERS][16];
static int comes, taken;
static int64_t welcome_until;

int cw_rdma_oob_recv(struct cw_session *of, void *out, size_t n, int64_t until)
{
	CHECK(of == s);
	if (n == 16) { /* oob_thread's */
		CHECK(until == 0);
		if (taken == comes)
			return -EPIPE;
		memcpy(out, come[taken++], 16);
		return 0;
	}
	welcome_until = until;
	if (fails())
		return -ETIMEDOUT;
	if (n == sizeof(struct cw_hello))
		*(struct cw_hello *)out = (struct cw_hello){.type = CW_MSG_WELCOME, .text_len = text_len};
	else {
		CHECK(n == text_len);
		memcpy(out, text_, n);
	}
	return 0;
}

int cw_welcome_check(struct cw_session *of, const void *msg, size_t n)
{
	CHECK(((const struct cw_hello *)msg)->type == CW_MSG_WELCOME && n == sizeof(struct cw_hello) + text_len);
	CHECK(text_len == 0 || !memcmp((const uint8_t *)msg + sizeof(struct cw_hello), text_, text_len));
	if (!fails())
		return 0;
	cw_why(of, "refused");
	return -EBUSY;
}

/* --- the adapter ------------------------------------------------------------------------------ */

static const char *no_lib, *server_is;
static int ports_there;
const char *cw_rdma_load(void) { return no_lib; }

int cw_rdma_ports(const char *sysfs, const char *name, struct cw_rdma_port *out, int max)
{
	CHECK(sysfs == cw_rdma_sysfs && name && !strcmp(name, "auto") && max == 16);
	for (int i = 0; i < ports_there; i++)
		out[i] = (struct cw_rdma_port){.number = i + 1, .device = "mlx5_0"};
	return ports_there;
}

struct cw_rdma_port *cw_rdma_choose(const char *sysfs, struct cw_rdma_port *ports, int n, const char *server)
{
	CHECK(sysfs == cw_rdma_sysfs && n == ports_there && !strcmp(server, server_is));
	return fails() ? NULL : &ports[1];
}

static int lift_err, lifts, reaches;
int cw_rdma_lift(struct cw_session *of, struct cw_rdma **r, const struct cw_rdma_port *port, int *reach, int again)
{
	CHECK(of == s && port->number == 2);
	lifts++;
	*reach = reaches;
	if (again) {
		CHECK(*r == (void *)place);
		return lift_err;
	}
	if (fails())
		return -EIO; /* it says why, or not */
	adapters++;
	*r = (void *)place;
	return 0;
}

static int failed_, failed_err, lost, shut_err, shuts;
static char failed_why[128];
static uint64_t ended_at;
static const char *own_why = "";
void cw_rdma_fail(struct cw_rdma *r, int err, const char *why)
{
	CHECK(r == (void *)place);
	if (failed_++ == 0) { /* the first is kept */
		failed_err = err;
		snprintf(failed_why, sizeof failed_why, "%s", why);
	}
}
void cw_rdma_lose(struct cw_rdma *r, const char *why)
{
	CHECK(r == (void *)place && why[0]);
	lost++;
}
int cw_rdma_shut(struct cw_rdma *r)
{
	CHECK(r == (void *)place);
	shuts++;
	return shut_err;
}
void cw_rdma_ended(struct cw_rdma *r, uint64_t n)
{
	CHECK(r == (void *)place);
	ended_at = n;
}
void cw_rdma_why(struct cw_rdma *r, char *out, size_t cap)
{
	CHECK(r == (void *)place);
	snprintf(out, cap, "%s", own_why);
}
void cw_rdma_free(struct cw_rdma *r)
{
	CHECK(r == (void *)place && adapters == 1);
	adapters--;
}
static int forked_;
void cw_rdma_forked(struct cw_rdma *r)
{
	CHECK(r == (void *)place);
	forked_++;
}

static int register_err, deregister_err, registered;
int cw_rdma_register(struct cw_rdma *r, void *p, size_t n, void **mr, uint32_t *key)
{
	CHECK(r == (void *)place && p == place + 8 && n > 0);
	if (register_err)
		return register_err;
	registered++;
	*mr = place;
	*key = 99;
	return 0;
}
int cw_rdma_deregister(struct cw_rdma *r, void *mr)
{
	CHECK(r == (void *)place && mr == place);
	registered--;
	return deregister_err;
}

void cw_rdma_put(uint8_t *b, uint64_t v, int n)
{
	for (int i = 0; i < n; i++)
		b[i] = (uint8_t)(v >> 8 * i);
}
uint64_t cw_rdma_get(const uint8_t *b, int n)
{
	uint64_t v = 0;
	for (int i = n - 1; i >= 0; i--)
		v = v << 8 | b[i];
	return v;
}

/* --- frames ----------------------------------------------------------------------------------- */

static const struct cw_stream *io;
static int64_t until_then, leave_until, leaves;
int cw_lasting_begin(struct cw_rdma *r)
{
	CHECK(r == (void *)place);
	if (fails())
		return -ENOMEM;
	kept++;
	return 0;
}
void cw_lasting_free(void) { kept = 0; }
int cw_lasting_send(struct cw_session *of, struct iovec *iov, int n) { return of == s && iov == (void *)place && n == 3 ? -EXDEV : 0; }
ssize_t cw_lasting_recv(struct cw_session *of, void *p, size_t n, int64_t until)
{
	CHECK(of == s && p == place && n == 4);
	until_then = until;
	return 3;
}
int64_t cw_lasting_leave(int64_t until)
{
	leave_until = until;
	return leaves;
}

void cw_tcp_begin(const struct cw_stream *over) { io = over; }
int cw_tcp_greet(struct cw_session *of)
{
	CHECK(of == s && s->base == place && io->recv(s, place, 4) == 3 && until_then == now + 70000);
	return fails() ? -EPROTO : 0;
}
int cw_tcp_start(struct cw_session *of)
{
	CHECK(of == s && atomic_load(&cw_lasting.on) && cw_lasting.again && io->recv(s, place, 4) == 3 && until_then == 0);
	return fails() ? -EAGAIN : 0;
}
static int tcp_err, tcp_regions, grants;
static uint64_t granted_[3];
int cw_tcp_add_region(struct cw_session *of, struct cw_region *r)
{
	CHECK(of == s && r->size > 0);
	tcp_regions += tcp_err == 0;
	return tcp_err;
}
void cw_tcp_end_region(struct cw_session *of, struct cw_region *r)
{
	CHECK(of == s && !r->carrier);
	tcp_regions--;
}
int cw_tcp_send(struct cw_session *of, uint16_t type, uint16_t flags, uint64_t arg, const void *p, size_t n)
{
	CHECK(of == s && type == CW_FRAME_GRANT && flags == 0 && arg == 7 && n == sizeof granted_);
	memcpy(granted_, p, n);
	grants++;
	return 0;
}
void cw_tcp_publish(struct cw_session *of) { CHECK(of == s); }
int cw_tcp_alive(struct cw_session *of) { return of == s ? 0 : -1; }
int cw_tcp_wait_slot(struct cw_session *of, uint32_t slot, _Atomic uint32_t *word) { return of == s && slot && word ? 0 : -1; }

void *cw_map_shared(int fd, size_t size, void *hint)
{
	CHECK(fd == -1 && size == CW_REGION0_SIZE && !hint);
	if (fails())
		return NULL;
	maps++;
	return place;
}
int cw_region0_init(struct cw_session *of, void *base)
{
	of->base = base;
	return base ? 0 : -ENOMEM;
}

static void *(*thread)(void *);
static int threads;
int cw_thread_begin(size_t stack, int faults, void *(*run)(void *), void *arg)
{
	CHECK(stack == 128 << 10 && !faults && arg == s);
	thread = run;
	if (fails())
		return EAGAIN;
	threads++;
	return 0;
}

#endif
