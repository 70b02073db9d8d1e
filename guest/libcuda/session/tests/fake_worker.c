#include "session/tests/fake_worker.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/compat.h"
#include "session/tests/fake_internal.h"

struct cw_control_page *fake_control(struct fake_worker *w) { return w->ctl; }

uint8_t *fake_region(struct fake_worker *w, uint32_t id, uint64_t offset, uint64_t size)
{
	if (id >= REGIONS || !w->region[id].mem || offset > w->region[id].size || size > w->region[id].size - offset)
		return NULL;
	return w->region[id].mem + offset;
}

void fake_region_fetch(struct fake_worker *w, uint32_t id, uint64_t offset, uint64_t size)
{
	if (w->tcp)
		fake_tcp_pull(w, id, offset, size, w->region[id].mem + offset);
}

void fake_region_store(struct fake_worker *w, uint32_t id, uint64_t offset, uint64_t size)
{
	for (uint64_t done = 0; w->tcp && done < size;) {
		uint64_t n = size - done < 500000 ? size - done : 500000;
		struct cw_frame_extent e = {id, 0, offset + done, n};
		fake_tcp_send(w, CW_FRAME_WRITE, 0, &e, sizeof e, w->region[id].mem + offset + done, n);
		done += n;
	}
}

static void wake(struct fake_worker *w, uint32_t slot, _Atomic uint32_t *waiting)
{
	if (atomic_exchange(waiting, 0) != 1)
		return;
	if (w->o.mount)
		fake_vfs_wake(w, slot);
	else
		cw_futex_wake(waiting, 1000, 0);
}

void fake_answer(struct fake_worker *w, uint32_t slot, uint32_t seq, uint32_t result, const void *p, size_t n)
{
	struct cw_slot *s = (struct cw_slot *)(w->base + CW_SLOTS_OFFSET + (size_t)slot * CW_SLOT_SIZE);
	size_t now = n < CW_SLOT_PAYLOAD ? n : CW_SLOT_PAYLOAD;
	if (now > 0)
		memcpy(s + 1, p, now);
	if (n > now) {
		free(w->rest[slot].mem);
		w->rest[slot].mem = malloc(n);
		memcpy(w->rest[slot].mem, p, n);
		w->rest[slot].len = n;
	}
	if (w->tcp) {
		uint32_t h[4] = {seq, result, (uint32_t)now, (uint32_t)n};
		fake_tcp_control(w);
		fake_tcp_send(w, CW_FRAME_SLOT, slot, h, sizeof h, p, now);
		return;
	}
	s->result = result;
	s->payload_len = (uint32_t)now;
	s->reply_len = (uint32_t)n;
	__atomic_store_n(&s->seq_done, seq, __ATOMIC_RELEASE);
	wake(w, slot, (_Atomic uint32_t *)&s->waiting);
}

void fake_complete_word(struct fake_worker *w, uint32_t word, uint32_t value)
{
	CHECK(word < CW_WORD_COUNT);
	if (w->tcp)
		fake_tcp_send(w, CW_FRAME_WORD, word | (uint64_t)value << 32, NULL, 0, NULL, 0);
	__atomic_store_n((uint32_t *)(w->base + CW_WORDS_OFFSET) + word, value, __ATOMIC_RELEASE);
}

void fake_console(struct fake_worker *w, const char *text)
{
	strncat(w->console, text, sizeof w->console - strlen(w->console) - 1);
	__atomic_store_n(&w->ctl->console, (uint32_t)strlen(w->console), __ATOMIC_RELEASE);
}

const uint8_t *fake_span(struct fake_call *c, struct cw_span s)
{
	if (!(s.off & CW_SPAN_BLOB)) {
		CHECK(s.off <= c->rec->size && s.len <= c->rec->size - s.off);
		return (const uint8_t *)c->rec + s.off;
	}
	for (int i = 0; i < BLOBS; i++)
		if (c->w->blob[i].mem && c->w->blob[i].id == (s.off & ~CW_SPAN_BLOB)) {
			CHECK(c->w->blob[i].have == s.len && c->w->blob[i].total == s.len);
			return c->w->blob[i].mem;
		}
	CHECK(!"blob unknown");
	return NULL;
}

static void blob_append(struct fake_call *c)
{
	struct {
		uint32_t blob, pad;
		uint64_t total;
		struct cw_span part;
	} a;
	memcpy(&a, c->fixed, sizeof a);
	struct fake_worker *w = c->w;
	int at = -1;
	for (int i = BLOBS - 1; i >= 0; i--)
		if (!w->blob[i].mem || w->blob[i].id == a.blob)
			at = w->blob[i].mem || at < 0 || !w->blob[at].mem ? i : at;
	CHECK(at >= 0);
	if (!w->blob[at].mem) {
		w->blob[at].id = a.blob;
		w->blob[at].total = a.total;
		w->blob[at].have = 0;
		w->blob[at].mem = malloc(a.total);
	}
	CHECK(w->blob[at].have + a.part.len <= w->blob[at].total);
	memcpy(w->blob[at].mem + w->blob[at].have, fake_span(c, a.part), a.part.len);
	w->blob[at].have += a.part.len;
}

static void session_init(struct fake_call *c)
{
	static struct {
		int32_t driver;
		uint32_t count, caps, pad;
		uint64_t limit;
		struct cw_span devices;
		struct cw_device_info d[2];
	} r;
	r.driver = 13000;
	r.count = 2;
	r.caps = c->w->o.caps;
	r.limit = 1ull << 32;
	r.devices.len = sizeof r.d;
	r.devices.off = offsetof(__typeof__(r), d);
	strcpy((char *)r.d[0].name, "Fake 0");
	strcpy((char *)r.d[1].name, "Fake 1");
	c->reply = &r;
	c->reply_len = sizeof r;
	switch (c->w->o.first) {
	case FIRST_SHORT: c->reply_len = offsetof(__typeof__(r), d) - 8; break;
	case FIRST_NO_DEVICE: r.count = 0; break;
	case FIRST_MANY: r.count = 1025; break;
	case FIRST_BEHIND: r.devices.off = sizeof r + 1; break;
	case FIRST_LONG: r.devices.len = sizeof r.d + 1; break;
	case FIRST_FEW: r.devices.len = sizeof r.d - 1; break;
	case FIRST_ERROR: c->result = CUDA_ERROR_NOT_INITIALIZED; break;
	default: break;
	}
}

static void region_add(struct fake_call *c)
{
	struct {
		uint32_t region, kind;
		uint64_t va, size;
		uint32_t flags, pad;
	} a;
	static uint64_t dev;
	memcpy(&a, c->fixed, sizeof a);
	CHECK(a.region < REGIONS);
	struct fake_worker *w = c->w;
	CHECK(w->region[a.region].fd > 0 && w->region[a.region].size == a.size);
	int fd = w->tcp ? -1 : w->region[a.region].fd;
	if (w->o.mount && !fake_vfs_await_lent(w, a.region)) {
		c->result = 999;
		return;
	}
	void *p = mmap((void *)(uintptr_t)a.va, a.size, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd,
		       (off_t)w->region[a.region].offset);
	CHECK(p != MAP_FAILED);
	if (a.kind == CW_REGION_PINNED && (uintptr_t)p != a.va) {
		munmap(p, a.size);
		c->result = 2;
		return;
	}
	uint64_t part = w->region[a.region].part;
	for (uint64_t at = part; part != 0 && at < a.size; at += part)
		CHECK(mmap((uint8_t *)p + at, a.size - at < part ? a.size - at : part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			   w->region[a.region].more[at / part], 0) != MAP_FAILED);
	w->region[a.region].mem = p;
	dev = a.kind == CW_REGION_PINNED ? a.va : 0;
	c->reply = &dev;
	c->reply_len = sizeof dev;
}

static void reply_more(struct fake_call *c)
{
	static uint8_t buf[CW_SLOT_PAYLOAD];
	uint32_t off;
	memcpy(&off, c->fixed, sizeof off);
	CHECK(off < c->w->rest[c->slot].len);
	size_t n = c->w->rest[c->slot].len - off;
	if (n > sizeof buf - 8)
		n = sizeof buf - 8;
	struct cw_span s = {(uint32_t)n, 8};
	memcpy(buf, &s, 8);
	memcpy(buf + 8, c->w->rest[c->slot].mem + off, n);
	c->reply = buf;
	c->reply_len = n + 8;
}

static void console_read(struct fake_call *c)
{
	static uint8_t buf[1024];
	struct fake_worker *w = c->w;
	/* Small pieces: the reader must loop. */
	size_t all = strlen(w->console), n = all < 100 ? all : 100;
	struct cw_span s = {(uint32_t)n, 8};
	memcpy(buf, &s, 8);
	memcpy(buf + 8, w->console, n);
	memmove(w->console, w->console + n, all - n + 1);
	__atomic_store_n(&w->ctl->console, (uint32_t)(all - n), __ATOMIC_RELEASE);
	c->reply = buf;
	c->reply_len = n + 8;
}

/* Takes messages off the socket: regions, and the end of the session. */
static void socket_poll(struct fake_worker *w)
{
	struct cw_hello h;
	char control[256];
	if (w->tcp) {
		fake_tcp_poll(w);
		return;
	}
	if (w->o.mount) {
		fake_vfs_poll(w, 0);
		return;
	}
	for (;;) {
		struct iovec iov = {&h, sizeof h};
		struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
		ssize_t n = recvmsg(w->sock, &m, MSG_DONTWAIT);
		if (n == 0)
			_exit(0);
		if (n < 0)
			return;
		CHECK(n == sizeof h && h.region < REGIONS);
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		if (h.type == CW_MSG_REGION) {
			CHECK(c != NULL);
			uint64_t parts = h.part ? (h.size + h.part - 1) / h.part : 1;
			CHECK(parts <= CW_REGION_PARTS && c->cmsg_len == CMSG_LEN(parts * sizeof(int)));
			memcpy(&w->region[h.region].fd, CMSG_DATA(c), sizeof(int));
			memcpy(w->region[h.region].more, CMSG_DATA(c), parts * sizeof(int));
			w->region[h.region].size = h.size;
			w->region[h.region].part = h.part;
			w->region[h.region].offset = h.offset;
			CHECK(h.offset == 0 || (h.flags & CW_REGION_SHARED));
		} else if (h.type == CW_MSG_REGION_END) {
			close(w->region[h.region].fd);
			for (uint64_t k = 1; w->region[h.region].part && k * w->region[h.region].part < w->region[h.region].size; k++)
				close(w->region[h.region].more[k]);
			CHECK(w->region[h.region].mem == NULL);
			memset(&w->region[h.region], 0, sizeof w->region[0]);
		}
	}
}

int fake_regions(struct fake_worker *w)
{
	int n = 0;
	socket_poll(w);
	for (int id = 1; id < REGIONS; id++)
		n += w->region[id].size != 0;
	return n;
}

int fake_reads(struct fake_worker *w, uint32_t region, uint64_t offset, uint64_t size)
{
	static uint8_t to[1 << 16];
	CHECK(size <= sizeof to);
	return !w->tcp || fake_tcp_try(w, region, offset, size, to);
}

static void execute(struct fake_worker *w, const struct cw_record *rec)
{
	struct fake_call c = {.w = w, .rec = rec, .fixed = (const uint8_t *)(rec + 1), .slot = rec->slot, .seq = rec->seq};
	int open_ = 0;
	switch (rec->op) {
	case CW_OP_SKIP: return;
	case CW_OP_SESSION_INIT: session_init(&c); break;
	case CW_OP_SESSION_FENCE: break;
	case CW_OP_BLOB_APPEND: blob_append(&c); break;
	case CW_OP_REPLY_MORE: reply_more(&c); break;
	case CW_OP_CONSOLE_READ: console_read(&c); break;
	case CW_OP_REGION_ADD:
		socket_poll(w);
		region_add(&c);
		break;
	case CW_OP_REGION_DROP: {
		uint32_t id;
		memcpy(&id, c.fixed, sizeof id);
		CHECK(id < REGIONS && w->region[id].mem);
		munmap(w->region[id].mem, w->region[id].size);
		w->region[id].mem = NULL;
		break;
	}
	default:
		c.result = 801;
		if (w->o.handler)
			open_ = (c.result = 0, w->o.handler(&c));
		/* Blobs live until the op that used them. */
		for (int i = 0; i < BLOBS; i++) {
			free(w->blob[i].mem);
			w->blob[i].mem = NULL;
		}
	}
	if (rec->flags & CW_RECORD_REPLY && !open_)
		fake_answer(w, c.slot, c.seq, c.result, c.reply, c.reply_len);
}

static void consume(struct fake_worker *w)
{
	uint8_t *ring = w->base + CW_RING_OFFSET;
	uint64_t tail = __atomic_load_n(&w->ctl->tail, __ATOMIC_ACQUIRE);
	uint64_t before = w->head;
	while (w->head != tail) {
		uint32_t off = (uint32_t)(w->head & (CW_RING_SIZE - 1));
		const struct cw_record *rec = (const struct cw_record *)(ring + off);
		CHECK(rec->size >= sizeof *rec && rec->size % 8 == 0 && rec->size <= tail - w->head);
		CHECK(rec->size <= CW_RING_SIZE - off);
		if (w->o.slow_consume)
			usleep((useconds_t)w->o.slow_consume);
		execute(w, rec);
		w->head += rec->size;
		__atomic_store_n(&w->ctl->head, w->head, __ATOMIC_RELEASE);
		atomic_thread_fence(memory_order_seq_cst);
		if (w->tcp && (w->head - before > CW_RING_SIZE / 8 || w->head == tail))
			fake_tcp_send(w, CW_FRAME_HEAD, before = w->head, NULL, 0, NULL, 0);
		wake(w, CW_SLOT_COUNT, (_Atomic uint32_t *)&w->ctl->space_waiters);
	}
}

void fake_run(struct fake_worker *w)
{
	uint32_t idle = 0;
	for (;;) {
		__atomic_store_n(&w->ctl->worker_state, CW_WORKER_POLLING, __ATOMIC_RELEASE);
		if (w->tcp)
			socket_poll(w);
		while (w->o.mount && !fake_vfs_lent(w, 0))
			fake_vfs_poll(w, 100); /* parked */
		uint64_t before = w->head;
		consume(w);
		idle = w->head == before ? idle + 1 : 0;
		if (idle % 1024 == 1023)
			socket_poll(w);
		cw_pause();
		if (idle < w->o.sleep_after_us * 20)
			continue;
		__atomic_store_n(&w->ctl->worker_state, CW_WORKER_SLEEPING, __ATOMIC_RELEASE);
		atomic_thread_fence(memory_order_seq_cst);
		if (w->tcp)
			socket_poll(w); /* frames that came while we were sending */
		if (__atomic_load_n(&w->ctl->tail, __ATOMIC_ACQUIRE) != w->head)
			continue;
		if (w->o.mount) {
			fake_vfs_poll(w, 100);
			idle = 0;
			continue;
		}
		struct pollfd p[2] = {{.fd = w->sock, .events = POLLIN}, {.fd = w->bell, .events = POLLIN}};
		poll(p, w->tcp ? 1 : 2, -1);
		uint64_t v;
		ssize_t n = w->tcp ? 0 : read(w->bell, &v, sizeof v);
		(void)n;
		socket_poll(w);
		idle = 0;
	}
}
