#include "session/logring.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "session/lock.h"

struct listener {
	void (*fn)(void *data, int level, char *message, size_t length);
	void *data;
	uint32_t id;
};

static struct {
	struct cw_lock lock; /* a leaf */
	uint64_t count;
	struct cw_log_line line[CW_LOG_LINES];
	struct listener listener[CW_LOG_LISTENERS];
	uint32_t ids;
} ring;

void cw_logring_add(int level, const char *text, size_t len)
{
	struct listener call[CW_LOG_LISTENERS];
	char copy[CW_LOG_TEXT];
	struct timespec now;
	int calls = 0;

	if (len >= sizeof copy)
		len = sizeof copy - 1;
	memcpy(copy, text, len);
	copy[len] = 0;
	clock_gettime(CLOCK_REALTIME, &now);
	cw_lock_acquire(&ring.lock);
	struct cw_log_line *l = &ring.line[ring.count % CW_LOG_LINES];
	l->number = ring.count++;
	l->when = now.tv_sec * 1000000000ll + now.tv_nsec;
	l->thread = (uint64_t)pthread_self();
	l->level = level;
	l->len = (uint32_t)len;
	memcpy(l->text, copy, len + 1);
	for (int i = 0; i < CW_LOG_LISTENERS; i++)
		if (ring.listener[i].fn)
			call[calls++] = ring.listener[i];
	cw_lock_release(&ring.lock);
	for (int i = 0; i < calls; i++)
		call[i].fn(call[i].data, level, copy, len);
}

uint64_t cw_logring_count(void)
{
	cw_lock_acquire(&ring.lock);
	uint64_t n = ring.count;
	cw_lock_release(&ring.lock);
	return n;
}

int cw_logring_get(uint64_t number, struct cw_log_line *out)
{
	cw_lock_acquire(&ring.lock);
	int there = number < ring.count && ring.count - number <= CW_LOG_LINES;
	if (there)
		*out = ring.line[number % CW_LOG_LINES];
	cw_lock_release(&ring.lock);
	return there;
}

uint32_t cw_logring_listen(void (*fn)(void *data, int level, char *message, size_t length), void *data)
{
	uint32_t id = 0;

	cw_lock_acquire(&ring.lock);
	for (int i = 0; i < CW_LOG_LISTENERS && !id; i++)
		if (!ring.listener[i].fn) {
			id = ++ring.ids;
			ring.listener[i] = (struct listener){fn, data, id};
		}
	cw_lock_release(&ring.lock);
	return id;
}

int cw_logring_unlisten(uint32_t id)
{
	int found = 0;

	cw_lock_acquire(&ring.lock);
	for (int i = 0; i < CW_LOG_LISTENERS && id; i++)
		if (ring.listener[i].fn && ring.listener[i].id == id) {
			ring.listener[i] = (struct listener){0};
			found = 1;
		}
	cw_lock_release(&ring.lock);
	return found;
}
