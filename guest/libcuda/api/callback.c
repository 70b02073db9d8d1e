/*
 * The callback thread: runs functions of the application when the host says that a stream has
 * reached them. It starts at the first use and ends with the session. How the host tells it, and
 * learns that a function has returned, stands in cuda/api/ops_host.idl: neither way goes through
 * the ring, so that a worker that is blocked by the very work behind a callback cannot hold it up.
 * Events come the same way, and go on to a thread of their own (notify.c).
 *
 * All signals are blocked on it, as on a driver's thread. A forked child has no such thread and no
 * session.
 */
#include "api/callback.h"
#include "session/ahead.h"
#include "session/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

struct entry {
	uint64_t id;
	uint32_t status, number;
};

_Static_assert(CW_CALLBACK_COUNT * sizeof(struct entry) <= CW_CALLBACK_DONE_OFFSET, "entries lie before the done words");
_Static_assert(CW_CALLBACK_DONE_OFFSET + 4 * CW_CALLBACK_COUNT <= CW_SLOT_PAYLOAD, "done words lie in the payload");

static struct {
	struct cw_lock lock;
	int open;
	uint32_t slot, base;
} way;

/* Sleeps until the host posts more than `seen`; -1 when the session has ended. */
static int await_more(struct cw_session *s, struct cw_slot *slot, uint32_t seen)
{
	_Atomic uint32_t *waiting = (_Atomic uint32_t *)&slot->waiting;
	for (uint32_t i = 0; i < s->spin_max; i++) {
		if (__atomic_load_n(&slot->seq_done, __ATOMIC_ACQUIRE) != seen)
			return 0;
		cw_pause();
	}
	for (;;) {
		atomic_store(waiting, 1);
		if (__atomic_load_n(&slot->seq_done, __ATOMIC_ACQUIRE) != seen)
			break;
		if (atomic_load(&cw_g.state) != CW_OPEN || cw_is_dead(s))
			return -1;
		if (s->carrier->wait_slot(s, way.slot, waiting) == -EPIPE) {
			cw_mark_dead(s, "the host ended the session");
			return -1;
		}
	}
	atomic_store_explicit(waiting, 0, memory_order_relaxed);
	return 0;
}

static void *callback_thread(void *arg)
{
	struct cw_session *s = arg;
	struct cw_slot *slot = cw_slot_at(s, way.slot);
	uint8_t *payload = (uint8_t *)(slot + 1);
	uint32_t *done = (uint32_t *)(payload + CW_CALLBACK_DONE_OFFSET);
	uint32_t thread = (uint32_t)syscall(SYS_gettid);
	prctl(PR_SET_NAME, "causeway-calls");
	for (uint32_t taken = 0;;) {
		if (__atomic_load_n(&slot->seq_done, __ATOMIC_ACQUIRE) == way.base + taken) {
			if (await_more(s, slot, way.base + taken) != 0)
				break;
			continue;
		}
		uint32_t i = taken++ % CW_CALLBACK_COUNT;
		struct entry e;
		memcpy(&e, payload + i * sizeof e, sizeof e);
		if (cw_unlikely(e.status >= CW_CALLBACK_EVENT)) {
			cw_notice_post(e.status, e.id);
		} else {
			cw_in_callback = 1;
			atomic_store(&cw_callback_thread, thread);
			uint32_t ahead = cw_hostfn_run(e.id, (CUresult)e.status);
			atomic_store(&cw_callback_thread, 0);
			/* The work behind it was given before it ran. */
			if (cw_unlikely(atomic_load(&cw_copies) >= CW_COPY) && cw_before_work() != 0)
				cw_log(CW_LOG_ERROR, "managed memory that a host function touched did not reach the GPU");
			/* Until then the function is ahead: what waits for the device
			 * (cw_op_drains) would be before these requests in the ring, and wait for
			 * them. */
			cw_host_done(ahead);
			cw_in_callback = 0;
		}
		__atomic_store_n(&done[i], taken, __ATOMIC_RELEASE);
	}
	cw_notice_end();
	return NULL;
}

CUresult cw_thread_start(void *(*run)(void *), void *arg)
{
	return cw_thread_begin(0, 0, run, arg) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* The slot stays claimed for the callback thread. */
static CUresult open_way(struct cw_session *s)
{
	struct cw_tx tx;
	struct cw_reply rep;
	CUresult res = cw_begin(&tx, CW_OP_CALLBACK_OPEN, 0, 0, 1);
	if (res != 0)
		return res;
	memset(cw_slot_at(s, tx.slot) + 1, 0, CW_SLOT_PAYLOAD);
	res = cw_commit_wait(&tx, &rep);
	if (res != 0)
		return res;
	if (rep.result != 0) {
		res = rep.result;
		cw_reply_release(&rep);
		return res;
	}
	way.slot = tx.slot;
	way.base = tx.seq;
	return cw_thread_start(callback_thread, s);
}

CUresult cw_callbacks_open(void)
{
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&way.lock);
	if (!way.open) {
		res = open_way(&cw_s);
		way.open = res == 0;
	}
	cw_lock_release(&way.lock);
	return res;
}
