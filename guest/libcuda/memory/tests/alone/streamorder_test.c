/* A stream ends whose work may go on: what was behind it is behind nothing if it is idle, else
 * behind one of the library's; and an error that its being asked brings to light is the
 * program's. */
#include <string.h>

#include "memory/streamorder.c"
#include "session/internal.h"
#include "session/tests/check.h"

struct cw_session cw_s;
struct cw_global cw_g;
_Atomic uint32_t cw_captures, cw_signals_waiting;
__thread uint32_t cw_signals_held;
static struct cw_ctx ctx = {.o = {.id = 5}};
static struct cw_stream mine = {.o = {.id = 11, .ctx = 5}, .uid = 1}, theirs = {.o = {.id = 12}};
static struct cw_obj event = {.id = 30};
static uint32_t current = 4;
static CUresult query;
static int streams, recorded, waits;
static CUresult owed;

void cw_signals_hold(void) { CHECK(0); }
void cw_signals_let(void) { CHECK(0); }
void cw_lock_slow(struct cw_lock *l) { CHECK(!l); }
void cw_log(enum cw_log_level level, const char *fmt, ...) { (void)level, (void)fmt; }
uint32_t cw_current_ctx_id(void) { return current; }
void cw_set_current_ctx_id(uint32_t id) { current = id; }
uint64_t cw_stream_next_uid(void) { return 100; }
struct cw_obj *cw_handle_by_id(enum cw_kind kind, uint32_t id)
{
	if (kind == CW_KIND_CTX)
		return id == 5 ? &ctx.o : NULL;
	return id == 11 ? &mine.o : id == 12 && streams ? &theirs.o : NULL;
}
struct cw_obj *cw_handle_alloc(void) { return &theirs.o; }
struct cw_obj *cw_handle_new(enum cw_kind kind) { return kind == CW_KIND_EVENT ? &event : NULL; }
void cw_handle_publish(struct cw_obj *o, enum cw_kind kind) { CHECK(o == &theirs.o && kind == CW_KIND_STREAM); }
int cw_handle_free(enum cw_kind kind, struct cw_obj *o)
{
	CHECK(kind == CW_KIND_EVENT && o == &event);
	return 1;
}
CUresult cwop_StreamQuery(uint32_t stream)
{
	CHECK(stream == 11 && current == 5);
	return query;
}
CUresult cwop_StreamCreate(uint32_t stream, uint32_t flags, int32_t priority)
{
	CHECK(stream == 12 && flags == NON_BLOCKING && priority == 0 && current == 5);
	streams++;
	return 0;
}
CUresult cwop_EventCreate(uint32_t e, uint32_t flags) { return e == 30 && flags == NO_TIMING ? 0 : 1; }
CUresult cwop_EventDestroy(uint32_t e) { return e == 30 ? 0 : 1; }
CUresult cwop_EventRecord(uint32_t e, uint32_t stream, uint32_t flags)
{
	recorded += e == 30 && stream == 11 && flags == 0;
	return 0;
}
CUresult cwop_StreamWaitEvent(uint32_t stream, uint32_t e, uint32_t flags)
{
	waits += e == 30 && stream == 12 && flags == 0;
	return 0;
}
CUresult cw_capture_status(uint32_t stream, int *captures)
{
	CHECK(stream == 11);
	*captures = 0;
	return 0;
}
CUresult cw_own_said(CUresult res)
{
	if (res != 0)
		owed = res;
	return 0;
}

int main(void)
{
	struct cw_behind from, to;
	from = cw_behind(11);
	CHECK(from.ctx == 5 && from.uid == 1);
	CHECK(cw_order_left(&from, &to) == 1 && to.stream == 0 && streams == 0); /* it is idle */
	query = CUDA_ERROR_NOT_READY;
	CHECK(cw_order_left(&from, &to) == 1 && to.stream == 12 && to.uid == 100 && streams == 1 && recorded == 1 && waits == 1);
	/* The same for all of a context. */
	CHECK(cw_order_left(&from, &to) == 1 && to.stream == 12 && streams == 1 && recorded == 2);
	CHECK(owed == 0);
	query = CUDA_ERROR_INVALID_VALUE; /* of something else, earlier */
	CHECK(cw_order_left(&from, &to) == 1 && to.stream == 12 && owed == CUDA_ERROR_INVALID_VALUE);
	CHECK(current == 4);
	puts("streamorder_test ok");
	return 0;
}
