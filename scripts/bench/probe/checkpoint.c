/*
 * checkpoint GIB: how long the driver's own checkpoint takes of a process with so much GPU memory,
 * and to bring it back; the process then checks its memory.
 *
 * Prints "lock S checkpoint S restore S unlock S" in seconds. The status is 3 where the driver
 * cannot (before 570), 1 if anything failed. Public interface: cuda.h of 12.8,
 * cuCheckpointProcessLock and its kin, whose arguments are structures of 64 bytes that may be zero.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*step)(int pid, void *args);

static void *lib;

static void *find(const char *name)
{
	void *p = lib ? dlsym(lib, name) : NULL;
	if (!p) {
		fprintf(stderr, "the driver has no %s\n", name);
		exit(3);
	}
	return p;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(const char *what, int res)
{
	if (res) {
		fprintf(stderr, "%s: CUDA error %d\n", what, res);
		exit(1);
	}
}

enum { PARTS = 16 };

/* holder allocates, fills, says so, and checks when it is told to. */
static void holder(size_t size, int say, int hear)
{
	int (*init)(unsigned) = (int (*)(unsigned))find("cuInit");
	int (*get)(int *, int) = (int (*)(int *, int))find("cuDeviceGet");
	int (*retain)(void **, int) = (int (*)(void **, int))find("cuDevicePrimaryCtxRetain");
	int (*current)(void *) = (int (*)(void *))find("cuCtxSetCurrent");
	int (*alloc)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))find("cuMemAlloc_v2");
	int (*set)(uint64_t, unsigned, size_t) = (int (*)(uint64_t, unsigned, size_t))find("cuMemsetD32_v2");
	int (*copy)(void *, uint64_t, size_t) = (int (*)(void *, uint64_t, size_t))find("cuMemcpyDtoH_v2");
	int (*sync)(void) = (int (*)(void))find("cuCtxSynchronize");
	int dev;
	void *ctx;
	uint64_t at, part = size / PARTS;
	must("start", init(0) || get(&dev, 0) || retain(&ctx, dev) || current(ctx));
	must("cuMemAlloc", alloc(&at, size));
	for (unsigned i = 0; i < PARTS; i++)
		must("cuMemsetD32", set(at + i * part, i * 0x01020304u, part / 4));
	must("cuCtxSynchronize", sync());
	char c = 'r';
	if (write(say, &c, 1) != 1 || read(hear, &c, 1) != 1)
		exit(1);
	for (unsigned i = 0; i < PARTS; i++) {
		uint32_t seen;
		must("cuMemcpyDtoH", copy(&seen, at + (i + 1) * part - 4, 4));
		if (seen != i * 0x01020304u) {
			fprintf(stderr, "part %u holds %x\n", i, seen);
			exit(1);
		}
	}
	exit(0);
}

int main(int argc, char **argv)
{
	size_t size = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 30;
	int there[2], back[2], status = 1;
	char c;
	if (pipe(there) || pipe(back))
		return 1;
	lib = dlopen("libcuda.so.1", RTLD_NOW);
	static const char *const names[] = {"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
					    "cuCheckpointProcessUnlock"};
	static const char *const words[] = {"lock", "checkpoint", "restore", "unlock"};
	step steps[4];
	for (int i = 0; i < 4; i++)
		steps[i] = (step)find(names[i]);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, 9);
		holder(size, there[1], back[0]);
	}
	close(there[1]);
	if (pid < 0 || read(there[0], &c, 1) != 1)
		return 1;
	must("cuInit", ((int (*)(unsigned))find("cuInit"))(0));
	for (int i = 0; i < 4; i++) {
		unsigned char args[64] = {0};
		double begin = now();
		must(names[i], steps[i](pid, args));
		printf("%s %.3f%s", words[i], now() - begin, i < 3 ? " " : "\n");
	}
	if (write(back[1], &c, 1) != 1 || waitpid(pid, &status, 0) != pid)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
