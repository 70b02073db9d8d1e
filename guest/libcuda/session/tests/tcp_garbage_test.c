/* A server that answers the handshake and then sends garbage: near-valid frames with random fields,
 * cut anywhere. The library must end the session or go on, never touch memory that is not its own;
 * run under the address sanitizer this is the judge. */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/tests/fake_worker.h"

static uint64_t x;

static uint64_t next(void)
{
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x >> 11;
}

static uint64_t some(void)
{
	static const uint64_t edge[] = {0,	    1,		15,	    16,	       24,   63,   64,	    192,
					255,	    256,	260,	    4032,      4048, 4049, 1 << 20, (1 << 20) + 1,
					UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX};
	return next() % 3 ? edge[next() % (sizeof edge / sizeof edge[0])] : next();
}

static int put(int fd, const void *p, size_t n) { return send(fd, p, n, MSG_NOSIGNAL) == (ssize_t)n; }

static void answer_init(int fd, uint64_t pos)
{
	struct {
		struct cw_frame f;
		uint32_t h[4];
		struct cw_out_SessionInit out;
		struct cw_device_info d;
	} r = {.f = {sizeof r - sizeof r.f, CW_FRAME_SLOT, 0, 0}};
	r.h[0] = 1;
	r.h[2] = r.h[3] = sizeof r.out + sizeof r.d;
	r.out.device_count = 1;
	r.out.devices = (struct cw_span){sizeof r.d, sizeof r.out};
	struct cw_frame head = {0, CW_FRAME_HEAD, 0, pos};
	CHECK(put(fd, &head, sizeof head) && put(fd, &r, sizeof r));
}

static void serve(int l, uint64_t seed)
{
	static uint8_t body[1 << 16];
	struct cw_frame f;
	struct cw_hello h;
	int fd = accept(l, NULL, NULL);
	x = seed * 0x9e3779b97f4a7c15ull + 1;
	CHECK(recv(fd, &f, sizeof f, MSG_WAITALL) == sizeof f && recv(fd, &h, sizeof h, MSG_WAITALL) == sizeof h);
	struct cw_hello w = {.magic = CW_HELLO_MAGIC, .version = CW_PROTOCOL_VERSION, .type = CW_MSG_WELCOME};
	f = (struct cw_frame){sizeof w, CW_FRAME_WELCOME, 0, 0};
	CHECK(put(fd, &f, sizeof f) && put(fd, &w, sizeof w));
	CHECK(recv(fd, &f, sizeof f, MSG_WAITALL) == sizeof f && f.type == CW_FRAME_RING && f.len <= sizeof body);
	CHECK(recv(fd, body, f.len, MSG_WAITALL) == (ssize_t)f.len);
	answer_init(fd, f.len);
	for (int n = 0; n < 200; n++) {
		uint64_t body_words[8];
		for (int i = 0; i < 8; i++)
			body_words[i] = some();
		if (next() % 2)
			body_words[0] = 0; /* region 0 is not for one-sided access */
		f = (struct cw_frame){(uint32_t)(next() % 4 ? next() % 64 : some()), (uint16_t)(next() % 14), (uint16_t)(next() % 3),
				      some()};
		size_t len = f.len < sizeof body_words ? f.len : sizeof body_words;
		if (!put(fd, &f, sizeof f) || !put(fd, body_words, len))
			break;
	}
	close(fd);
	_exit(0);
}

static void session(uint64_t seed)
{
	char env[64];
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(l, (struct sockaddr *)&a, sizeof a) == 0 && listen(l, 1) == 0 && getsockname(l, (struct sockaddr *)&a, &len) == 0);
	pid_t p = fork();
	if (p == 0)
		serve(l, seed);
	close(l);
	snprintf(env, sizeof env, "tcp://127.0.0.1:%d", ntohs(a.sin_port));
	setenv("CAUSEWAY", env, 1);
	if (cw_session_open() == 0) {
		/* calls in flight meanwhile; a reply may well be invented for them */
		for (int i = 0; i < 4 && cw_check_alive() == 0; i++) {
			size_t n = 0;
			uint32_t stream;
			char text[64];
			cwop_ConsoleRead(text, sizeof text, &n, &stream);
		}
	}
	waitpid(p, NULL, 0);
	for (int i = 0; i < 60000 && cw_check_alive() == 0; i++) {
		cwop_SessionFence();
		usleep(1000);
	}
	CHECK(cw_check_alive() != 0);
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	for (uint64_t seed = 1; seed <= 60; seed++) {
		int st = -1;
		pid_t p = fork();
		if (p == 0) {
			alarm(300);
			session(seed);
			_exit(0);
		}
		CHECK(waitpid(p, &st, 0) == p);
		if (st != 0)
			fprintf(stderr, "tcp_garbage_test: seed %d: status %#x\n", (int)seed, (unsigned)st);
		CHECK(st == 0);
	}
	puts("tcp_garbage_test ok");
	return 0;
}
