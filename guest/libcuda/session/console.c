/*
 * Device output: the worker collects what kernels print and says in the control page how much
 * waits. It is written through the application's own stdout stream, so that it falls in order with
 * the application's printf.
 */
#include <stdio.h>
#include <string.h>

#include "gen/ops.h"
#include "session/internal.h"

/* The field behind the text's span; the fake worker of the tests, and nobody else, leaves it
 * out. */
static int to_stderr(const struct cw_reply *rep, const struct cw_span *text)
{
	uint32_t stream = 0;
	if (rep->len >= sizeof *text + sizeof stream && text->off >= sizeof *text + sizeof stream)
		memcpy(&stream, rep->data + sizeof *text, sizeof stream);
	return stream == 1;
}

void cw_console_drain(struct cw_session *s)
{
	/* One reader at a time; also ends the recursion through cw_commit_wait below. */
	if (!cw_lock_try(&s->console_lock))
		return;
	while (__atomic_load_n(&s->ctl->console, __ATOMIC_ACQUIRE) != 0) {
		struct cw_tx tx;
		struct cw_reply rep;
		if (cw_begin(&tx, CW_OP_CONSOLE_READ, 0, 0, 1) != 0 || cw_commit_wait(&tx, &rep) != 0)
			break;
		struct cw_span text = {0, 0};
		if (rep.len >= sizeof text)
			memcpy(&text, rep.data, sizeof text);
		int some = text.len != 0 && text.off <= rep.len && text.len <= rep.len - text.off;
		if (some)
			fwrite(rep.data + text.off, 1, text.len, to_stderr(&rep, &text) ? stderr : stdout);
		cw_reply_release(&rep);
		if (!some)
			break;
	}
	cw_lock_release(&s->console_lock);
}
