/* For ring_test.c, which includes ring.c before it: slots, managed memory, a carrier and a worker's
 * doorbell as the test wants them, and what was done. */
#ifndef CW_RING_FAKES_H
#define CW_RING_FAKES_H

static int allocated, no_memory;
static size_t wanted; /* of what there was no memory for */
static void *f_malloc(size_t n)
{
	wanted = n;
	if (no_memory)
		return NULL;
	allocated++;
	return malloc(n);
}

static void f_free(void *p)
{
	allocated -= p != NULL;
	free(p);
}

static int naps, calm_at;
static int f_nap(const struct timespec *t)
{
	CHECK(t->tv_sec == 0 && t->tv_nsec == 1000000);
	if (++naps == calm_at)
		atomic_store(&cw_starved, 0);
	return 0;
}

/* --- what is beside it ------------------------------------------------------------------------ */

static uint32_t claims = 3;
static int claimed, opens, slow, dead, drains, ran, after, befores, befores_err, arounds;
static const char *dead_why;
static void (*in_before)(void), (*at_look)(void);

uint32_t cw_slot_claim(struct cw_session *of)
{
	CHECK(of == s);
	claimed += claims != CW_NO_SLOT;
	return claims;
}
void cw_slot_release(struct cw_session *of, uint32_t slot)
{
	CHECK(of == s && slot == 3);
	claimed--;
}
CUresult cw_session_open(void)
{
	opens++;
	return CUDA_ERROR_NO_DEVICE;
}
CUresult cw_check_slow(void)
{
	slow++;
	return CUDA_ERROR_DEINITIALIZED;
}
void cw_mark_dead(struct cw_session *of, const char *why)
{
	CHECK(of == s);
	dead = 1;
	dead_why = why;
}
int cw_is_dead(struct cw_session *of)
{
	CHECK(of == s);
	if (at_look)
		at_look();
	return dead;
}
void cw_console_drain(struct cw_session *of)
{
	CHECK(of == s);
	drains++;
}
uint32_t cw_current_ctx_id(void) { return 55; }
uint32_t cw_thread_ordinal(void) { return 66; }
void cw_host_let_run(void) { ran++; }
CUresult cw_host_begin_after(struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, uint32_t slot)
{
	after++;
	return cw_begin_slot(s, tx, op, fixed, var, slot);
}
CUresult cw_before_work(void)
{
	befores++;
	if (in_before)
		in_before();
	return (CUresult)befores_err;
}

static int bells, publishes, sleeps, sleep_err;
static void (*at_sleep)(void);
static void bell(struct cw_session *of)
{
	CHECK(of == s && s->ring_lock.word == 0);
	bells++;
}
static void published(struct cw_session *of)
{
	CHECK(of == s && s->ring_lock.word == 0);
	publishes++;
}
static int sleep_on(struct cw_session *of, uint32_t slot, _Atomic uint32_t *word)
{
	CHECK(of == s && slot == CW_SLOT_COUNT && word == (void *)&s->ctl->space_waiters && atomic_load(word) == 1 && ++sleeps < 100);
	if (at_sleep)
		at_sleep();
	return sleep_err;
}

static const struct cw_carrier rings = {.doorbell = bell, .wait_slot = sleep_on}, frames = {.publish = published, .wait_slot = sleep_on};

static void anew(uint64_t at)
{
	memset(&cw_s, 0, sizeof cw_s);
	memset(memory, 0, CW_RING_OFFSET);
	memset(memory + CW_RING_OFFSET, 0xee, CW_RING_SIZE);
	s->base = memory;
	s->ctl = cw_g.ctl = (struct cw_control_page *)memory;
	s->carrier = &rings;
	s->tail = s->head_seen = s->ctl->tail = s->ctl->head = at;
	atomic_store(&s->rung_head, UINT64_MAX);
	atomic_store(&cw_g.state, CW_OPEN);
	atomic_store(&cw_copies, 0);
	atomic_store(&cw_starved, 0);
	atomic_store(&cw_hosts_ahead, 0);
	claims = 3;
	claimed = opens = slow = dead = drains = ran = after = befores = befores_err = arounds = bells = publishes = sleeps = sleep_err =
		naps = calm_at = no_memory = 0;
	wanted = 0;
	in_before = at_sleep = at_look = NULL;
	dead_why = NULL;
}

static struct cw_record *record(uint64_t at) { return (struct cw_record *)(memory + CW_RING_OFFSET + (at & RING_MASK)); }

#endif
