/*
 * delay PORT TO MICROSECONDS: a link that takes so long one way, where the kernel has no netem.
 * Passes connections to 127.0.0.1:PORT on to
 * 127.0.0.1:TO; each direction has a thread that polls, and sends what came when its time has come. What the link adds for itself (two more hops over
 * loopback) comes on top, so scripts/bench/remote.sh measures a ping-pong with and without it. Ends
 * with its parent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 8 << 20, BATCHES = 4096, LINKS = 64 };

/* One direction of a connection. What lies in bytes came in batches, each due at its own time. */
struct way {
	int from, to;
	int ended; /* nothing comes any more */
	uint64_t in, out;
	struct {
		uint64_t end, due;
	} batch[BATCHES];
	uint64_t batches, sent;
	_Atomic int *open; /* of both directions: the last closes */
	struct way *next;
	unsigned char bytes[BYTES];
};

struct direction {
	_Atomic(struct way *) arrived;
	struct way *ways;
	uint64_t delay;
};

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void take(struct way *w, uint64_t delay)
{
	uint64_t at = w->in % BYTES, room = BYTES - (w->in - w->out);
	if (room > BYTES - at)
		room = BYTES - at;
	if (w->ended || room == 0 || w->batches - w->sent == BATCHES)
		return;
	ssize_t n = recv(w->from, w->bytes + at, room, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		w->ended = 1;
		return;
	}
	w->in += (uint64_t)n;
	w->batch[w->batches % BATCHES].end = w->in;
	w->batch[w->batches++ % BATCHES].due = now() + delay;
}

/* pass sends what is due; 0: this direction is over. */
static int pass(struct way *w)
{
	uint64_t end = w->out, t = now(), at = w->out % BYTES;
	for (uint64_t b = w->sent; b != w->batches && w->batch[b % BATCHES].due <= t; b++)
		end = w->batch[b % BATCHES].end;
	if (end == w->out)
		return !(w->ended && w->batches == w->sent);
	uint64_t size = end - w->out < BYTES - at ? end - w->out : BYTES - at;
	ssize_t n = send(w->to, w->bytes + at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	w->out += (uint64_t)n;
	while (w->sent != w->batches && w->batch[w->sent % BATCHES].end <= w->out)
		w->sent++;
	return 1;
}

static void *run(void *arg)
{
	struct direction *d = arg;
	for (;;) {
		struct way *w = atomic_exchange(&d->arrived, NULL);
		while (w) {
			struct way *next = w->next;
			w->next = d->ways;
			d->ways = w;
			w = next;
		}
		for (struct way **p = &d->ways; (w = *p);) {
			take(w, d->delay);
			if (pass(w)) {
				p = &w->next;
				continue;
			}
			*p = w->next;
			shutdown(w->to, SHUT_WR);
			if (atomic_fetch_sub(w->open, 1) == 1) {
				close(w->from);
				close(w->to);
				free((void *)w->open);
			}
			free(w);
		}
	}
	return NULL;
}

static void add(struct direction *d, int from, int to, _Atomic int *open)
{
	struct way *w = calloc(1, sizeof *w);
	if (!w)
		exit(1);
	w->from = from;
	w->to = to;
	w->open = open;
	w->next = atomic_load(&d->arrived);
	while (!atomic_compare_exchange_weak(&d->arrived, &w->next, w))
		;
}

static int die(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: delay PORT TO MICROSECONDS\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct direction there = {.delay = strtoull(argv[3], NULL, 10) * 1000}, back = {.delay = there.delay};
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}},
			   to = at;
	to.sin_port = htons((uint16_t)atoi(argv[2]));
	int one = 1, ln = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(ln, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (ln < 0 || bind(ln, (struct sockaddr *)&at, sizeof at) || listen(ln, LINKS))
		return die("delay: listen");
	pthread_t t;
	if (pthread_create(&t, NULL, run, &there) || pthread_create(&t, NULL, run, &back))
		return die("delay: thread");
	for (;;) {
		int a = accept4(ln, NULL, NULL, SOCK_CLOEXEC), b = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		_Atomic int *open = malloc(sizeof *open);
		if (a < 0 || b < 0 || !open)
			return die("delay: accept");
		setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		if (connect(b, (struct sockaddr *)&to, sizeof to)) {
			close(a);
			close(b);
			free((void *)open);
			continue;
		}
		*open = 2;
		add(&there, a, b, open);
		add(&back, b, a, open);
	}
}
