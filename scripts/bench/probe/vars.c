/*
 * Where the driver puts variables of libraries, by what was done before: one process for each
 * scenario, whose mappings begin at the same address and grow upwards, as a worker's do.
 *
 *   gcc -O1 vars.c -o vars -ldl; ./vars PqAaC1a PqAaC0ks1a PqAaC0H1a PqAaC0Ll1a
 *   ./vars local   what could stand for a launch that has the driver take memory for threads, in a process that does not launch: see local()
 *
 * A scenario is letters: P retains the primary context, C makes a second one, 0 and 1 make one
 * current; A, B (three variables), E (none), M (320 KiB of code), N (32 KiB) and L (16 KiB of
 * memory for each thread) load libraries; a and b ask where a variable is, and print that; k and s
 * launch A's kernels, e, m, n and l the others'; f, F, G and g load functions without a launch; q
 * and Q allocate, r and R copy, S sets, t makes a stream, H pins memory of the host. T is L with 4
 * KiB, u and w launch T's and J's kernels, J is another L; i says how much memory of the GPU is in
 * use. Of L's kernel, without a launch: c loads its function, o makes a graph of it that can be
 * launched, O uploads that, d launches it with the kernel's node disabled; x has 16 KiB of stack
 * for each thread, and y what there was. K and j do what a worker does where it makes a session
 * again: a module with a kernel that needs 16 KiB, or 4, is loaded, a graph of it made that can be
 * launched, and all given back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>
typedef unsigned long long P;
typedef void *H;
static void *so;
#define FN(ret, name, ...) static ret (*name)(__VA_ARGS__)
FN(int, cuInit, unsigned);
FN(int, cuDevicePrimaryCtxRetain, H *, int);
FN(int, cuCtxCreate_v2, H *, unsigned, int);
FN(int, cuCtxSetCurrent, H);
FN(int, cuLibraryLoadData, H *, const void *, H, H, unsigned, H, H, unsigned);
FN(int, cuLibraryGetGlobal, P *, size_t *, H, const char *);
FN(int, cuLibraryGetKernel, H *, H, const char *);
FN(int, cuKernelGetFunction, H *, H);
FN(int, cuFuncLoad, H);
FN(int, cuLaunchKernel, H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
FN(int, cuCtxSynchronize, void);
FN(int, cuMemAlloc_v2, P *, size_t);
FN(int, cuMemcpyDtoH_v2, void *, P, size_t);
FN(int, cuMemcpyHtoD_v2, P, const void *, size_t);
FN(int, cuMemsetD32_v2, P, unsigned, size_t);
FN(int, cuStreamCreate, H *, unsigned);
FN(int, cuMemHostAlloc, void **, size_t, unsigned);
FN(int, cuMemGetInfo_v2, size_t *, size_t *);
FN(int, cuCtxSetLimit, int, size_t);
FN(int, cuGraphCreate, H *, unsigned);
FN(int, cuGraphAddKernelNode_v2, H *, H, const H *, size_t, const void *);
FN(int, cuGraphInstantiateWithFlags, H *, H, unsigned long long);
FN(int, cuGraphUpload, H, H);
FN(int, cuGraphLaunch, H, H);
FN(int, cuGraphNodeSetEnabled, H, H, unsigned);
FN(int, cuGraphExecDestroy, H);
FN(int, cuGraphDestroy, H);
FN(int, cuModuleLoadDataEx, H *, const void *, unsigned, H, H);
FN(int, cuModuleGetFunction, H *, H, const char *);
FN(int, cuModuleUnload, H);
static void sym(void *f, const char *n)
{
	*(void **)f = dlsym(so, n);
	if (!*(void **)f) {
		printf("no %s\n", n);
		exit(1);
	}
}
static void ok(int rc, const char *w)
{
	if (rc) {
		printf(" [%s: %d]", w, rc);
		fflush(stdout);
		_exit(1);
	}
}
#define DO(f, ...) ok(f(__VA_ARGS__), #f)

static char *tiny(int n, int vars)
{ // a library with variables and two kernels
	char *t = malloc(1 << 16), *e = t;
	e += sprintf(e, ".version 6.0\n.target sm_50\n.address_size 64\n");
	for (int i = 0; i < vars; i++)
		e += sprintf(e, ".visible .global .align 4 .u32 v%d = %d;\n", i, n);
	for (int i = 0; i < 2; i++)
		e += sprintf(e,
			     ".visible .entry k%d(.param .u64 at)\n{\n.reg .b32 %%r<4>; .reg .b64 %%d<2>;\nld.param.u64 "
			     "%%d1,[at];\nmov.u32 %%r1,%d;\n%s st.global.u32 [%%d1],%%r1;\nret;\n}\n",
			     i, i + n, vars ? "ld.global.u32 %r2,[v0]; add.u32 %r1,%r1,%r2; st.global.u32 [v0],%r1;\n" : "");
	return t;
}
static char *big(int n, int insns, int local)
{ // code of 16 bytes an instruction; local: bytes a thread
	char *t = malloc((size_t)insns * 40 + 4096), *e = t;
	e += sprintf(e, ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k0(.param .u64 at)\n{\n.reg .f32 %%f<4>; .reg .b32 "
			"%%r<4>; .reg .b64 %%d<4>;\n");
	if (local)
		e += sprintf(e, ".local .align 16 .b8 big[%d];\n", local);
	e += sprintf(e, "ld.param.u64 %%d1,[at];\nld.global.f32 %%f1,[%%d1];\nmov.f32 %%f2,%%f1;\n");
	if (local)
		e += sprintf(
			e,
			"ld.global.u32 %%r1,[%%d1]; and.b32 %%r1,%%r1,%d; cvt.u64.u32 %%d2,%%r1; mov.u64 %%d3,big; add.u64 %%d3,%%d3,%%d2; "
			"st.local.u8 [%%d3],%%r1; xor.b32 %%r1,%%r1,4; ld.local.u8 %%r2,[%%d3]; st.global.u32 [%%d1],%%r2;\n",
			local - 1);
	for (int i = 0; i < insns; i++)
		e += sprintf(e, "fma.rn.f32 %%f%d,%%f1,%%f2,%%f%d;\n", 1 + i % 2, 1 + (i + n) % 2);
	sprintf(e, "st.global.f32 [%%d1],%%f1;\nret;\n}\n");
	return t;
}
static H lib[128], ctx[2];
static P mem;
static H stream;
static H fn(H l, const char *name)
{
	H k;
	DO(cuLibraryGetKernel, &k, l, name);
	return k;
}
static void launch(H k)
{
	void *a[] = {&mem};
	DO(cuLaunchKernel, k, 1, 1, 1, 32, 1, 1, 0, NULL, a, NULL);
	DO(cuCtxSynchronize);
}
enum { MADE, UPLOADED, LAUNCHED };
static void graph(H f, H k, int far)
{ // of one kernel, which does not run
	struct {
		H func;
		unsigned grid[3], block[3], shared;
		void **params, **extra;
		H kernel, ctx;
	} node = {.func = f, .grid = {1, 1, 1}, .block = {32, 1, 1}, .params = (void *[]){&mem}, .kernel = k};
	H g, n, x;
	DO(cuGraphCreate, &g, 0);
	DO(cuGraphAddKernelNode_v2, &n, g, NULL, 0, &node);
	DO(cuGraphInstantiateWithFlags, &x, g, 0);
	if (far == UPLOADED)
		DO(cuGraphUpload, x, NULL);
	if (far == LAUNCHED) {
		DO(cuGraphNodeSetEnabled, x, n, 0);
		DO(cuGraphLaunch, x, NULL);
	}
	DO(cuCtxSynchronize);
	DO(cuGraphExecDestroy, x);
	DO(cuGraphDestroy, g);
}
static void ours(int local)
{ // as host/driver/cuda/locals.go
	H m, f;
	DO(cuModuleLoadDataEx, &m, big(4, 1, local), 0, NULL, NULL);
	DO(cuModuleGetFunction, &f, m, "k0");
	graph(f, NULL, MADE);
	DO(cuModuleUnload, m);
}
static void run(const char *s)
{
	DO(cuInit, 0);
	for (; *s; s++) {
		size_t n;
		P at;
		void *h;
		switch (*s) {
		case 'P':
			DO(cuDevicePrimaryCtxRetain, &ctx[0], 0);
			DO(cuCtxSetCurrent, ctx[0]);
			break;
		case 'C': DO(cuCtxCreate_v2, &ctx[1], 0, 0); break;
		case '0':
		case '1': DO(cuCtxSetCurrent, ctx[*s - '0']); break;
		case 'A': DO(cuLibraryLoadData, &lib['A'], tiny(5, 1), 0, 0, 0, 0, 0, 0); break;
		case 'B': DO(cuLibraryLoadData, &lib['B'], tiny(7, 3), 0, 0, 0, 0, 0, 0); break;
		case 'E': DO(cuLibraryLoadData, &lib['E'], tiny(9, 0), 0, 0, 0, 0, 0, 0); break;
		case 'M': DO(cuLibraryLoadData, &lib['M'], big(1, 20000, 0), 0, 0, 0, 0, 0, 0); break;
		case 'N': DO(cuLibraryLoadData, &lib['N'], big(2, 2000, 0), 0, 0, 0, 0, 0, 0); break;
		case 'L': DO(cuLibraryLoadData, &lib['L'], big(2, 10, 16384), 0, 0, 0, 0, 0, 0); break;
		case 'a':
		case 'b':
			DO(cuLibraryGetGlobal, &at, &n, lib[*s - 32], "v0");
			printf(" %c=%llx", *s, at);
			break;
		case 'k': launch(fn(lib['A'], "k0")); break;
		case 's': launch(fn(lib['A'], "k1")); break;
		case 'e': launch(fn(lib['E'], "k0")); break;
		case 'm': launch(fn(lib['M'], "k0")); break;
		case 'n': launch(fn(lib['N'], "k0")); break;
		case 'l': launch(fn(lib['L'], "k0")); break;
		case 'f':
			DO(cuKernelGetFunction, &h, fn(lib['A'], "k0"));
			DO(cuFuncLoad, h);
			break;
		case 'F':
			DO(cuKernelGetFunction, &h, fn(lib['A'], "k0"));
			DO(cuFuncLoad, h);
			DO(cuKernelGetFunction, &h, fn(lib['A'], "k1"));
			DO(cuFuncLoad, h);
			break;
		case 'G':
			DO(cuKernelGetFunction, &h, fn(lib['M'], "k0"));
			DO(cuFuncLoad, h);
			break;
		case 'g': DO(cuKernelGetFunction, &h, fn(lib['M'], "k0")); break;
		case 'q': DO(cuMemAlloc_v2, &mem, 1 << 20); break;
		case 'Q': DO(cuMemAlloc_v2, &at, 64 << 20); break;
		case 'r': {
			int x;
			DO(cuMemcpyDtoH_v2, &x, mem, 4);
			break;
		}
		case 'R': {
			static char x[1 << 20];
			DO(cuMemcpyHtoD_v2, mem, x, sizeof x);
			break;
		}
		case 'S':
			DO(cuMemsetD32_v2, mem, 1, 1000);
			DO(cuCtxSynchronize);
			break;
		case 't': DO(cuStreamCreate, &stream, 1); break;
		case 'H': DO(cuMemHostAlloc, &h, 1 << 20, 0); break;
		case 'T': DO(cuLibraryLoadData, &lib['T'], big(2, 10, 4096), 0, 0, 0, 0, 0, 0); break;
		case 'J': DO(cuLibraryLoadData, &lib['J'], big(3, 10, 16384), 0, 0, 0, 0, 0, 0); break;
		case 'u': launch(fn(lib['T'], "k0")); break;
		case 'w': launch(fn(lib['J'], "k0")); break;
		case 'c':
			DO(cuKernelGetFunction, &h, fn(lib['L'], "k0"));
			DO(cuFuncLoad, h);
			break;
		case 'o': graph(NULL, fn(lib['L'], "k0"), MADE); break;
		case 'O': graph(NULL, fn(lib['L'], "k0"), UPLOADED); break;
		case 'd': graph(NULL, fn(lib['L'], "k0"), LAUNCHED); break;
		case 'K': ours(16384); break;
		case 'j': ours(4096); break;
		case 'x': DO(cuCtxSetLimit, 0, 16384); break;
		case 'y': DO(cuCtxSetLimit, 0, 1024); break;
		case 'i': {
			size_t all;
			DO(cuMemGetInfo_v2, &n, &all);
			printf(" %zuM", (all - n) >> 20);
			break;
		}
		default: printf("?%c", *s);
		}
	}
	printf("\n");
	fflush(stdout);
	_exit(0);
}
static void one(const char *s)
{
	printf("%-28s", s);
	fflush(stdout);
	pid_t p = fork();
	if (!p)
		run(s);
	int st;
	waitpid(p, &st, 0);
	if (st)
		printf(" status %d\n", st);
}
/*
 * What could stand for a launch, where a session is made again: whatever leaves a variable of the
 * second context (the last number of a line) where the line that launches (l) has it, and not where
 * the first line does, which does not. The memory in use says whether the driver has taken as much.
 * First of one context before the other is made, then of one made already; then, whether a smaller
 * launch before (u) has to be made again, too, and what a worker does (K, j); last, whether a limit
 * that is set behind a launch (y) gives back what that took, and what a worker's does.
 */
static void local(void)
{
	static const char *const in_place_of_l[] = {"", "l", "c", "o", "O", "d", "xy", "x", "Jw", "K", "Tul", "TjK", "ly", "Ky"};
	static const char *const begin[] = {"PqAaC0iL", "PqAa0iL"}, *const end[] = {"i1a", "iC1a"};
	for (int how = 0; how < 2; how++)
		for (unsigned i = 0; i < sizeof in_place_of_l / sizeof *in_place_of_l; i++) {
			char s[64];
			snprintf(s, sizeof s, "%s%s%s", begin[how], in_place_of_l[i], end[how]);
			one(s);
		}
}
int main(int argc, char **argv)
{
	if (!getenv("VARS_AGAIN")) {
		setenv("VARS_AGAIN", "1", 1);
		personality(ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT);
		execv("/proc/self/exe", argv);
	}
	// As in workers: arenas of threads, 64 MiB each, come by chance, and shift what the driver
	// maps next.
	mallopt(M_ARENA_MAX, 1);
	so = dlopen("libcuda.so.1", RTLD_NOW);
	if (!so) {
		puts(dlerror());
		return 1;
	}
#define S(x) sym(&x, #x)
	S(cuInit);
	S(cuDevicePrimaryCtxRetain);
	S(cuCtxCreate_v2);
	S(cuCtxSetCurrent);
	S(cuLibraryLoadData);
	S(cuLibraryGetGlobal);
	S(cuLibraryGetKernel);
	S(cuKernelGetFunction);
	S(cuFuncLoad);
	S(cuLaunchKernel);
	S(cuCtxSynchronize);
	S(cuMemAlloc_v2);
	S(cuMemcpyDtoH_v2);
	S(cuMemcpyHtoD_v2);
	S(cuMemsetD32_v2);
	S(cuStreamCreate);
	S(cuMemHostAlloc);
	S(cuMemGetInfo_v2);
	S(cuCtxSetLimit);
	S(cuGraphCreate);
	S(cuGraphAddKernelNode_v2);
	S(cuGraphInstantiateWithFlags);
	S(cuGraphUpload);
	S(cuGraphLaunch);
	S(cuGraphNodeSetEnabled);
	S(cuGraphExecDestroy);
	S(cuGraphDestroy);
	S(cuModuleLoadDataEx);
	S(cuModuleGetFunction);
	S(cuModuleUnload);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "local"))
			local();
		else
			one(argv[i]);
	}
	return 0;
}
