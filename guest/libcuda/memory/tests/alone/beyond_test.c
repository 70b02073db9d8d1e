/*
 * Where managed memory lies for which the GPU has no room, how much of it may, what is said where
 * there is none, and that two memories of a piece take each other's place with its bytes: beyond.c
 * against a worker that counts.
 */
#include <stdarg.h>
#include <stdio.h>

#include "memory/resident.h"
#include "session/internal.h"
#include "session/tests/check.h"

static int64_t now = 1;
static int64_t model_now_ms(void) { return now; }
#define cw_now_ms model_now_ms
#include "memory/beyond.c"
#undef cw_now_ms

#define PIECE (32ull << 20)

static struct cw_info info;
static struct cw_carrier carrier;
struct cw_session cw_s;
struct cw_global cw_g;
const struct cw_info *cw_session_info(void) { return &info; }

static uint64_t machine = 1ull << 40;
uint64_t cw_memory_all(void) { return machine; }

static char said[512];
static int sayings;
void cw_log(enum cw_log_level level, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	CHECK(level == CW_LOG_INFO);
	vsnprintf(said, sizeof said, fmt, args);
	va_end(args);
	sayings++;
}

/* Memory is a number, and what it holds another; addresses have what is mapped there. */
static CUresult answer; /* to what would be made */
static uint32_t made, released;
static uint8_t on_host[64], holds[64];
static struct {
	uint64_t base;
	uint32_t memory;
} mapped[2];

CUresult cw_area_create(struct cw_area *a)
{
	if (answer != 0)
		return answer;
	a->memory = ++made;
	on_host[made] = a->beyond;
	holds[made] = 0;
	return CUDA_SUCCESS;
}

void cw_area_unmap(struct cw_area *a)
{
	for (int i = 0; i < 2 && a->mapping; i++)
		if (mapped[i].base == a->base && mapped[i].memory == a->memory)
			mapped[i].memory = 0;
	a->mapping = 0;
}

void cw_area_unback(struct cw_area *a)
{
	cw_area_unmap(a);
	released += a->memory != 0;
	if (a->memory && a->beyond)
		cw_beyond_released(a);
	a->memory = 0;
}

CUresult cw_area_map(struct cw_area *a, const struct cw_resv *resv)
{
	int i = mapped[0].memory ? 1 : 0;
	CHECK(a->memory && a->base == resv->base && mapped[i].memory == 0);
	mapped[i].base = a->base;
	mapped[i].memory = a->memory;
	a->mapping = 1;
	return CUDA_SUCCESS;
}

CUresult cw_addresses_reserve(uint64_t size, uint64_t wish, struct cw_resv **out)
{
	static struct cw_resv beside = {.base = 99 * PIECE};
	CHECK(size == PIECE && wish == 0);
	*out = &beside;
	return CUDA_SUCCESS;
}

CUresult cw_voice_begin(struct cw_area *a, struct cw_voice *v)
{
	CHECK(a->memory);
	*v = (struct cw_voice){7, 1};
	return CUDA_SUCCESS;
}
void cw_voice_end(const struct cw_voice *v) { CHECK(v->stream == 7); }
CUresult cw_own_wait(uint32_t stream) { return stream == 7 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN; }
uint32_t cw_ctx_on(int device) { return (uint32_t)device + 1; }

static uint32_t at(uint64_t base)
{
	for (int i = 0; i < 2; i++)
		if (mapped[i].memory && mapped[i].base == base)
			return mapped[i].memory;
	return 0;
}

CUresult cwop_Memcpy(uint64_t dst, uint64_t src, uint64_t size, uint32_t stream)
{
	CHECK(size == PIECE && stream == 7 && at(dst) && at(src));
	holds[at(dst)] = holds[at(src)];
	return CUDA_SUCCESS;
}

/* The host can map the process's memory or not, and makes memory of its own or not; the carrier can
 * lend much or little; the program asks for a way or not. */
static void ways(void)
{
	static const struct {
		uint32_t caps;
		int scarce;
		const char *asks;
		int far;
	} way[] = {
		{0, 0, NULL, 1}, /* over a network there is no other */
		{0, 1, "guest", 1},
		{CW_CAP_MEM_ON_HOST, 0, "guest", 1},
		{CW_CAP_MAP, 0, NULL, 0}, /* a driver that makes none */
		{CW_CAP_MAP, 1, NULL, 0},
		{CW_CAP_MAP, 1, "host", 0},
		{CW_CAP_MAP | CW_CAP_MEM_ON_HOST, 0, NULL, 0},
		{CW_CAP_MAP | CW_CAP_MEM_ON_HOST, 1, NULL, 1},
		{CW_CAP_MAP | CW_CAP_MEM_ON_HOST, 0, "host", 1},
		{CW_CAP_MAP | CW_CAP_MEM_ON_HOST, 1, "guest", 0},
		{CW_CAP_MAP | CW_CAP_MEM_ON_HOST, 1, "neither", 1},
		{CW_CAP_MAP | CW_CAP_MEM_ON_HOST, 0, "", 0},
	};
	for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
		info.caps = way[i].caps;
		carrier.scarce = way[i].scarce;
		unsetenv("CAUSEWAY_MANAGED_BEYOND");
		if (way[i].asks)
			setenv("CAUSEWAY_MANAGED_BEYOND", way[i].asks, 1);
		if (choose() != way[i].far)
			fprintf(stderr, "row %zu: %d\n", i, choose());
		CHECK(choose() == way[i].far);
	}
	unsetenv("CAUSEWAY_MANAGED_BEYOND");
	info.caps = CW_CAP_MAP | CW_CAP_MEM_ON_HOST;
	carrier.scarce = 1;
	CHECK(cw_beyond_far());
	carrier.scarce = 0; /* what is beyond lies where it was put */
	CHECK(cw_beyond_far());
	carrier.scarce = 1;
}

static int refuses(struct cw_area *a, const char *why)
{
	int before = sayings;
	CHECK(cw_beyond_create(a) == CUDA_ERROR_OUT_OF_MEMORY && !a->beyond && !a->memory && !cw_beyond_room());
	return why ? sayings == before + 1 && strstr(said, why) != NULL : sayings == before;
}

/* No more than this machine has, whoever has more; and each reason once in a while. */
static void bounds(void)
{
	struct cw_area a[4] = {{.backed = PIECE}, {.backed = PIECE}, {.backed = PIECE}, {.backed = PIECE}};
	uint32_t before = released;
	machine = 2 * PIECE + CW_SPARE;
	CHECK(cw_beyond_room() && cw_beyond_create(&a[0]) == 0 && cw_beyond_create(&a[1]) == 0 && a[1].beyond && on_host[a[1].memory]);
	CHECK(refuses(&a[2], "as much as this one has memory"));
	now += AGAIN_MS - 1;
	CHECK(refuses(&a[2], NULL));
	now += AGAIN_MS;
	CHECK(cw_beyond_room());
	cw_area_unback(&a[0]); /* what is released may be had again, */
	CHECK(cw_beyond_create(&a[2]) == 0);
	/* And what was refused has taken nothing. */
	CHECK(refuses(&a[3], "as much as this one has memory"));
	now += AGAIN_MS;
	info.caps = CW_CAP_MEM_ON_HOST; /* over a network the other machine says how much */
	CHECK(cw_beyond_create(&a[3]) == 0);
	info.caps |= CW_CAP_MAP;
	machine = UINT64_MAX; /* nobody says */
	CHECK(cw_beyond_create(&a[0]) == 0);
	for (int i = 0; i < 4; i++)
		cw_area_unback(&a[i]);
	CHECK(atomic_load(&lies) == 0 && released == before + 5);
	answer = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK(refuses(&a[0], "--host-memory SIZE"));
	now += AGAIN_MS;
	answer = CUDA_ERROR_NOT_SUPPORTED;
	CHECK(refuses(&a[0], "attribute 141"));
	now += AGAIN_MS;
	answer = CUDA_ERROR_LAUNCH_FAILED;
	CHECK(cw_beyond_create(&a[0]) == CUDA_ERROR_LAUNCH_FAILED && atomic_load(&lies) == 0);
	now += AGAIN_MS;
	answer = CUDA_SUCCESS;
}

/* A piece goes there with its bytes and comes back; what cannot stays as it was. */
static void places(void)
{
	struct cw_resv resv = {.base = 5 * PIECE};
	struct cw_group *g = calloc(1, sizeof *g + sizeof g->all[0]);
	struct cw_area a = {.base = resv.base, .size = PIECE, .backed = PIECE, .group = g};
	CHECK(g);
	*g = (struct cw_group){.resv = &resv, .piece = PIECE, .count = 1};
	CHECK(cw_area_create(&a) == 0 && cw_area_map(&a, &resv) == 0);
	holds[a.memory] = 42;
	uint32_t before = a.memory, gone = released;
	answer = CUDA_ERROR_OUT_OF_MEMORY;
	CHECK(cw_piece_beyond(&a, 1) == CUDA_ERROR_OUT_OF_MEMORY && a.memory == before && at(a.base) == before && !a.beyond);
	answer = CUDA_SUCCESS;
	CHECK(cw_piece_beyond(&a, 0) == CUDA_ERROR_NOT_SUPPORTED); /* it is there */
	CHECK(cw_piece_beyond(&a, 1) == 0 && a.beyond && on_host[a.memory] && at(a.base) == a.memory && holds[a.memory] == 42);
	CHECK(released == gone + 1 && atomic_load(&lies) == PIECE && at(99 * PIECE) == 0);
	CHECK(cw_piece_beyond(&a, 0) == 0 && !a.beyond && !on_host[a.memory] && holds[a.memory] == 42);
	CHECK(released == gone + 2 && atomic_load(&lies) == 0);
	g->still = 1;
	CHECK(cw_piece_beyond(&a, 1) == CUDA_ERROR_NOT_SUPPORTED && !a.beyond);
	g->still = 0;
	cw_area_unback(&a);
	free(g);
}

int main(void)
{
	cw_s.carrier = &carrier;
	ways();
	bounds();
	places();
	return 0;
}
