/* The TCP carrier's frames one by one, against a peer that the test is: what each does to the
 * session, to its last byte, and that the session ends with the first that breaks the protocol. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/tcp.h"
#include "session/tests/fake_worker.h"

enum { REGION = 5, SIZE = 3 << 20 };
static uint8_t *region;
static int peer;

/* A session that ends with the frame's first bytes may have closed before the last are sent:
 * alive() and broken() say which of the two was due. */
static void put(const void *p, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t k = send(peer, (const uint8_t *)p + done, n - done, MSG_NOSIGNAL);
		if (k < 0 && (errno == EPIPE || errno == ECONNRESET))
			return;
		CHECK(k > 0);
		done += (size_t)k;
	}
}

static void get(void *p, size_t n) { CHECK(recv(peer, p, n, MSG_WAITALL) == (ssize_t)n); }

static void frame(uint32_t len, uint16_t type, uint64_t arg)
{
	struct cw_frame f = {len, type, 0, arg};
	put(&f, sizeof f);
}

static void extent(uint16_t type, uint32_t len, uint32_t id, uint64_t offset, uint64_t size)
{
	struct cw_frame_extent e = {id, 0, offset, size};
	frame(len, type, 77);
	put(&e, sizeof e);
}

static void begin(void)
{
	int two[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two) == 0);
	memset(&cw_tcp, 0, sizeof cw_tcp);
	cw_tcp_begin(&cw_tcp_plain);
	memset(cw_s.base, 0, CW_REGION0_SIZE);
	peer = two[1];
	cw_s.fd = two[0];
	cw_tcp.region[3].id = REGION;
	cw_tcp.region[3].va = region;
	cw_tcp.region[3].size = SIZE;
	CHECK(cw_tcp_start(&cw_s) == 0);
}

/* The session goes on: what was sent before is done when a READ behind it is answered. */
static void alive(void)
{
	struct cw_frame f;
	uint8_t b[4];
	extent(CW_FRAME_READ, sizeof(struct cw_frame_extent), REGION, 0, 4);
	get(&f, sizeof f);
	CHECK(f.type == CW_FRAME_DATA && f.flags == 0 && f.arg == 77 && f.len == 4);
	get(b, sizeof b);
	CHECK(memcmp(b, region, 4) == 0 && !atomic_load(&cw_tcp.gone));
}

static void end(void)
{
	shutdown(peer, SHUT_RDWR);
	while (atomic_load(&cw_tcp.running))
		usleep(100);
	CHECK(atomic_load(&cw_tcp.gone));
	close(peer);
	close(cw_s.fd);
}

/* The session has ended by itself, and whoever waits was woken. */
static void broken(void)
{
	uint8_t b;
	while (recv(peer, &b, 1, 0) > 0)
		;
	while (atomic_load(&cw_tcp.running))
		usleep(100);
	CHECK(atomic_load(&cw_tcp.gone));
	for (uint32_t i = 0; i < CW_SLOT_COUNT; i++)
		CHECK(cw_slot_at(&cw_s, i)->waiting == 0);
	CHECK(cw_s.ctl->space_waiters == 0);
	end();
}

static void wait_everywhere(void)
{
	for (uint32_t i = 0; i < CW_SLOT_COUNT; i++)
		cw_slot_at(&cw_s, i)->waiting = 1;
	cw_s.ctl->space_waiters = 1;
}

static void words(void)
{
	static const uint32_t control[3] = {offsetof(struct cw_control_page, worker_state), offsetof(struct cw_control_page, sticky),
					    offsetof(struct cw_control_page, console)};
	_Atomic uint32_t *w = (_Atomic uint32_t *)(cw_s.base + CW_WORDS_OFFSET);
	begin();
	cw_s.ctl->space_waiters = 1;
	atomic_store(&cw_tcp.given, 0x123456789);
	frame(0, CW_FRAME_HEAD, 0x123456788);
	frame(0, CW_FRAME_HEAD, 0x123456789);
	frame(0, CW_FRAME_WORD, 0 | 9ull << 32);
	frame(0, CW_FRAME_WORD, (CW_WORD_COUNT - 1) | 11ull << 32);
	for (int i = 0; i < 3; i++)
		frame(0, CW_FRAME_CONTROL, control[i] | (uint64_t)(21 + i) << 32);
	alive();
	CHECK(cw_s.ctl->head == 0x123456789 && cw_s.ctl->space_waiters == 0);
	CHECK(w[0] == 9 && w[CW_WORD_COUNT - 1] == 11);
	CHECK(cw_s.ctl->worker_state == 21 && cw_s.ctl->sticky == 22 && cw_s.ctl->console == 23);
	end();
	struct {
		uint32_t len;
		uint16_t type;
		uint64_t arg;
	} wrong[] = {{1, CW_FRAME_HEAD, 0},
		     {1, CW_FRAME_WORD, 0},
		     {1, CW_FRAME_CONTROL, control[0]},
		     {0, CW_FRAME_WORD, CW_WORD_COUNT},
		     {0, CW_FRAME_CONTROL, 0},
		     {0, CW_FRAME_CONTROL, control[2] + 4},
		     {0, CW_FRAME_DATA, 0},
		     {0, CW_FRAME_HELLO, 0},
		     {0, 13, 0},
		     {CW_FRAME_MAX + 1, CW_FRAME_WRITE, 0}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		begin();
		wait_everywhere();
		frame(wrong[i].len, wrong[i].type, wrong[i].arg);
		broken();
		CHECK(cw_s.ctl->head == 0);
	}
}

/* Another thread's frame keeps records of a whole ring from being sent, and the server says that it
 * has consumed them: there is no room for more, or the ring and the memory behind it would be sent.
 * Nor does a head go backwards. */
static void heads(void)
{
	struct cw_tx tx;
	begin();
	cw_s.tail = cw_s.head_seen = 0;
	cw_s.carrier = &cw_carrier_tcp;
	cw_lock_acquire(&cw_tcp.send_lock);
	for (uint64_t n = 0; n < CW_RING_SIZE; n += tx.size) {
		CHECK(cw_begin_slot(&cw_s, &tx, CW_OP_SKIP, 4096 - sizeof(struct cw_record), 0, CW_NO_SLOT) == 0);
		cw_send(&tx);
	}
	CHECK(cw_s.ctl->tail == CW_RING_SIZE && cw_tcp.pushed == 0);
	frame(0, CW_FRAME_HEAD, CW_RING_SIZE);
	broken();
	CHECK(cw_s.ctl->head == 0);
	cw_lock_release(&cw_tcp.send_lock);

	begin();
	atomic_store(&cw_tcp.given, 4096);
	frame(0, CW_FRAME_HEAD, 4096);
	frame(0, CW_FRAME_HEAD, 4064);
	broken();
	CHECK(cw_s.ctl->head == 4096);
}

static void reply(uint32_t len, uint64_t slot, uint32_t payload)
{
	static const uint8_t bytes[CW_SLOT_PAYLOAD + 1] = {1, 2, 3};
	uint32_t h[4] = {500, 7, payload, payload + 9};
	frame(len, CW_FRAME_SLOT, slot);
	put(h, len < sizeof h ? len : sizeof h);
	if (len > sizeof h)
		put(bytes, len - sizeof h);
}

static void slots(void)
{
	uint64_t last = CW_SLOT_COUNT - 1;
	begin();
	wait_everywhere();
	reply(16, 0, 0);
	reply(16 + CW_SLOT_PAYLOAD, last, CW_SLOT_PAYLOAD);
	alive();
	struct cw_slot *a = cw_slot_at(&cw_s, 0), *b = cw_slot_at(&cw_s, (uint32_t)last);
	CHECK(a->seq_done == 500 && a->result == 7 && a->payload_len == 0 && a->reply_len == 9 && a->waiting == 0);
	CHECK(b->seq_done == 500 && b->payload_len == CW_SLOT_PAYLOAD && b->reply_len == CW_SLOT_PAYLOAD + 9 && b->waiting == 0);
	CHECK(memcmp(b + 1, "\1\2\3", 4) == 0 && cw_slot_at(&cw_s, 1)->waiting == 1 && cw_slot_at(&cw_s, 1)->seq_done == 0);
	end();
	struct {
		uint32_t len;
		uint64_t slot;
		uint32_t payload;
	} wrong[] = {
		{16, CW_SLOT_COUNT, 0}, {15, 0, 0}, {17, 0, 0}, {17, 0, 2}, {16, 0, 1}, {16 + CW_SLOT_PAYLOAD + 1, 0, CW_SLOT_PAYLOAD + 1}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		begin();
		wait_everywhere();
		reply(wrong[i].len, wrong[i].slot, wrong[i].payload);
		broken();
		CHECK(cw_slot_at(&cw_s, 0)->seq_done == 0);
	}
}

/* A READ is answered with these bytes, or refused where want is NULL. */
static void reads(uint32_t id, uint64_t offset, uint64_t size, const uint8_t *want)
{
	static uint8_t got[CW_FRAME_MAX];
	extent(CW_FRAME_READ, sizeof(struct cw_frame_extent), id, offset, size);
	for (uint64_t done = 0; done < size || !want;) {
		struct cw_frame f;
		get(&f, sizeof f);
		CHECK(f.type == CW_FRAME_DATA && f.arg == 77);
		if (!want) {
			CHECK(f.flags == CW_FRAME_ERROR && f.len == 0);
			return;
		}
		uint64_t left = size - done;
		CHECK(f.flags == 0 && f.len == (left < CW_FRAME_MAX ? left : CW_FRAME_MAX));
		get(got, f.len);
		CHECK(memcmp(got, want + done, f.len) == 0);
		done += f.len;
	}
}

static void extents(void)
{
	static uint8_t bytes[CW_FRAME_MAX];
	begin();
	reads(REGION, 0, 1, region);
	reads(REGION, SIZE - 1, 1, region + SIZE - 1);
	reads(REGION, 0, SIZE, region); /* three frames */
	reads(REGION, 5, CW_FRAME_MAX + 1, region + 5);
	reads(REGION, SIZE, 1, NULL);
	reads(REGION, 1, SIZE, NULL);
	reads(REGION, UINT64_MAX, 2, NULL);
	reads(REGION, 0, 0, NULL);
	reads(REGION, 0, CW_FRAME_EXTENT_MAX + 1, NULL);
	reads(REGION + 1, 0, 1, NULL);
	memcpy(cw_s.base + CW_REGION0_SIZE - 3, "abc", 3);
	reads(0, CW_REGION0_SIZE - 3, 3, cw_s.base + CW_REGION0_SIZE - 3);
	reads(0, CW_REGION0_SIZE - 3, 4, NULL);
	reads(0, CW_REGION0_SIZE + 1, 1, NULL);
	reads(0, 0, 0, NULL);
	/* More than one READ may ask for, though it is there. */
	cw_tcp.region[3].size = CW_FRAME_EXTENT_MAX + 1;
	reads(REGION, 0, CW_FRAME_EXTENT_MAX + 1, NULL);
	cw_tcp.region[3].size = SIZE;

	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 7 + 1);
	extent(CW_FRAME_WRITE, sizeof(struct cw_frame_extent) + 70000, REGION, SIZE - 70000, 70000);
	for (size_t done = 0; done < 70000; done += 3500)
		put(bytes + done, 3500);
	alive();
	CHECK(memcmp(region + SIZE - 70000, bytes, 70000) == 0 && region[SIZE - 70001] == (uint8_t)((SIZE - 70001) % 251));
	end();
	struct {
		uint32_t len, id;
		uint64_t offset, size;
		uint16_t type;
	} wrong[] = {{24 + 4, REGION, SIZE - 3, 4, CW_FRAME_WRITE},
		     {24 + 4, REGION, UINT64_MAX - 1, 4, CW_FRAME_WRITE},
		     {24 + 4, REGION, 0, 3, CW_FRAME_WRITE},
		     {24 + 4, REGION, 0, 5, CW_FRAME_WRITE},
		     {24 + 4, 0, 0, 4, CW_FRAME_WRITE},
		     {24 + 4, REGION + 1, 0, 4, CW_FRAME_WRITE},
		     {23, REGION, 0, 0, CW_FRAME_WRITE},
		     {25, REGION, 0, 1, CW_FRAME_READ},
		     {23, REGION, 0, 1, CW_FRAME_READ}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		begin();
		wait_everywhere();
		extent(wrong[i].type, wrong[i].len, wrong[i].id, wrong[i].offset, wrong[i].size);
		send(peer, bytes, 8, MSG_NOSIGNAL);
		broken();
		CHECK(region[0] == 0 && region[1] == 1);
	}
}

/* What was published goes in one frame, around the ring's end, and what comes meanwhile behind it;
 * however little the socket takes at a time. */
static void publishes(void)
{
	static uint8_t got[CW_RING_SIZE];
	struct cw_frame f;
	uint8_t *ring = cw_s.base + CW_RING_OFFSET;
	begin();
	int small = 4096;
	setsockopt(cw_s.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	for (size_t i = 0; i < CW_RING_SIZE; i++)
		ring[i] = (uint8_t)(i * 13 >> 2);
	cw_tcp_publish(&cw_s); /* nothing */
	cw_tcp.pushed = 3 * CW_RING_SIZE - 100;
	cw_s.ctl->tail = cw_tcp.pushed + 1000;
	cw_tcp_publish(&cw_s);
	get(&f, sizeof f);
	CHECK(f.type == CW_FRAME_RING && f.len == 1000 && f.arg == 3 * CW_RING_SIZE - 100 && f.flags == 0);
	get(got, 1000);
	CHECK(memcmp(got, ring + CW_RING_SIZE - 100, 100) == 0 && memcmp(got + 100, ring, 900) == 0);
	cw_s.ctl->tail += 4;
	CHECK(cw_tcp_send(&cw_s, CW_FRAME_REGION_END, 0, 9, NULL, 0) == 0);
	get(&f, sizeof f);
	CHECK(f.type == CW_FRAME_REGION_END && f.arg == 9 && f.len == 0);
	get(&f, sizeof f);
	CHECK(f.type == CW_FRAME_RING && f.len == 4 && f.arg == 3 * CW_RING_SIZE + 900);
	get(got, 4);
	cw_tcp_publish(&cw_s); /* nothing new */
	struct pollfd p = {.fd = peer, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 0);
	pid_t reader = fork();
	if (reader == 0) { /* slowly */
		alarm(500);
		get(&f, sizeof f);
		CHECK(f.len == CW_RING_SIZE);
		for (size_t at = 0; at < CW_RING_SIZE; at += 4096)
			get(got + at, 4096);
		for (size_t i = 0; i < CW_RING_SIZE; i++)
			CHECK(got[i] == ring[(i + 904) & (CW_RING_SIZE - 1)]);
		_exit(0);
	}
	cw_s.ctl->tail += CW_RING_SIZE;
	cw_tcp_publish(&cw_s);
	int st = -1;
	CHECK(waitpid(reader, &st, 0) == reader && st == 0);
	alive();
	shutdown(peer, SHUT_RDWR);
	while (atomic_load(&cw_tcp.running))
		usleep(100);
	atomic_store(&cw_tcp.gone, 0);
	CHECK(cw_tcp_send(&cw_s, CW_FRAME_DATA, 0, 1, "x", 1) < 0 && atomic_load(&cw_tcp.gone));
	end();
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	alarm(600);
	cw_s.base = mmap(NULL, CW_REGION0_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	region = malloc(CW_FRAME_EXTENT_MAX + 1);
	CHECK(cw_s.base != MAP_FAILED && region);
	cw_s.ctl = (struct cw_control_page *)cw_s.base;
	for (size_t i = 0; i < SIZE; i++)
		region[i] = (uint8_t)(i % 251);
	words();
	heads();
	slots();
	extents();
	publishes();
	puts("frames_test ok");
	return 0;
}
