/* What a program is told of an RDMA session that has ended in its middle: what was lost first, and
 * not only what came of it. */
#include "session/rdma_lasting.h"
#include "session/tests/rdma_far.h"

/* What was said on stderr since mute_begin. */
static int stderr_fd;
static char said[4096];

static void mute_begin(void)
{
	char name[128];
	snprintf(name, sizeof name, "%s/said", dir);
	fflush(stderr);
	stderr_fd = dup(2);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(stderr_fd >= 0 && fd >= 0 && dup2(fd, 2) == 2);
	close(fd);
}

static void mute_end(void)
{
	ssize_t n = pread(2, said, sizeof said - 1, 0);
	CHECK(n >= 0 && dup2(stderr_fd, 2) == 2);
	close(stderr_fd);
	said[n] = 0;
}

/* A session of a server's ends by what is done to it; the one line of it has all of these, up to
 * NULL. */
static void says(enum server how, struct cw_region *(*fault)(void), const char *const *what)
{
	CHECK(begin(how) == 0);
	mute_begin();
	wait_dead(fault());
	mute_end();
	for (; *what; what++)
		if (!strstr(said, *what)) {
			fprintf(stderr, "\"%s\" is not in:\n%s", *what, said);
			CHECK(!"it is said");
		}
	CHECK(strchr(said, '\n') && strchr(said, '\n')[1] == 0);
}

static struct cw_region region; /* whose first word to the server is what fails */

static struct cw_region *retry_exceeded(void)
{
	atomic_store(&fake->status, 12);
	memory(&region);
	return &region;
}

static struct cw_region *no_post(void)
{
	atomic_store(&fake->no_post, 1);
	memory(&region);
	return &region;
}

static struct cw_region *host_gone(void)
{
	shutdown(far.fd, SHUT_RDWR);
	return NULL;
}

static struct cw_region *stranger(void)
{
	CHECK(send(far.fd, "0123456789abcdef", 16, 0) == 16);
	return NULL;
}

static struct cw_region *closed(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && dup2(fd, cw_s.fd) == cw_s.fd && close(fd) == 0);
	return NULL;
}

#define HOST_ENDS "the GPU server, or this VM's host, has ended the session"

static void test_why(void)
{
	/* The queue pair is lost; the server, which has waited as long, is gone before there is
	 * another. */
	says(SERVES, retry_exceeded, (const char *const[]){"retry exceeded", "there was no other", HOST_ENDS, NULL});
	says(SERVES, no_post, (const char *const[]){"the adapter takes no work", "there was no other", HOST_ENDS, NULL});
	/* It is not, and there is no other in time. */
	int64_t limit = cw_lasting_limit_ms;
	cw_lasting_limit_ms = 300;
	says(HOLDS, retry_exceeded, (const char *const[]){"retry exceeded", "there was no other within", NULL});
	cw_lasting_limit_ms = limit;
	/* Nothing was lost. */
	says(SERVES, host_gone, (const char *const[]){HOST_ENDS, NULL});
	CHECK(!strstr(said, "no other"));
	says(SERVES, closed, (const char *const[]){CW_CLOSED_BY_PROGRAM, NULL});
	says(SERVES, stranger, (const char *const[]){"no word of this protocol", NULL});
}

int main(int argc, char **argv)
{
	(void)argc;
	rig_begin(argv);
	test_why();
	return rig_end();
}
