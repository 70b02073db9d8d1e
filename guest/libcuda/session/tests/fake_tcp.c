/* The fake worker's end of the TCP carrier: a mirror of region 0, kept up by frames. One thread, so
 * a pull reads frames itself. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "session/tests/fake_internal.h"

static struct {
	uint8_t bytes[4 << 20];
	size_t n;
} in;

void fake_tcp_send(struct fake_worker *w, uint16_t type, uint64_t arg, const void *p, size_t n, const void *q, size_t m)
{
	struct cw_frame f = {(uint32_t)(n + m), type, 0, arg};
	const void *part[3] = {&f, p, q};
	size_t len[3] = {sizeof f, n, m};
	for (int i = 0; i < 3; i++)
		for (size_t done = 0; done < len[i];) {
			ssize_t k = send(w->sock, (const uint8_t *)part[i] + done, len[i] - done, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (k < 0 && (errno == EPIPE || errno == ECONNRESET))
				_exit(0);
			if (k < 0) {
				/* The guest waits for us to read: it must not, but its sends may
				 * fill the socket. */
				CHECK(errno == EAGAIN && in.n < sizeof in.bytes);
				ssize_t r = recv(w->sock, in.bytes + in.n, sizeof in.bytes - in.n, MSG_DONTWAIT);
				in.n += r > 0 ? (size_t)r : 0;
				continue;
			}
			done += (size_t)k;
		}
}

/* Sends what changed in the control page since the last reply. */
void fake_tcp_control(struct fake_worker *w)
{
	static uint32_t sticky, console;
	if (w->ctl->sticky != sticky)
		fake_tcp_send(w, CW_FRAME_CONTROL, 256 | (uint64_t)(sticky = w->ctl->sticky) << 32, NULL, 0, NULL, 0);
	if (w->ctl->console != console)
		fake_tcp_send(w, CW_FRAME_CONTROL, 260 | (uint64_t)(console = w->ctl->console) << 32, NULL, 0, NULL, 0);
}

static void apply(struct fake_worker *w, const struct cw_frame *f, const uint8_t *p)
{
	struct cw_hello h;
	switch (f->type) {
	case CW_FRAME_RING:
		CHECK(f->arg == w->ctl->tail && f->arg + f->len - w->head <= CW_RING_SIZE);
		for (uint32_t i = 0; i < f->len; i++)
			w->base[CW_RING_OFFSET + ((f->arg + i) & (CW_RING_SIZE - 1))] = p[i];
		w->ctl->tail += f->len;
		return;
	case CW_FRAME_REGION:
		CHECK(f->len == sizeof h);
		memcpy(&h, p, sizeof h);
		CHECK(h.region == f->arg && h.region < REGIONS);
		w->region[h.region].fd = 1;
		w->region[h.region].size = h.size;
		return;
	case CW_FRAME_REGION_END:
		CHECK(f->arg < REGIONS && !w->region[f->arg].mem);
		memset(&w->region[f->arg], 0, sizeof w->region[0]);
		return;
	}
	CHECK(!"unexpected frame");
}

/* READs that the guest has refused. */
static int refusals;

/* Receives once and applies whole frames; DATA frames of request id go to `to`. Returns bytes of
 * DATA. */
static uint64_t receive(struct fake_worker *w, int flags, uint64_t id, uint8_t *to)
{
	uint64_t data = 0;
	CHECK(in.n < sizeof in.bytes);
	ssize_t r = recv(w->sock, in.bytes + in.n, sizeof in.bytes - in.n, flags);
	if (r == 0 || (r < 0 && errno == ECONNRESET))
		_exit(0);
	in.n += r > 0 ? (size_t)r : 0;
	size_t at = 0;
	while (in.n - at >= sizeof(struct cw_frame)) {
		struct cw_frame f;
		memcpy(&f, in.bytes + at, sizeof f);
		CHECK(f.len <= CW_FRAME_MAX);
		if (in.n - at - sizeof f < f.len)
			break;
		const uint8_t *p = in.bytes + at + sizeof f;
		if (f.type == CW_FRAME_DATA && f.flags != 0) {
			CHECK(f.flags == CW_FRAME_ERROR && f.arg == id && f.len == 0);
			refusals++;
		} else if (f.type == CW_FRAME_DATA) {
			CHECK(to && f.arg == id && f.flags == 0 && f.len > 0);
			memcpy(to + data, p, f.len);
			data += f.len;
		} else {
			apply(w, &f, p);
		}
		at += sizeof f + f.len;
	}
	memmove(in.bytes, in.bytes + at, in.n - at);
	in.n -= at;
	return data;
}

void fake_tcp_poll(struct fake_worker *w) { receive(w, MSG_DONTWAIT, 0, NULL); }

int fake_tcp_try(struct fake_worker *w, uint32_t region, uint64_t offset, uint64_t size, uint8_t *to)
{
	static uint64_t id;
	struct cw_frame_extent e = {region, 0, offset, size};
	fake_tcp_send(w, CW_FRAME_READ, ++id, &e, sizeof e, NULL, 0);
	refusals = 0;
	for (uint64_t have = 0; have < size && refusals == 0;)
		have += receive(w, 0, id, to + have);
	return refusals == 0;
}

void fake_tcp_pull(struct fake_worker *w, uint32_t region, uint64_t offset, uint64_t size, uint8_t *to)
{
	CHECK(fake_tcp_try(w, region, offset, size, to));
}

int fake_tcp_accept(struct fake_worker *w, int listener)
{
	struct cw_frame f;
	struct cw_hello h;
	w->tcp = 1;
	w->sock = accept(listener, NULL, NULL);
	setsockopt(w->sock, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	CHECK(recv(w->sock, &f, sizeof f, MSG_WAITALL) == sizeof f && f.type == CW_FRAME_HELLO && f.len == sizeof h);
	CHECK(recv(w->sock, &h, sizeof h, MSG_WAITALL) == sizeof h && h.magic == CW_HELLO_MAGIC && h.type == CW_MSG_HELLO);
	w->base = mmap(NULL, CW_REGION0_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(w->base != MAP_FAILED);
	w->ctl = (struct cw_control_page *)w->base;
	struct cw_hello r = {.magic = CW_HELLO_MAGIC, .version = CW_PROTOCOL_VERSION, .type = CW_MSG_WELCOME};
	fake_tcp_send(w, CW_FRAME_WELCOME, 0, &r, sizeof r, NULL, 0);
	return 0;
}
