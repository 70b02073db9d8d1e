/*
 * This library's ends of a session as functions for remote/remotetest/guestend, which loads them:
 * the suite that every carrier has to pass is in Go. It writes records and reads replies in region
 * 0 itself, as ring.c and slots.c do here; what is shown is what a carrier does. A process has one
 * session at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/rdma_lasting.h"
#include "session/tcp.h"

#define END __attribute__((visibility("default")))

enum { REGIONS = 64, LEAVE_MS = 600000 };

static struct cw_region *regions[REGIONS];
static _Atomic int closed;

int end_open(const char *carrier, const char *target, const char *sysfs, void **base, char *why, size_t cap);
void end_publish(void);
int end_sleep(uint32_t slot, _Atomic uint32_t *word);
void end_watch(void);
void *end_add(uint32_t id, size_t size);
int end_drop(uint32_t id);
void end_close(void);
void end_abandon(void);

/* Opens a session. sysfs: where RDMA devices are shown, or empty. 0 and region 0, or -errno and
 * why. */
END int end_open(const char *carrier, const char *target, const char *sysfs, void **base, char *why, size_t cap)
{
	static const struct cw_carrier *const carriers[] = {&cw_carrier_unix, &cw_carrier_tcp, &cw_carrier_rdma};
	static char shown[256];
	int err = -EINVAL;
	if (sysfs[0]) {
		snprintf(shown, sizeof shown, "%s", sysfs);
		cw_rdma_sysfs = shown;
	}
	/* A machine that has other things to do is waited for. */
	cw_rdma_leave_ms = cw_lasting_limit_ms = LEAVE_MS;
	atomic_store(&closed, 0);
	cw_s.fd = cw_s.bell = -1;
	memset(&cw_s.bell_own, 0, sizeof cw_s.bell_own);
	cw_s.cpus = 2;
	cw_s.why[0] = 0;
	for (size_t i = 0; i < sizeof carriers / sizeof *carriers; i++)
		if (!strcmp(carriers[i]->name, carrier))
			err = (cw_s.carrier = carriers[i])->open(&cw_s, target);
	snprintf(why, cap, "%s", cw_s.why);
	*base = cw_s.base;
	return err;
}

/* A tail that this library never publishes: a program that breaks the rules sends what there is. */
static int senseless(uint64_t tail)
{
	cw_lock_acquire(&cw_tcp.send_lock);
	uint64_t pushed = cw_tcp.pushed;
	cw_lock_release(&cw_tcp.send_lock);
	if (tail - pushed <= CW_RING_SIZE)
		return 0;
	__atomic_store_n(&cw_s.ctl->tail, pushed, __ATOMIC_RELEASE);
	size_t n = tail > pushed ? CW_RING_SIZE + 8 : 0;
	void *bytes = calloc(1, n + 1);
	cw_tcp_send(&cw_s, CW_FRAME_RING, 0, pushed, bytes, n);
	free(bytes);
	return 1;
}

/* After each change of the tail; of a carrier with a doorbell where the worker sleeps. */
END void end_publish(void)
{
	if (!cw_s.carrier->publish)
		cw_s.carrier->doorbell(&cw_s);
	else if (!senseless(__atomic_load_n(&cw_s.ctl->tail, __ATOMIC_ACQUIRE)))
		cw_s.carrier->publish(&cw_s);
}

/* Sleeps while the word is 1 and the host there. */
END int end_sleep(uint32_t slot, _Atomic uint32_t *word)
{
	int err = 0;
	while (err == 0 && atomic_load(word) == 1)
		err = cw_s.carrier->wait_slot(&cw_s, slot, word);
	return err;
}

/* Returns when the host is gone, or the session closed. */
END void end_watch(void)
{
	struct timespec nap = {0, 2000000};
	while (!atomic_load(&closed) && cw_s.carrier->alive(&cw_s) == 0)
		nanosleep(&nap, NULL);
}

/* Memory of a new region, or NULL. */
END void *end_add(uint32_t id, size_t size)
{
	int i = 0;
	while (i < REGIONS && regions[i])
		i++;
	struct cw_region *r = i < REGIONS ? calloc(1, sizeof *r) : NULL;
	if (!r)
		return NULL;
	*r = (struct cw_region){.id = id, .kind = CW_REGION_STAGING, .size = size, .file = -1};
	if (cw_s.carrier->add_region(&cw_s, r) != 0) {
		free(r);
		return NULL;
	}
	regions[i] = r;
	return r->va;
}

static void drop(int i)
{
	cw_s.carrier->end_region(&cw_s, regions[i]);
	free(regions[i]);
	regions[i] = NULL;
}

END int end_drop(uint32_t id)
{
	for (int i = 0; i < REGIONS; i++)
		if (regions[i] && regions[i]->id == id) {
			drop(i);
			return 0;
		}
	return -ENOENT;
}

/* As a process that ends. */
END void end_close(void)
{
	cw_s.carrier->close(&cw_s);
	atomic_store(&closed, 1);
}

/* Gives everything back. Nobody is in another function of these. */
END void end_abandon(void)
{
	for (int i = 0; i < REGIONS; i++)
		if (regions[i])
			drop(i);
	cw_s.carrier->abandon(&cw_s);
}
