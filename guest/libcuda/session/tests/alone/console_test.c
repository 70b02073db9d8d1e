/*
 * What kernels print, alone: console.c, whose worker is the test. All of it is written, to the
 * stream that it is for and in its order, by one reader at a time, and what makes no sense ends the
 * reading.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/tests/check.h"
static FILE *out, *err;
#undef stdout
#undef stderr
#define stdout out
#define stderr err
#include "session/console.c"
#undef stderr
#define stderr stderr

struct cw_session cw_s;
static struct cw_session *const s = &cw_s;

/* A reply: text at an offset, of a length that may be wrong, for a stream. */
struct part {
	const char *text;
	uint32_t stream, off, len; /* off 0: behind span and stream */
	int old;		   /* without a stream */
	size_t cut;		   /* the reply's length; 0: whole */
};

static const struct part *parts;
static int count, taken, released, nested;
static uint8_t data[256];
static struct cw_control_page ctl;

_Atomic uint32_t cw_signals_waiting;
__thread uint32_t cw_signals_held;
void cw_signals_hold(void) { CHECK(0); }
void cw_signals_let(void) { CHECK(0); }
void cw_lock_slow(struct cw_lock *k)
{
	(void)k;
	CHECK(0);
}

CUresult cw_begin(struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, int reply)
{
	(void)tx;
	CHECK(op == CW_OP_CONSOLE_READ && fixed == 0 && var == 0 && reply == 1);
	return taken < count ? 0 : CUDA_ERROR_LAUNCH_FAILED;
}

CUresult cw_commit_wait(struct cw_tx *tx, struct cw_reply *rep)
{
	(void)tx;
	const struct part *p = &parts[taken++];
	if (nested++ == 0)
		cw_console_drain(s); /* as any wait does: somebody reads */
	struct cw_span span = {p->len ? p->len : (uint32_t)strlen(p->text),
			       p->off ? p->off : sizeof span + (p->old ? 0 : sizeof p->stream)};
	memset(rep, 0, sizeof *rep);
	memset(data, 0, sizeof data);
	memcpy(data, &span, sizeof span);
	if (!p->old)
		memcpy(data + sizeof span, &p->stream, sizeof p->stream);
	size_t at = sizeof span + (p->old ? 0 : sizeof p->stream);
	memcpy(data + at, p->text, strlen(p->text));
	rep->data = data;
	rep->len = p->cut ? p->cut : at + strlen(p->text);
	if (taken == count)
		__atomic_store_n(&ctl.console, 0, __ATOMIC_RELEASE);
	return 0;
}

void cw_reply_release(struct cw_reply *rep)
{
	CHECK(rep->data == data);
	released++;
}

static void drains(const struct part *list, int n, int reads, const char *to_out, const char *to_err)
{
	char *o = NULL, *e = NULL;
	size_t on = 0, en = 0;
	out = open_memstream(&o, &on);
	err = open_memstream(&e, &en);
	parts = list;
	count = n;
	taken = released = nested = 0;
	ctl.console = 1;
	cw_console_drain(s);
	fclose(out);
	fclose(err);
	CHECK(taken == reads && released == reads && !strcmp(o, to_out) && !strcmp(e, to_err));
	free(o);
	free(e);
	CHECK(cw_lock_try(&s->console_lock));
	cw_lock_release(&s->console_lock);
}

int main(void)
{
	s->ctl = &ctl;
	const struct part streams[] = {
		{"one ", 0, 0, 0, 0, 0}, {"error", 1, 0, 0, 0, 0}, {"two", 0, 0, 0, 0, 0}, {" three", 2, 0, 0, 0, 0}};
	drains(streams, 4, 4, "one two three", "error");
	/* A worker that says no stream: the text's first bytes are none. */
	const struct part old[] = {{"plain", 0, 0, 0, 1, 0}, {"\001", 0, 0, 0, 1, 0}};
	drains(old, 2, 2, "plain\001", "");
	/* What makes no sense: nothing of it is written, and nothing more is read. */
	const struct part nonsense[][2] = {
		/* Longer than the reply. */
		{{"long", 0, 0, 5, 0, 0}, {"x", 0, 0, 0, 0, 0}},
		{{"far", 0, 100, 3, 0, 0}, {"x", 0, 0, 0, 0, 0}},	   /* behind it */
		{{"wraps", 0, UINT32_MAX, 5, 0, 0}, {"x", 0, 0, 0, 0, 0}}, /* around */
		{{"cut", 0, 0, 0, 0, 7}, {"x", 0, 0, 0, 0, 0}},		   /* less than a span */
		{{"", 0, 0, 0, 0, 0}, {"x", 0, 0, 0, 0, 0}},		   /* none */
	};
	for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++)
		drains(nonsense[i], 2, 1, "", "");
	/* Who prints nothing is not asked; who cannot be asked is left. */
	ctl.console = 0;
	taken = 0;
	cw_console_drain(s);
	CHECK(taken == 0);
	drains(streams, 0, 0, "", "");
	return 0;
}
