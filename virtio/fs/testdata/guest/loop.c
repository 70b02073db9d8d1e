/* The life of a session over suspend, migration and unplug: a loan that is renewed for ever. The
 * host watches. */
#define _GNU_SOURCE
#include "guest.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One session: until the host ends it with an error, or the device is gone. Returns errno. */
static int one_session(void)
{
	long long result = 0;
	int fd = session();
	char *p;

	if (fd < 0)
		return errno;
	p = region(REGION);
	while (result == 0) {
		if (submit(fd, SC_TERM, p, REGION) != 1)
			result = -errno;
		else if (complete(1, 60, &result) != 1)
			result = -ETIMEDOUT;
	}
	release_region(p, REGION);
	close(fd);
	return (int)-result;
}

void loop_sessions(void)
{
	int err;

	setup_aio();
	do {
		err = one_session();
		printf("info session ended: %s\n", strerror(err));
		usleep(2500000);
	} while (err == EPIPE || err == EBUSY || err == 0);
	printf("boot 1 done\n");
	for (;;)
		pause();
}
