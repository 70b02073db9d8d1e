/* What a worker says of itself when the session begins: a program is told what is wrong, and reads
 * nothing beyond what came. */
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/internal.h"
#include "session/tests/fake_worker.h"

static CUresult wanted(enum fake_first first)
{
	switch (first) {
	case FIRST_RIGHT: return CUDA_SUCCESS;
	case FIRST_NO_DEVICE: return CUDA_ERROR_NO_DEVICE;
	case FIRST_ERROR: return CUDA_ERROR_NOT_INITIALIZED;
	default: return CUDA_ERROR_UNKNOWN;
	}
}

static void one(enum fake_first first, int tcp)
{
	struct fake_options o = {.first = first, .tcp = tcp, .sleep_after_us = 50};
	pid_t worker = fake_worker_start(&o);
	CUresult r = cw_session_open();
	struct timeval wait = {0};
	socklen_t len = sizeof wait;
	/* A session that says nothing for longer than a handshake may take goes on; over TCP it
	 * looks each second whether it has its connection. */
	if (r == 0)
		CHECK(getsockopt(cw_s.fd, SOL_SOCKET, SO_RCVTIMEO, &wait, &len) == 0 && wait.tv_sec == tcp && wait.tv_usec == 0);
	CHECK(r == wanted(first) && (cw_check() == 0) == (r == 0));
	if (r == 0)
		CHECK(cw_session_info()->device_count == 2 && !strcmp((const char *)cw_session_info()->devices[0].name, "Fake 0"));
	else
		CHECK(cw_s.why[0] != 0);
	fake_worker_kill(worker);
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	for (int first = 0; first < FIRST_KINDS; first++) {
		for (int tcp = 0; tcp < 2; tcp++) {
			int st = -1;
			pid_t p = fork();
			if (p == 0) {
				one((enum fake_first)first, tcp);
				_exit(0);
			}
			CHECK(waitpid(p, &st, 0) == p && st == 0);
		}
	}
	puts("first_test ok");
	return 0;
}
