/* NVRTC's table: keys, look-ups and insertions as NVRTC makes them, in one process and the next. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_host.h"

enum { CUBIN = 1, PTX = 2, THREADS = 4 };

typedef CUresult make_fn(void **, int, const void *, size_t, const char *, const char *, const char *, unsigned, unsigned);

static struct {
	make_fn *make;
	CUresult (*end)(void *);
	CUresult (*look_up)(void *, uint64_t, void **, uint32_t *);
	CUresult (*insert)(void *, uint64_t, const void *, size_t, uint64_t);
	CUresult (*unknown)(void);
	CUresult (*give_back)(void *);
} table;

static void open_table(void)
{
	static const uint8_t id[16] = {0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28};
	const void *t = NULL;

	CHECK_RES(cuGetExportTable(&t, (const CUuuid *)id), 0);
	CHECK(*(const size_t *)t == 56);
	memcpy(&table, (const char *)t + 8, sizeof table);
}

static void *key(int kind, const char *code, const char *options)
{
	void *k = NULL;

	CHECK_RES(table.make(&k, kind, code, strlen(code), options, "HOST64", "Aug 20 202514:13:52", 90, 1), 0);
	return k;
}

static int known(void *k, const char *want)
{
	void *data = &data;
	uint32_t size = 77;
	CUresult res = table.look_up(k, 0, &data, &size);

	if (res) {
		CHECK_RES(res, CUDA_ERROR_NOT_FOUND);
		CHECK(data == &data && size == 77);
		return 0;
	}
	CHECK(size == strlen(want) + 1 && !strcmp(data, want));
	CHECK((uintptr_t)data % 16 == 0);
	CHECK_RES(table.give_back(data), 0);
	return 1;
}

static void one_stage(int kind, const char *code, const char *options, const char *result, int expect)
{
	void *k = key(kind, code, options);
	int hit = known(k, result);

	CHECK(expect < 0 || hit == expect);
	if (!hit)
		CHECK_RES(table.insert(k, 0, result, strlen(result) + 1, 0), 0);
	CHECK(known(k, result));
	CHECK_RES(table.end(k), 0);
}

static void compile(const char *code, const char *options, const char *ptx, const char *cubin, int expect)
{
	one_stage(PTX, code, options, ptx, expect);
	one_stage(CUBIN, code, " -arch=sm_90a", cubin, expect);
}

static void bad_arguments(void)
{
	char not_a_key[64] = "";
	void *k = key(PTX, "code", ""), *p = NULL;
	uint32_t size;

	CHECK_RES(table.make(NULL, PTX, "x", 1, "", "", "", 90, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.make(&p, PTX, NULL, 1, "", "", "", 90, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.make(&p, PTX, "x", 0, "", "", "", 90, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(p == NULL);
	CHECK_RES(table.look_up(NULL, 0, &p, &size), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.look_up(not_a_key, 0, &p, &size), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.look_up(k, 0, NULL, &size), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.look_up(k, 0, &p, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.insert(NULL, 0, "x", 1, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.insert(k, 0, NULL, 1, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.insert(k, 0, "x", 1ull << 32, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.end(NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.end(not_a_key + 1), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.give_back(NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.give_back(not_a_key + 32), CUDA_ERROR_INVALID_VALUE);
	CHECK_RES(table.unknown(), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_RES(table.end(k), 0);
}

/* Each thread compiles the same code with options of its own: -ftz changes the PTX, and so must
 * change which cubin is found. */
static void *thread(void *arg)
{
	char options[32], ptx[32], cubin[32];
	int n = (int)(uintptr_t)arg;

	for (int i = 0; i < 50; i++) {
		snprintf(options, sizeof options, " -arch=compute_90a -ftz=%d", n);
		snprintf(ptx, sizeof ptx, "ptx %d", n);
		snprintf(cubin, sizeof cubin, "cubin %d", n);
		compile("BC\xc0\xde"
			"one code",
			options, ptx, cubin, i > 0 ? 1 : -1);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&t[i], NULL, thread, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
}

/* Runs f in a process of its own, which reads the environment anew. */
static void in_process(void (*f)(void), const char *name, const char *value)
{
	int st;
	pid_t p = fork();

	if (p == 0) {
		CHECK((value ? setenv(name, value, 1) : unsetenv(name)) == 0);
		f();
		_exit(fake.failures != 0);
	}
	CHECK(p > 0 && waitpid(p, &st, 0) == p && st == 0);
}

static void first(void)
{
	compile("BC\xc0\xde"
		"program",
		" -ftz=0", "ptx a", "cubin a", 0);
	compile("BC\xc0\xde"
		"program",
		" -ftz=1", "ptx b", "cubin b", 0);
	compile("BC\xc0\xde"
		"program",
		" -ftz=0", "ptx a", "cubin a", 1);
}

/* Bitcode whose PTX nobody asked for: whose cubin it would be is not known. PTX itself needs
 * nothing before it, as from nvJitLink. */
static void without_ptx(void)
{
	for (int kind = CUBIN; kind <= 3; kind += 2) { /* nor is it known what the third kind is */
		void *k = key(kind,
			      "BC\xc0\xde"
			      "unknown",
			      " -arch=sm_90a");

		CHECK(!known(k, ""));
		CHECK_RES(table.insert(k, 0, "cubin", 6, 0), CUDA_ERROR_NOT_SUPPORTED);
		CHECK(!known(k, ""));
		CHECK_RES(table.end(k), 0);
	}
	one_stage(CUBIN, ".version 8.0", " -arch=sm_90a -c", "cubin", 0);
	one_stage(CUBIN, ".version 8.0", " -arch=sm_90a -c", "cubin", 1);
	one_stage(CUBIN, ".version 8.0", " -arch=sm_90a", "other cubin", 0);
}

static void next(void)
{
	compile("BC\xc0\xde"
		"program",
		" -ftz=1", "ptx b", "cubin b", 1);
	compile("BC\xc0\xde"
		"program",
		" -ftz=0", "ptx a", "cubin a", 1);
}

static void refused(void)
{
	uint32_t size;
	void *k = &k;

	CHECK_RES(table.make(&k, PTX, "x", 1, "", "HOST64", "", 90, 0), CUDA_ERROR_NOT_INITIALIZED);
	CHECK(k == NULL); /* nvJitLink goes on with what it has */
	CHECK_RES(table.look_up(k, 0, &k, &size), CUDA_ERROR_INVALID_VALUE);
}

static void without_room(void)
{
	void *k = key(PTX, "large", "");

	CHECK(!known(k, ""));
	CHECK_RES(table.insert(k, 0, "data", 5, 0), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(!known(k, ""));
	CHECK_RES(table.end(k), 0);
}

int main(void)
{
	char folder[64] = "/tmp/compilecache-test-XXXXXX", cmd[128];

	CHECK(mkdtemp(folder));
	open_table();
	setenv("CUDA_CACHE_PATH", folder, 1);
	in_process(first, "CUDA_CACHE_DISABLE", "0");
	in_process(next, "CUDA_CACHE_DISABLE", NULL);
	in_process(without_ptx, "CUDA_CACHE_DISABLE", NULL);
	in_process(refused, "CUDA_CACHE_DISABLE", "1");
	in_process(refused, "CUDA_CACHE_PATH", "");
	in_process(refused, "CUDA_CACHE_PATH", "/proc/nothing");
	in_process(without_room, "CUDA_CACHE_MAXSIZE", "0");
	bad_arguments();
	threads();
	snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	CHECK(system(cmd) == 0);
	return fake.failures != 0;
}
