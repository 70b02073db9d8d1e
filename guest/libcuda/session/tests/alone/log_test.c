/* What is said, alone: log.c, whose environment and whose standard error are the test's own. Each
 * level by each setting, lines of every length, and what goes to who listens to the log. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/internal.h"
#include "session/logring.h"
#include "session/tests/check.h"

static const char *setting;
static int looks;
static char *f_getenv(const char *name)
{
	CHECK(!strcmp(name, "CAUSEWAY_LOG"));
	looks++;
	return (char *)(uintptr_t)setting;
}

static char written[1024], ringed[1024];
static size_t written_len, ringed_len;
static int writes, rings, ring_level;
static ssize_t f_write(int fd, const void *p, size_t n)
{
	CHECK(fd == 2 && n < sizeof written);
	memcpy(written, p, written_len = n);
	written[n] = 0;
	writes++;
	return (ssize_t)n;
}

#define getenv(name) f_getenv(name)
#define write(fd, p, n) f_write(fd, p, n)
#include "session/log.c"
#undef write

void cw_logring_add(int l, const char *text, size_t len)
{
	CHECK(len < sizeof ringed);
	memcpy(ringed, text, ringed_len = len);
	ringed[len] = 0;
	ring_level = l;
	rings++;
}

CUresult cwi_cuGetErrorName(CUresult error, const char **str)
{
	if (error == CUDA_ERROR_INVALID_VALUE)
		*str = "CUDA_ERROR_INVALID_VALUE";
	return error == CUDA_ERROR_INVALID_VALUE ? 0 : CUDA_ERROR_INVALID_VALUE;
}

static void as(const char *env)
{
	setting = env;
	atomic_store(&level, -1);
	looks = writes = rings = 0;
}

static void levels(void)
{
	static const struct {
		const char *env;
		int shows; /* the last level that is */
	} all[] = {{NULL, 1},	 {"", 1},      {"error", 1}, {"none", 0},   {"info", 2},
		   {"trace", 3}, {"debug", 3}, {"Info", 1},  {"tracer", 1}, {"0", 1}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		as(all[i].env);
		for (int l = CW_LOG_ERROR; l <= CW_LOG_TRACE; l++) {
			writes = rings = 0;
			cw_log((enum cw_log_level)l, "%s %d", "is", 7);
			CHECK(cw_log_enabled((enum cw_log_level)l) == (l <= all[i].shows) && writes == (l <= all[i].shows));
			CHECK(!writes || !strcmp(written, "causeway: is 7\n"));
			/* A program may listen to what nobody has shown, but to steps. */
			CHECK(rings == (l <= CW_LOG_INFO) &&
			      (!rings || (!strcmp(ringed, "is 7") && ring_level == (l == CW_LOG_ERROR ? 0 : 1))));
		}
		CHECK(looks == 1);
	}
}

static void lengths(void)
{
	static char text[700];
	as("info");
	for (size_t n = 0; n < sizeof text; n++) {
		memset(text, 'a', sizeof text);
		text[n] = 0;
		cw_log(CW_LOG_INFO, "%s", text);
		size_t fits = n < 500 ? n : 500;
		CHECK(written_len == 10 + fits + 1 && written[written_len - 1] == '\n' && ringed_len == fits);
		CHECK(!strncmp(written, "causeway: ", 10) && strspn(written + 10, "a") == fits && strspn(ringed, "a") == fits);
	}
}

static void failures(void)
{
	as("none");
	CHECK(cw_failed("cuInit", CUDA_ERROR_INVALID_VALUE) == CUDA_ERROR_INVALID_VALUE && rings == 1 && writes == 0 && ring_level == 0);
	CHECK(!strcmp(ringed, "Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuInit"));
	CHECK((int)cw_failed("cuInit", (CUresult)12345) == 12345 && !strcmp(ringed, "Returning 12345 (unknown) from cuInit"));
	rings = 0;
	as("trace");
	CHECK(cw_failed("cuStreamQuery", CUDA_ERROR_NOT_READY) == CUDA_ERROR_NOT_READY && rings == 0 && writes == 1 &&
	      !strcmp(written, "causeway: cuStreamQuery: 600\n"));
	static char call[300];
	for (size_t n = 200; n < sizeof call; n++) {
		memset(call, 'c', sizeof call);
		call[n] = 0;
		cw_failed(call, CUDA_ERROR_INVALID_VALUE);
		size_t all = strlen("Returning 1 (CUDA_ERROR_INVALID_VALUE) from ") + n;
		CHECK(ringed_len == (all < 255 ? all : 255) && strlen(ringed) == ringed_len);
	}
}

int main(void)
{
	levels();
	lengths();
	failures();
	puts("log_test ok");
	return 0;
}
