/* The host's last answer: kept, renewed, checked. */
#include "snapshot.h"
#include "nvml.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__) && !defined(CW_NO_SYMVER)
/* the version that glibc 2.17 has, in libpthread */
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Under lock. */
static struct {
	void *answer;
	struct cw_view view;
	long long at; /* ms */
	int constant; /* never renewed */
} kept;

static __thread int holding; /* this thread forks with the lock held, to ask libcuda in a child */

static void hold(void)
{
	pthread_mutex_lock(&lock);
	holding = 1;
}

static void release(void)
{
	holding = 0;
	pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	if (!holding)
		pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	if (!holding)
		pthread_mutex_unlock(&lock);
}

/* A child finds the lock free. */
static void prepare(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static void cut(char *text, size_t size) { text[size - 1] = 0; }

int cw_nvml_parse(void *answer, size_t len, struct cw_view *v)
{
	struct cw_snapshot *s = answer;
	struct cw_device *d;
	struct cw_process *p;
	char *at = answer;
	uint64_t need;

	if (len < sizeof *s || s->magic != CW_SNAPSHOT_MAGIC || s->version != CW_SNAPSHOT_VERSION || s->size != len ||
	    s->device_count > CW_SNAPSHOT_DEVICES || s->pair_count > CW_SNAPSHOT_PAIRS || s->link_count > CW_SNAPSHOT_LINKS ||
	    s->process_count > CW_SNAPSHOT_PROCESSES)
		return 0;
	need = sizeof *s + (uint64_t)s->device_count * sizeof *d + (uint64_t)s->pair_count * sizeof(struct cw_pair) +
	       (uint64_t)s->link_count * sizeof(struct cw_link) + (uint64_t)s->process_count * sizeof *p;
	if (need != len)
		return 0;
	v->head = s;
	v->devices = d = (void *)(at += sizeof *s);
	v->processes = p = (void *)(at += s->device_count * sizeof *d);
	v->pairs = (void *)(at += s->process_count * sizeof *p);
	v->links = (void *)(at + s->pair_count * sizeof(struct cw_pair));
	cut(s->driver_version, sizeof s->driver_version);
	cut(s->nvml_version, sizeof s->nvml_version);
	for (unsigned i = 0; i < s->device_count; i++) {
		cut(d[i].name, sizeof d[i].name);
		cut(d[i].vbios, sizeof d[i].vbios);
	}
	for (unsigned i = 0; i < s->process_count; i++) {
		cut(p[i].name, sizeof p[i].name);
		if (p[i].device >= s->device_count)
			return 0;
	}
	for (unsigned i = 0; i < s->pair_count; i++)
		if (v->pairs[i].a >= s->device_count || v->pairs[i].b >= s->device_count)
			return 0;
	for (unsigned i = 0; i < s->link_count; i++)
		if (v->links[i].device >= s->device_count)
			return 0;
	return 1;
}

/* Under lock. An old answer is better than none, as long as there is one. */
static int renew(void)
{
	void *answer = NULL;
	struct cw_view v;
	size_t len = 0;
	int constant = 0, res;

	if (kept.answer && (kept.constant || now_ms() - kept.at < CW_NVML_FRESH_MS))
		return NVML_SUCCESS;
	res = cw_nvml_fetch(&answer, &len);
	if (res == NVML_FUNCTION_NOT_FOUND) {
		constant = 1;
		res = cw_nvml_identity(&answer, &len);
	}
	if (!res && !cw_nvml_parse(answer, len, &v)) {
		free(answer);
		res = NVML_LIB_RM_VERSION_MISMATCH; /* this library is not of that host */
	}
	if (res)
		return kept.answer ? NVML_SUCCESS : res;
	free(kept.answer);
	kept.answer = answer;
	kept.view = v;
	kept.constant = constant;
	kept.at = now_ms();
	return NVML_SUCCESS;
}

int cw_nvml_look(struct cw_view *v)
{
	int res;

	pthread_once(&once, prepare);
	hold();
	res = renew();
	if (res) {
		release();
		return res;
	}
	*v = kept.view;
	return NVML_SUCCESS;
}

void cw_nvml_leave(void) { release(); }
