/*
 * The carrier of a guest that is the RDMA end itself, alone: carrier_rdma.c between a host, an
 * adapter and frames of the test's own. What is said out of band and what is made of what comes,
 * that whatever fails while it opens gives back all that it had taken, how a session is without its
 * queue pair for a while, what the server may reach, and how it ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "session/rdma_lasting.h"
#include "session/tests/check.h"

static int f_open(const char *path, int flags);
static ssize_t f_read(int fd, void *p, size_t n);
static int f_close(int fd);
static ssize_t f_pwrite(int fd, const void *p, size_t n, off_t at);
static int f_socket(int domain, int type, int protocol);
static int f_connect(int fd, const struct sockaddr *a, socklen_t len);
static int f_shutdown(int fd, int how);
static int f_munmap(void *p, size_t n);
static int f_nap(const struct timespec *t);
static long f_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *limit);
static long f_wake(void);
static int64_t now;

#define open(path, flags) f_open(path, flags)
#define read(fd, p, n) f_read(fd, p, n)
#define close(fd) f_close(fd)
#define pwrite(fd, p, n, at) f_pwrite(fd, p, n, at)
#define socket(domain, type, protocol) f_socket(domain, type, protocol)
#define connect(fd, a, len) f_connect(fd, a, len)
#define shutdown(fd, how) f_shutdown(fd, how)
#define munmap(p, n) f_munmap(p, n)
#define nanosleep(t, left) f_nap(t)
#define cw_futex_wait(word, value, op, limit) f_wait(word, value, limit)
#define cw_futex_wake(word, n, op) f_wake()
#define cw_now_ms() now
#include "session/carrier_rdma.c"
#undef open
#undef close
#undef read
#undef munmap
#undef cw_futex_wait
#undef cw_futex_wake
#include "session/lock.c"
#include "session/signals.c"

struct cw_session cw_s; /* lock.c's */

#include "session/tests/alone/rdma_carrier_fakes.h"
#define OWN_CLOSE f_close
#include "session/tests/alone/own_fakes.h"

static const struct cw_carrier *const c = &cw_carrier_rdma;

static void anew(int mount)
{
	memset(s, 0, sizeof *s);
	memset(is_open, 0, sizeof is_open);
	memset(&cw_lasting, 0xee, sizeof cw_lasting); /* as another try has left it */
	cw_rdma_oob.mount = mount;
	atomic_store(&cw_rdma_oob.stop, 1);
	cw_rdma_oob.at = cw_rdma_oob.end = 9;
	atomic_store(&cw_tcp.running, 0);
	maps = adapters = kept = step = fails_at = naps = shut = words_sent = send_err = comes = taken = threads = lifts = lift_err = 0;
	failed_ = failed_err = lost = shut_err = shuts = forked_ = register_err = deregister_err = registered = tcp_err = tcp_regions =
		grants = wakes = 0;
	reaches = 1;
	at_nap = at_wait = NULL;
	hello = text_len = 0;
	ended_at = 0;
	leaves = 0;
	own_why = "";
	logged[0] = failed_why[0] = 0;
	no_lib = NULL;
	ports_there = 3;
	now = 1000;
	text_len = 9;
	memcpy(text_, "192.0.2.1", 9);
	server_is = "192.0.2.1";
	setenv("CAUSEWAY_RDMA", "auto", 1);
}

static int said(const char *what) { return strstr(s->why, what) != NULL; }

static int opened(int mount)
{
	anew(mount);
	return c->open(s, mount ? "/mnt" : "/run/x");
}

/* --- opening ---------------------------------------------------------------------------------- */

static void wanted(void)
{
	static char before[2040 + sizeof "\ndirect=1\n"];
	static const struct {
		const char *env, *info;
		int mount, want;
	} all[] = {{NULL, "x\ndirect=1\ny", 1, 1},
		   {"off", "x\ndirect=1\n", 1, 0},
		   {"auto", "x\ndirect=0\n", 1, 0},
		   {NULL, "direct=1\n", 1, 0},
		   {"auto", NULL, 1, 0},
		   {NULL, "", 1, 0},
		   {NULL, "x\ndirect=1\n", 0, 0},
		   {"", NULL, 0, 0},
		   {"auto", NULL, 0, 1},
		   {"mlx5_0/1", NULL, 0, 1},
		   {"off", NULL, 0, 0},
		   {NULL, before, 1, 0}};
	memset(before, 'x', sizeof before - 1);
	memcpy(before + 2040, "\ndirect=1\n", 10); /* of which there is no room for all */
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		anew(1);
		if (all[i].env)
			setenv("CAUSEWAY_RDMA", all[i].env, 1);
		else
			unsetenv("CAUSEWAY_RDMA");
		info = all[i].info;
		CHECK(cw_rdma_wanted(all[i].mount ? "/mnt" : NULL) == all[i].want && files() == 0);
	}
	static char path[4200];
	/* With "/info" it is cut off, which would be another file. */
	memset(path, '/', sizeof path - 1);
	CHECK(!cw_rdma_wanted(path));
}

static void thread_ends(void) { atomic_store(&d.running, 0); }

/* Both threads are waited for, whichever ends first. */
static int tcp_first;
static void one_by_one(void)
{
	if (naps == 2)
		atomic_store(tcp_first ? &cw_tcp.running : &d.running, 0);
	if (naps == 4)
		atomic_store(tcp_first ? &d.running : &cw_tcp.running, 0);
}

static void abandons(void)
{
	for (tcp_first = 0; tcp_first < 2; tcp_first++) {
		CHECK(opened(1) == 0);
		atomic_store(&cw_tcp.running, 1);
		at_nap = one_by_one;
		c->abandon(s);
		CHECK(naps == 4 && adapters == 0 && shut == 0);
	}
	anew(0);
	memset(&d, 0, sizeof d);
	s->fd = -1; /* before there was anything */
	c->abandon(s);
	CHECK(failed_ == 0 && shut == 0 && atomic_load(&cw_rdma_oob.stop));
}

static void opens(void)
{
	for (int mount = 0; mount < 2; mount++) {
		CHECK(opened(mount) == 0 && s->fd == HOST && s->base == place && files() == 1 && maps == 1 && adapters == 1 && kept == 1 &&
		      threads == 1);
		CHECK(hello == CW_MSG_DIRECT && d.port.number == 2 && d.reach == 1 && d.until == 0 && atomic_load(&d.running) &&
		      atomic_load(&d.phase) == THERE);
		CHECK(cw_lasting.again == another && atomic_load(&cw_lasting.on) && !atomic_load(&cw_rdma_oob.stop) &&
		      cw_rdma_oob.at == 0 && cw_rdma_oob.end == 0);
		CHECK(welcome_until == 71000 && io->send(s, (void *)place, 3) == -EXDEV && log_level == CW_LOG_INFO &&
		      strstr(logged, "mlx5_0 port 2"));
		CHECK(mount || !strcmp(address, "/run/x"));
		int most = step;
		atomic_store(&d.running, 0);
		c->abandon(s);
		CHECK(files() == 0 && maps == 0 && adapters == 0 && kept == 0 && !s->base && s->fd == -1 && !d.r && shut == !mount &&
		      naps == 0);
		CHECK(atomic_load(&cw_rdma_oob.stop) && !atomic_load(&cw_lasting.on) && failed_ == 1);
		CHECK(most == (mount ? 12 : 13));
		for (int at = 1; at <= most; at++) {
			anew(mount);
			fails_at = at;
			at_nap = NULL;
			/* The thread out of band is there, and ends when it is told to. */
			if (at == most)
				at_nap = thread_ends;
			int err = c->open(s, mount ? "/mnt" : "/run/x");
			CHECK(err < 0 && s->why[0] && files() == 0 && maps == 0 && adapters == 0 && kept == 0 && !d.r && !s->base &&
			      s->fd == -1);
			CHECK(atomic_load(&cw_rdma_oob.stop) && !atomic_load(&cw_lasting.on) && !atomic_load(&d.running) &&
			      naps == (at == most));
		}
	}
}

static void refusals(void)
{
	anew(1);
	no_lib = "no such library";
	CHECK(c->open(s, "/mnt") == -ENODEV && said("no such library") && step == 0);
	anew(1);
	ports_there = 0;
	CHECK(c->open(s, "/mnt") == -ENODEV && said("no active RDMA port") && step == 0);
	anew(1);
	fails_at = 6;
	CHECK(c->open(s, "/mnt") == -ENODEV && said("on the network of the GPU server 192.0.2.1"));
	for (int i = 1; i < 3; i++) {
		anew(1);
		fails_at = i;
		CHECK(c->open(s, "/mnt") == -EMFILE && said("takes no RDMA"));
	}
	anew(1);
	fails_at = 3;
	CHECK(c->open(s, "/mnt") == -ETIMEDOUT && said("does not answer"));
	anew(1);
	text_len = 513;
	CHECK(c->open(s, "/mnt") == -EPROTO && said("does not answer") && step == 3);
	static char whole[64];
	anew(1);
	text_len = 512;
	memset(text_, 'y', sizeof text_);
	memset(whole, 'y', 63);
	server_is = whole;
	CHECK(c->open(s, "/mnt") == 0);
	static char path[120];
	for (size_t n = 106; n < 110; n++) {
		anew(0);
		memset(path, 0, sizeof path);
		memset(path, 'p', n);
		int err = c->open(s, path);
		CHECK(n < 108 ? err == 0 && !strcmp(address, path) : err == -ENAMETOOLONG && files() == 0 && step == 0);
	}
}

/* --- without a queue pair for a while --------------------------------------------------------- */

static int waits_left, becomes;
static void at_last(void)
{
	if (--waits_left > 0)
		return;
	switch (becomes) {
	case 0: atomic_store(&d.phase, THERE); break;
	case 1: atomic_store(&d.phase, NONE); break;
	case 2: atomic_store(&d.running, 0); break;
	case 3: atomic_store(&cw_rdma_oob.stop, 1); break;
	case 4: now = 9000; break;
	}
}

static void others(void)
{
	static const int want[] = {0, -ECONNRESET, -EPIPE, -EPIPE, -EPIPE};
	for (becomes = 0; becomes < 5; becomes++) {
		CHECK(opened(1) == 0);
		waits_left = 3;
		at_wait = at_last;
		d.far = 77;
		uint64_t far = 0;
		CHECK(cw_lasting.again(s, 0x1122334455ull, 9000, &far) == want[becomes] && waits_left == 0 && shuts == 1);
		CHECK(words_sent == 1 && !memcmp(words[0], "CWVLST\0\1\x55\x44\x33\x22\x11\0\0\0", 16) && far == (becomes < 2 ? 77 : 0));
	}
	CHECK(opened(1) == 0);
	shut_err = -EBUSY;
	uint64_t far;
	CHECK(cw_lasting.again(s, 1, 9000, &far) == -EIO && words_sent == 0 && said("does not let go"));
	CHECK(opened(1) == 0);
	send_err = -EPIPE;
	CHECK(cw_lasting.again(s, 1, 9000, &far) == -EPIPE);
	CHECK(opened(1) == 0);
	CHECK(cw_lasting.again(s, 1, now, &far) == -EPIPE); /* there is no time */
}

/* Words that come, and what is made of each; then the end. Without a queue pair it is for who looks
 * for another to end the session, and to say why. */
static void letters(void)
{
	static const struct {
		const char *words[3];
		enum phase phase, then;
		int lift_err, ended, lost, lifts, failed, acked, wakes;
		const char *why;
	} all[] = {
		{{"CWVLST\0\1........"}, THERE, THERE, 0, 0, 1, 0, -EPIPE, 0, 0, "has ended the session"},
		{{"CWVLST\0\1........"}, NONE, NONE, 0, 0, 0, 0, 0, 0, 0, "has ended the session"},
		{{"CWVLST\0\1........"}, ASKED, NONE, 0, 0, 0, 0, 0, 0, 1, "has ended the session"},
		{{"CWVGOT\0\1\5\0\0\0\0\0\0\0"}, ASKED, THERE, 0, 0, 0, 1, -EPIPE, 0, 1, "has ended the session"},
		{{"CWVGOT\0\1\5\0\0\0\0\0\0\0", "CWVACK\0\1........"}, ASKED, NONE, -ECONNRESET, 0, 0, 1, 0, 1, 1, "has ended the session"},
		{{"CWVGOT\0\1\5\0\0\0\0\0\0\0", "CWVACK\0\1........"}, ASKED, NONE, -EIO, 0, 0, 1, 0, 0, 1, "does not go on"},
		{{"CWVGOT\0\1\5\0\0\0\0\0\0\0"}, THERE, THERE, 0, 0, 0, 0, -EIO, 0, 0, "no word of this protocol"},
		{{"CWVGOT\0\1\5\0\0\0\0\0\0\0"}, NONE, NONE, 0, 0, 0, 0, 0, 0, 0, "no word of this protocol"},
		{{"CWVXXX\0\1........"}, ASKED, NONE, 0, 0, 0, 0, 0, 0, 1, "no word of this protocol"},
		{{"CWVACK\0\1........", "CWVBYE\0\1\7\1\0\0\0\0\0\0"}, THERE, THERE, 0, 0, 0, 0, -EPIPE, 1, 0, "has ended the session"},
		/* After this end's own word. */
		{{"CWVACK\0\1........"}, THERE, THERE, 0, 1, 0, 0, 0, 1, 0, ""},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		CHECK(opened(1) == 0);
		lifts = 0;
		lift_err = all[i].lift_err;
		atomic_store(&d.phase, (uint32_t)all[i].phase);
		atomic_store(&d.ended, all[i].ended);
		for (comes = 0; comes < 3 && all[i].words[comes]; comes++)
			memcpy(come[comes], all[i].words[comes], 16);
		CHECK(thread(s) == NULL);
		int ok = lost == all[i].lost && lifts == all[i].lifts && failed_err == all[i].failed &&
			 strstr(failed_err ? failed_why : s->why, all[i].why) && atomic_load(&d.acked) == all[i].acked &&
			 atomic_load(&d.phase) == (uint32_t)all[i].then && !atomic_load(&d.running) && wakes == all[i].wakes;
		if (!ok)
			fprintf(stderr, "row %zu: lost %d, %d lifts, %d %s, %s, phase %u, %d wakes\n", i, lost, lifts, failed_err,
				failed_why, s->why, atomic_load(&d.phase), wakes);
		CHECK(ok && (all[i].lifts == 0 || d.far == 5));
		if (all[i].words[1] && !memcmp(all[i].words[1], "CWVBYE", 6))
			CHECK(ended_at == 0x107 && words_sent == 1 && !memcmp(words[0], "CWVACK\0\1\7\1\0\0\0\0\0\0", 16));
		else
			CHECK(words_sent == 0 && ended_at == 0);
	}
	/* What was lost just before goes before the end that came of it. */
	CHECK(opened(1) == 0);
	own_why = "retry exceeded";
	comes = 0;
	CHECK(thread(s) == NULL && failed_err == -EPIPE && !strncmp(failed_why, "retry exceeded; the GPU server, or", 34));
}

/* --- regions ---------------------------------------------------------------------------------- */

static struct cw_region region(size_t size) { return (struct cw_region){.id = 7, .va = place + 8, .size = size}; }

static void reached(void)
{
	CHECK(opened(1) == 0);
	struct cw_region a = region(MOST_GRANTED / 2), b = a, late = region(4096), much = region(MOST_GRANTED + 4096);
	CHECK(c->add_region(s, &much) == 0 && tcp_regions == 1 && grants == 0 && d.granted == 0 && !much.carrier);
	CHECK(c->add_region(s, &a) == 0 && a.carrier && grants == 1 && granted_[0] == (uintptr_t)a.va && granted_[1] == a.size &&
	      granted_[2] == 99);
	CHECK(c->add_region(s, &b) == 0 && b.carrier && grants == 2 && d.granted == MOST_GRANTED);
	logged[0] = 0;
	CHECK(c->add_region(s, &late) == 0 && !late.carrier && grants == 2 && registered == 2 && d.granted == MOST_GRANTED &&
	      tcp_regions == 4);
	CHECK(strstr(logged, "No space left") && !strstr(logged, "ulimit") && log_level == CW_LOG_INFO);
	logged[0] = 0;
	c->end_region(s, &late);
	/* Which is said once. */
	CHECK(c->add_region(s, &late) == 0 && !late.carrier && logged[0] == 0);
	c->end_region(s, &late);
	c->end_region(s, &b);
	CHECK(registered == 1 && d.granted == MOST_GRANTED / 2 && tcp_regions == 2 && failed_ == 0 && !b.carrier);
	b = region(MOST_GRANTED / 2);
	CHECK(c->add_region(s, &b) == 0 && b.carrier && grants == 3);
	deregister_err = -EIO;
	c->end_region(s, &b);
	CHECK(failed_ == 1 && failed_err == -EIO && tcp_regions == 2);
	CHECK(opened(1) == 0);
	struct cw_region whole = region(MOST_GRANTED);
	CHECK(c->add_region(s, &whole) == 0 && whole.carrier && d.granted == MOST_GRANTED);

	CHECK(opened(1) == 0);
	register_err = -ENOMEM;
	logged[0] = 0;
	a = region(4096);
	CHECK(c->add_region(s, &a) == 0 && !a.carrier && grants == 0 && d.granted == 0 && strstr(logged, "ulimit -l"));
	logged[0] = 0;
	b = region(4096);
	CHECK(c->add_region(s, &b) == 0 && logged[0] == 0);
	tcp_err = -ENOSPC;
	register_err = 0;
	CHECK(c->add_region(s, &late) == -ENOSPC && registered == 0 && d.granted == 0);

	anew(1);
	reaches = 0;
	CHECK(c->open(s, "/mnt") == 0);
	CHECK(c->add_region(s, &a) == 0 && !a.carrier && registered == 0 && grants == 0);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void acked_late(void)
{
	if (naps == 3)
		atomic_store(&d.acked, 1);
}

static void gone_late(void)
{
	if (naps == 3)
		atomic_store(&d.running, 0);
}

static void closes(void)
{
	CHECK(opened(1) == 0);
	leaves = 0x102;
	at_nap = acked_late;
	c->close(s);
	CHECK(leave_until == 1000 + cw_rdma_leave_ms && naps == 3 && words_sent == 1 &&
	      !memcmp(words[0], "CWVBYE\0\1\2\1\0\0\0\0\0\0", 16));
	CHECK(atomic_load(&d.ended) && atomic_load(&cw_rdma_oob.stop) && hello == CW_MSG_REGION_END && failed_ == 1 &&
	      failed_err == -EPIPE);
	CHECK(files() == 1 && adapters == 1); /* threads may be inside */
	CHECK(opened(0) == 0);
	at_nap = gone_late;
	c->close(s);
	CHECK(naps == 3 && shut == 1);
	CHECK(opened(0) == 0); /* nobody answers */
	c->close(s);
	CHECK(naps == cw_rdma_leave_ms / 2 && shut == 1);
	CHECK(opened(0) == 0);
	send_err = -EPIPE;
	c->close(s);
	CHECK(naps == 0 && shut == 0 && failed_ == 0);
	CHECK(opened(0) == 0);
	leaves = -EPIPE;
	c->close(s);
	CHECK(words_sent == 0 && shut == 0 && !atomic_load(&d.ended));
}

/* What ends a stream says why once; after an end in order nobody is told of what that breaks. */
static void cuts(void)
{
	for (int stop = 0; stop < 2; stop++)
		for (int mount = 0; mount < 2; mount++) {
			CHECK(opened(mount) == 0);
			logged[0] = 0;
			hello = 0;
			own_why = "the cable is out";
			atomic_store(&cw_rdma_oob.stop, stop);
			io->cut(s);
			CHECK(!strcmp(logged, stop ? "" : own_why) && failed_ == 1 && failed_err == -EPIPE && shut == !mount &&
			      hello == (mount ? CW_MSG_REGION_END : 0));
			own_why = "";
			logged[0] = 0;
			io->cut(s);
			CHECK(!logged[0]);
		}
}

static void forks(void)
{
	CHECK(opened(1) == 0);
	c->forked(s, 1);
	CHECK(files() == 0 && forked_ == 1 && adapters == 1);
	anew(1);
	memset(&d, 0, sizeof d);
	s->fd = HOST;
	is_open[HOST] = 1;
	c->forked(s, 0);
	CHECK(files() == 0 && forked_ == 0);
}

int main(void)
{
	wanted();
	opens();
	abandons();
	refusals();
	others();
	letters();
	reached();
	closes();
	cuts();
	forks();
	puts("rdma_carrier_test ok");
	return 0;
}
