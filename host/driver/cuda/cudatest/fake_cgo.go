package cudatest

/*
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct call { int32_t kind; int32_t pad; uint64_t stream, event, number, ctx; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct call *calls;
static size_t count, room;
static unsigned delay; // most turns that a call takes
static int fail;       // what the next launch answers
static uint64_t dead;  // a context that answers with an error alone
static uint64_t captures = ~0ull;
static __thread uint64_t current;
static __thread uint32_t seed;

static void dawdle(void) {
	if (!delay) return;
	if (!seed) seed = (uint32_t)(uintptr_t)&seed | 1;
	seed = seed * 1664525 + 1013904223;
	for (volatile uint32_t i = 0; i < (seed >> 8) % delay; i++) {}
}

static void note(int kind, uint64_t stream, uint64_t event, uint64_t number) {
	pthread_mutex_lock(&lock);
	if (count == room) {
		room = room ? 2 * room : 4096;
		calls = realloc(calls, room * sizeof *calls);
	}
	calls[count++] = (struct call){kind, 0, stream, event, number, current};
	pthread_mutex_unlock(&lock);
}

static int set_current(uint64_t ctx) { current = ctx; return 0; }

static int launch(uint64_t f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, uint32_t sh,
                  uint64_t stream, void **params, void **extra) {
	uint64_t n = 0;
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)sh, (void)params;
	dawdle();
	if (extra) memcpy(&n, extra[1], sizeof n);
	note(1, stream, 0, n);
	int r = fail;
	fail = 0;
	return r;
}
static int launch_quick(void) { return 0; }
static int record(uint64_t event, uint64_t stream) { dawdle(); note(2, stream, event, 0); return 0; }
static int wait_event(uint64_t stream, uint64_t event, uint32_t flags) { (void)flags; dawdle(); note(3, stream, event, 0); return 0; }
static int write_value(uint64_t stream, uint64_t addr, uint32_t value, uint32_t flags) {
	(void)flags;
	dawdle();
	note(4, stream, 0, value);
	__atomic_store_n((uint32_t *)(uintptr_t)addr, value, __ATOMIC_RELEASE);
	return 0;
}
static int query(uint64_t x) { note(5, 0, x, 0); return dead && current == dead ? 700 : x == captures ? 900 : 0; }
static int is_capturing(uint64_t stream, int32_t *status) {
	*status = stream == captures;
	return captures == ~0ull ? 500 : 0;
}

static uint64_t address(int which) {
	switch (which) {
	case 0: return (uint64_t)(uintptr_t)set_current;
	case 1: return (uint64_t)(uintptr_t)launch;
	case 2: return (uint64_t)(uintptr_t)record;
	case 3: return (uint64_t)(uintptr_t)wait_event;
	case 4: return (uint64_t)(uintptr_t)write_value;
	case 5: return (uint64_t)(uintptr_t)query;
	case 6: return (uint64_t)(uintptr_t)launch_quick;
	case 7: return (uint64_t)(uintptr_t)is_capturing;
	}
	return 0;
}
static void reset(unsigned d) { count = 0; delay = d; fail = 0; dead = 0; captures = ~0ull; }
static void fail_next(int r) { fail = r; }
static void kill_context(uint64_t ctx) { dead = ctx; }
static void capture(uint64_t stream) { captures = stream; }
static size_t number(void) { pthread_mutex_lock(&lock); size_t n = count; pthread_mutex_unlock(&lock); return n; }
static struct call at(size_t i) { return calls[i]; }
*/
import "C"

// Kind is what was called.
type Kind int

// Kinds, which Address takes too.
const (
	SetCurrent Kind = iota // not remembered
	Launch                 // Number: the first 8 bytes of its parameters
	Record
	WaitEvent
	WriteValue // Number: the value, which is stored at once
	Query
	LaunchQuick // a launch that is not remembered and takes no time
	IsCapturing // not remembered; an error unless Capture has said which stream does
)

// Call is one call, in the order in which they were made.
type Call struct {
	Kind                       Kind
	Stream, Event, Number, Ctx uint64
}

// Address is that of a function to be called in place of the driver's.
func Address(k Kind) uint64 { return uint64(C.address(C.int(k))) }

// Reset forgets all calls. Each later one takes up to delay turns of a loop.
func Reset(delay uint) { C.reset(C.uint(delay)) }

// FailNext has the next launch answer a result.
func FailNext(result uint32) { C.fail_next(C.int(result)) }

// Kill has a context be one that an error of a kernel has ended.
func Kill(ctx uint64) { C.kill_context(C.uint64_t(ctx)) }

// Capture has one stream capture, and no other: to ask about its work is an error.
func Capture(stream uint64) { C.capture(C.uint64_t(stream)) }

// Calls returns what was called since Reset. Nobody calls meanwhile.
func Calls() []Call {
	list := make([]Call, C.number())
	for i := range list {
		c := C.at(C.size_t(i))
		list[i] = Call{Kind(c.kind), uint64(c.stream), uint64(c.event), uint64(c.number), uint64(c.ctx)}
	}
	return list
}
