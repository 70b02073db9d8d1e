/*
 * Counts milliseconds in a VM, for scripts/migrate.sh: every fifth goes as a line to a
 * virtio-serial port, with the longest time in us that lay between two of them by the guest's
 * clock. When lines come late by the host's clock, the guest stood still.
 *
 *   ticks /dev/vportNpM
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_WRONLY) : -1;
	if (fd < 0) {
		perror("ticks: the port");
		return 1;
	}
	for (int64_t last = now_us();;) {
		int64_t longest = 0;
		for (int i = 0; i < 5; i++) {
			nanosleep(&(struct timespec){0, 1000000}, NULL);
			int64_t now = now_us();
			if (now - last > longest)
				longest = now - last;
			last = now;
		}
		char line[32];
		int n = snprintf(line, sizeof line, "%lld\n", (long long)longest);
		if (write(fd, line, (size_t)n) != n) {
			perror("ticks: write");
			return 1;
		}
	}
}
