/* Allocates GPU memory in pieces of so many MiB, and prints what cuMemAlloc says of each:
 * scripts/fleet.sh. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);

int main(int argc, char **argv)
{
	int device, err;
	void *context;
	if ((err = cuInit(0)) || (err = cuDeviceGet(&device, 0)) || (err = cuDevicePrimaryCtxRetain(&context, device)) ||
	    (err = cuCtxSetCurrent(context))) {
		printf("no context: %d\n", err);
		return 1;
	}
	for (int i = 1; i < argc; i++) {
		uint64_t at;
		printf("%s MiB: %d\n", argv[i], cuMemAlloc_v2(&at, (size_t)strtoul(argv[i], NULL, 10) << 20));
	}
	return 0;
}
