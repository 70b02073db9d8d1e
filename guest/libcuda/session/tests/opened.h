/* For tests that are carrier and worker themselves: the session is open, over memory of the
 * test's. */
#ifndef CW_TESTS_OPENED_H
#define CW_TESTS_OPENED_H

#include <stdint.h>

#include "session/internal.h"

static inline struct cw_session *cw_opened(const struct cw_carrier *carrier, uint8_t *memory)
{
	struct cw_session *s = &cw_s;
	s->carrier = carrier;
	s->base = memory;
	s->ctl = (struct cw_control_page *)memory;
	s->ctl->worker_state = CW_WORKER_POLLING;
	cw_slots_init(s);
	cw_g.ctl = s->ctl;
	atomic_store(&cw_g.state, CW_OPEN);
	return s;
}

#endif
