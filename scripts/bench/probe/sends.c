/*
 * sends [ADDRESS PORT] [MIB]: what a GiB costs the thread that sends it by TCP, in CPU time: by
 * send, by send without a copy (MSG_ZEROCOPY), and by send of a socket whose TLS is the kernel's
 * (TLS 1.3 with AES-128-GCM, keys of no use to anybody). 256 KiB at once, as a copy's bytes leave
 * (remote/resume), three turns of each by turns, the median. Without an address to a thread of its
 * own over loopback, where the kernel copies all the same: "copied" is the share of what was sent
 * so that it says so of. What it receives is thrown away: nc -lk PORT >/dev/null is another
 * machine's end.
 *
 *	gcc -O2 -std=gnu11 -pthread scripts/bench/probe/sends.c -o sends && ./sends
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/tls.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 256 << 10, BATCHES = 32, TURNS = 3 };
static struct sockaddr_in to;
/* BATCHES, one after the other: a copy's bytes are not in the processor's caches either */
static char *bytes;

static double median(const double *v)
{
	double low = v[0] < v[1] ? v[0] : v[1], high = v[0] < v[1] ? v[1] : v[0];
	return v[2] < low ? low : v[2] > high ? high : v[2];
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *sink(void *arg)
{
	static char in[1 << 20];
	int fd = accept((int)(intptr_t)arg, NULL, NULL);
	while (fd >= 0 && read(fd, in, sizeof in) > 0)
		;
	close(fd);
	return NULL;
}

/* A connection; without an address, to a thread of this process. */
static int connection(int *listener, pthread_t *thread)
{
	struct sockaddr_in a = to;
	if (to.sin_port == 0) {
		socklen_t n = sizeof a;
		*listener = socket(AF_INET, SOCK_STREAM, 0);
		a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
		if (bind(*listener, (struct sockaddr *)&a, sizeof a) || listen(*listener, 1) ||
		    getsockname(*listener, (struct sockaddr *)&a, &n) || pthread_create(thread, NULL, sink, (void *)(intptr_t)*listener))
			die("listen");
	}
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
		die("connect");
	return fd;
}

static double cpu_s(void)
{
	struct rusage r;
	getrusage(RUSAGE_THREAD, &r);
	return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

/* Takes completions of sends without a copy. They come as ranges; *copied counts those of which the
 * kernel copied. */
static void reap(int fd, unsigned *done, unsigned *copied)
{
	for (;;) {
		char control[128];
		struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
		if (recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			return;
		struct sock_extended_err *e = (struct sock_extended_err *)CMSG_DATA(CMSG_FIRSTHDR(&m));
		unsigned n = e->ee_data - e->ee_info + 1;
		*done += n;
		*copied += e->ee_code & SO_EE_CODE_ZEROCOPY_COPIED ? n : 0;
	}
}

static int kernel_tls(int fd)
{
	struct tls12_crypto_info_aes_gcm_128 k = {.info = {TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_128}};
	memset(k.key, 7, sizeof k.key);
	return setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 4) || setsockopt(fd, SOL_TLS, TLS_TX, &k, sizeof k) ? -errno : 0;
}

enum how { COPIES, NO_COPY, TLS };

/* CPU seconds for a GiB, or negative: the kernel has it not. */
static double turn(enum how how, size_t total, double *share)
{
	int listener = -1, fd;
	pthread_t thread;
	unsigned sent = 0, done = 0, copied = 0, one = 1;
	fd = connection(&listener, &thread);
	double cost = how == NO_COPY ? setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) : how == TLS ? kernel_tls(fd) : 0;
	double since = cpu_s();
	for (size_t at = 0; cost == 0 && at < total; at += BATCH) {
		char *p = bytes + at / BATCH % BATCHES * BATCH;
		for (size_t n = 0; n < BATCH;) {
			ssize_t k = send(fd, p + n, BATCH - n, MSG_NOSIGNAL | (how == NO_COPY ? MSG_ZEROCOPY : 0));
			if (k < 0 && errno == ENOBUFS) { /* of completions that were not taken */
				poll(&(struct pollfd){.fd = fd}, 1, 10);
				reap(fd, &done, &copied);
				continue;
			}
			if (k < 0)
				die("send");
			n += (size_t)k;
			sent += how == NO_COPY;
		}
		reap(fd, &done, &copied);
	}
	while (cost == 0 && done < sent) { /* before that the bytes are not the program's again */
		poll(&(struct pollfd){.fd = fd}, 1, 10);
		reap(fd, &done, &copied);
	}
	if (cost == 0)
		cost = (cpu_s() - since) * (1 << 30) / (double)total;
	if (sent)
		*share = (double)copied / sent;
	shutdown(fd, SHUT_RDWR);
	close(fd);
	if (listener >= 0) {
		pthread_join(thread, NULL);
		close(listener);
	}
	return cost;
}

int main(int argc, char **argv)
{
	const char *const names[] = {"send", "send_zerocopy", "send_kernel_tls"};
	double s[3][TURNS], share = 0;
	if (argc > 2) {
		to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
		if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
			die(argv[1]);
	}
	size_t total = (size_t)(argc % 2 ? 1024 : atoi(argv[argc - 1])) << 20;
	bytes = malloc(BATCH * BATCHES);
	memset(bytes, 1, BATCH * BATCHES);
	for (int i = 0; i < TURNS; i++)
		for (int how = COPIES; how <= TLS; how++)
			s[how][i] = turn(how, total, &share);
	for (int how = COPIES; how <= TLS; how++) {
		if (s[how][0] < 0)
			printf("%s not in this kernel: %s\n", names[how], strerror((int)-s[how][0]));
		else
			printf("%s %.3f s/GiB", names[how], median(s[how]));
		if (s[how][0] >= 0)
			printf(how == NO_COPY ? ", copied %.2f\n" : "\n", share);
	}
	return 0;
}
