/*
 * What probes of the driver share: its types, and its entries by their names. A probe has a list,
 * ENTRIES(X), of X(variable, name, (arguments)): ENTRIES(DECLARE) declares them, and ENTRIES(BIND)
 * finds them in a function, where `program` is what the probe is called.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef void *handle;
struct location {
	int type, id;
};
struct prop { /* CUmemAllocationProp */
	int type, handles;
	struct location at;
	void *windows;
	unsigned char flags[8];
};
struct access_desc {
	struct location at;
	int flags;
};
enum { PINNED = 1, DEVICE = 1, READ_WRITE = 3 };

/* An entry of the libcuda.so.1 that the loader finds; a program without it ends. */
static void *entry(const char *program, const char *name)
{
	static void *lib;
	void *f;
	if (!lib && !(lib = dlopen("libcuda.so.1", RTLD_NOW))) {
		fprintf(stderr, "%s: %s\n", program, dlerror());
		exit(1);
	}
	if (!(f = dlsym(lib, name))) {
		fprintf(stderr, "%s: no %s\n", program, name);
		exit(1);
	}
	return f;
}

#define DECLARE(f, name, args) static CUresult(*f) args;
#define BIND(f, name, args) *(void **)&f = entry(program, #name);
