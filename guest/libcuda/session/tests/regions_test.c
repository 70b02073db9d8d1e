/* Regions against a model: what the carrier has, what the worker has, and what the library keeps,
 * after each of many operations by chance, of which any step may be refused. The worker is the
 * test's own, and answers while the library waits. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/internal.h"
#include "session/tests/fake_worker.h"
#include "session/tests/opened.h"

enum { PAGE = 4096, ROUNDS = 1500, MOST = 24, NO_MAP = 1 /* CUDA_ERROR_INVALID_VALUE: something lies there */ };

static uint8_t memory[CW_REGION0_SIZE] __attribute__((aligned(4096)));

static uint64_t next(uint64_t below)
{
	static uint64_t x = 0x9e3779b97f4a7c15ull;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return (x >> 11) % below;
}

/* A region as it should be. */
static struct model {
	struct cw_region *r; /* NULL: nobody's */
	uint32_t id, flags;
	uint64_t at, size, dev;
	uint8_t *own;	/* adopted memory */
	uint8_t filled; /* with what */
} live[MOST];
static int lives, settled;

/* What the operation that runs is to meet, and what became of it. */
static struct {
	int refuse;	     /* attempts that the carrier refuses */
	int fail;	     /* attempts that the worker refuses */
	uint32_t why;	     /* with what */
	int unfillable;	     /* the files for adopted memory take nothing */
	int moves;	     /* adopted memory goes to files */
	int attempts, drops; /* of this operation */
	int busy;	     /* so often the worker does not let go, for work that goes on */
	uint32_t flags;
	uint64_t dev, at[3];
} now;

/* The carrier's regions and the worker's, by number. */
static struct {
	uint64_t at, size;
	int carried, mapped;
} known[1 << 16];
static uint32_t newest;
static int carried;

static int add_region(struct cw_session *s, struct cw_region *r)
{
	(void)s;
	/* A number is used once. */
	CHECK(r->id == newest + 1 && r->id < sizeof known / sizeof known[0]);
	newest = r->id;
	CHECK(now.attempts < 3);
	now.at[now.attempts++] = r->at;
	CHECK(r->size % PAGE == 0 && r->moving == NULL);
	if (now.refuse > 0) {
		now.refuse--;
		return -EPERM;
	}
	if (!r->adopted)
		for (int i = 0; i < lives; i++) /* where nothing lies, nor 2 MiB beside it */
			CHECK(live[i].own || (uint64_t)(uintptr_t)r->va >= live[i].at + live[i].size ||
			      live[i].at != (uintptr_t)live[i].r->va || (uint64_t)(uintptr_t)r->va + r->size <= live[i].at);
	if (now.moves && r->file < 0) {
		int err = cw_moving_make(r);
		CHECK(err == 0);
		if (now.unfillable) {
			int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
			CHECK(fd >= 0 && dup3(fd, r->moving->file[r->moving->count - 1], O_CLOEXEC) >= 0);
			close(fd);
		}
	}
	known[r->id].at = r->at;
	known[r->id].size = r->size;
	known[r->id].carried = 1;
	carried++;
	return 0;
}

static void end_region(struct cw_session *s, struct cw_region *r)
{
	(void)s;
	CHECK(known[r->id].carried && !known[r->id].mapped);
	CHECK(r->moving == NULL);
	known[r->id].carried = 0;
	carried--;
	if (r->adopted && r->mem >= 0) { /* as the carrier over a socket */
		CHECK(mmap(r->va, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, r->mem, 0) != MAP_FAILED);
		CHECK(close(r->mem) == 0);
	}
}

static void answer(struct cw_session *s, const struct cw_record *r, uint32_t result, const void *p, uint32_t n)
{
	struct cw_slot *slot = cw_slot_at(s, r->slot);
	if (n > 0)
		memcpy(slot + 1, p, n);
	slot->result = result;
	slot->payload_len = slot->reply_len = n;
	__atomic_store_n(&slot->seq_done, r->seq, __ATOMIC_RELEASE);
}

static void on_add(struct cw_session *s, const struct cw_record *r, const struct cw_in_RegionAdd *in)
{
	struct cw_out_RegionAdd out = {.dev = now.dev};
	CHECK(in->region == newest && known[in->region].carried && !known[in->region].mapped);
	CHECK(in->va == known[in->region].at && in->size == known[in->region].size && in->flags == now.flags);
	if (now.fail > 0) {
		now.fail--;
		answer(s, r, now.why, &out, 0);
		return;
	}
	known[in->region].mapped = 1;
	answer(s, r, 0, &out, sizeof out);
}

/* The worker does all that there is. */
static int work(struct cw_session *s, uint32_t slot, _Atomic uint32_t *word)
{
	(void)slot, (void)word;
	int did = 0;
	while (s->ctl->head != __atomic_load_n(&s->ctl->tail, __ATOMIC_ACQUIRE)) {
		const struct cw_record *r = (struct cw_record *)(s->base + CW_RING_OFFSET + (s->ctl->head & (CW_RING_SIZE - 1)));
		s->ctl->head += r->size;
		if (r->op == CW_OP_REGION_ADD) {
			on_add(s, r, (const void *)(r + 1));
		} else if (r->op == CW_OP_REGION_DROP) {
			uint32_t id = ((const struct cw_in_RegionDrop *)(r + 1))->region;
			CHECK(known[id].carried && known[id].mapped);
			if (now.busy > 0) {
				now.busy--;
				answer(s, r, CUDA_ERROR_NOT_READY, NULL, 0);
			} else {
				known[id].mapped = 0;
				now.drops++;
				answer(s, r, 0, NULL, 0);
			}
		} else {
			CHECK(r->op == CW_OP_SKIP);
		}
		did++;
	}
	CHECK(did > 0); /* nobody waits for nothing */
	return 0;
}

static int alive(struct cw_session *s)
{
	(void)s;
	return 0;
}

static const struct cw_carrier carrier = {
	.name = "model", .private_after_fork = 1, .add_region = add_region, .end_region = end_region, .wait_slot = work, .alive = alive};

static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 128; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static int filled(const struct model *m)
{
	for (uint64_t i = 0; m->own && i < m->size; i += 511)
		if (m->own[i] != m->filled)
			return 0;
	return 1;
}

/* Everything that can be seen is as the model says. */
static void check(int open_)
{
	int listed = 0, mapped = 0, parted = 0;
	for (struct cw_region *r = cw_s.regions; r; r = r->next) {
		struct model *m = NULL;
		for (int i = 0; i < lives; i++)
			m = live[i].r == r ? &live[i] : m;
		CHECK(m != NULL && ++listed <= lives);
		CHECK(r->id == m->id && r->at == m->at && r->size == m->size && r->dev == m->dev && !r->moving && !r->hands);
		CHECK(known[r->id].carried && known[r->id].mapped && filled(m));
		CHECK(r->adopted == (m->own != NULL) && (!r->parted || !r->adopted || r->mem >= 0));
		parted += r->mem >= 0;
	}
	for (uint32_t id = 1; id <= newest; id++)
		mapped += known[id].mapped;
	CHECK(listed == lives && carried == lives && mapped == lives);
	CHECK(atomic_load(&cw_s.slots_free) == UINT64_MAX && cw_s.region_lock.word == 0);
	CHECK(descriptors() == open_ + parted);
}

/* What another thread maps where a part of adopted memory was made, as soon as that has gone to its
 * place. */
static uint8_t *neighbour;

static void settle(const struct cw_region *r)
{
	void *p = mmap(r->moving->shadow, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (p == MAP_FAILED)
		return; /* it was not moved */
	CHECK(p == r->moving->shadow);
	neighbour = p;
	*neighbour = 1;
}

/* It is there still. */
static void unsettle(void)
{
	if (!neighbour)
		return;
	CHECK(msync(neighbour, PAGE, MS_ASYNC) == 0); /* ENOMEM: nothing is */
	CHECK(*neighbour == 1 && munmap(neighbour, PAGE) == 0);
	neighbour = NULL;
	settled++;
}

static void one_by_one(uint32_t count, void (*part)(void *arg, uint32_t k), void *arg)
{
	for (uint32_t k = 0; k < count; k++)
		part(arg, k);
	settle(arg);
}

enum way { ADD, ADD_AT, ADOPT, PARTED, OF_FILE, WAYS };

static void add(int file)
{
	static const struct cw_region_hands hands = {4, one_by_one};
	struct model *m = &live[lives];
	enum way way = (enum way)next(WAYS);
	int adopts = way >= ADOPT;
	uint64_t bytes = adopts ? PAGE * (1 + next(next(8) ? 20 : 600)) : 1 + next(1 << 22);
	memset(m, 0, sizeof *m);
	memset(&now, 0, sizeof now);
	now.refuse = next(4) == 0 ? 1 + (int)next(2) : 0;
	now.fail = next(3) == 0 ? 1 + (int)next(3) : 0;
	now.why = next(2) ? NO_MAP : CUDA_ERROR_OUT_OF_MEMORY;
	now.flags = (uint32_t)next(4);
	now.busy = (int)next(3);
	now.dev = next(UINT64_MAX);
	now.moves = way == PARTED || (way == ADOPT && next(2));
	now.unfillable = now.moves && next(6) == 0;
	if (adopts) {
		m->own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(m->own != MAP_FAILED);
		memset(m->own, m->filled = (uint8_t)next(256), bytes);
	}
	int refused = now.refuse > 0, again = way == ADD && now.why == NO_MAP && !refused;
	int fails = refused || now.fail > (again ? 2 : 0) || now.unfillable, failed = now.fail;
	uint64_t at = 1ull << 45 | next(1000) * PAGE;
	struct cw_region *r = NULL;
	CUresult res = way == ADD      ? cw_region_add(CW_REGION_STAGING, bytes, now.flags, &r)
		       : way == ADD_AT ? cw_region_add_at(at, bytes, now.flags, &r)
		       : way == ADOPT  ? cw_region_adopt(m->own, bytes, now.flags, &hands, &r)
		       : way == PARTED ? cw_region_adopt_parted(m->own, bytes, now.flags, &r)
				       : cw_region_adopt_file(m->own, bytes, file, 0, now.flags, &r);
	CHECK((res != 0) == fails && (r == NULL) == fails);
	unsettle();
	CHECK(now.attempts == (again ? (failed < 3 ? failed + 1 : 3) : 1));
	for (int i = 1; i < now.attempts; i++) /* far from where the worker could not map */
		CHECK(now.at[i] >= now.at[i - 1] + (1ull << 36));
	CHECK(way != ADD || now.at[0] >= CW_REGION_VA_BASE);
	CHECK(now.drops == (fails && !refused && failed == 0 && now.unfillable));
	if (fails) {
		if (refused)
			CHECK(res == (adopts ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY));
		else if (failed > 0)
			CHECK((uint32_t)res == now.why);
		else
			CHECK(res == CUDA_ERROR_NOT_SUPPORTED);
		m->size = bytes;
		CHECK(filled(m)); /* what was moved holds what it held */
		if (m->own)
			munmap(m->own, bytes);
		return;
	}
	m->r = r;
	m->id = newest;
	m->flags = now.flags;
	m->size = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	m->at = way == ADD_AT ? at : adopts ? (uintptr_t)m->own : (uintptr_t)r->va;
	m->dev = now.dev;
	lives++;
}

static void drop(void)
{
	struct cw_tx tx;
	int i = (int)next((uint64_t)lives), j = -1;
	struct model gone = live[i];
	memset(&now, 0, sizeof now);
	now.busy = next(3) ? 0 : 1 + (int)next(3);
	cw_region_let(gone.r, &tx);
	if (lives > 1 && next(3) == 0) { /* another goes between its halves */
		j = (i + 1) % lives;
		struct model other = live[j];
		CHECK(cw_region_drop(other.r) == 0);
		live[j].r = NULL;
		CHECK(filled(&other));
		if (other.own)
			munmap(other.own, other.size);
	}
	CHECK(cw_region_end(gone.r, &tx) == 0 && now.drops == (j < 0 ? 1 : 2));
	live[i].r = NULL;
	CHECK(filled(&gone));
	if (gone.own)
		munmap(gone.own, gone.size);
	int kept = 0;
	for (int k = 0; k < lives; k++)
		if (live[k].r)
			live[kept++] = live[k];
	lives = kept;
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	int file = open("/dev/zero", O_RDWR | O_CLOEXEC);
	cw_opened(&carrier, memory);
	int open_ = descriptors();
	for (int n = 0; n < ROUNDS; n++) {
		if (lives < MOST && (lives == 0 || next(5) < 3))
			add(file);
		else
			drop();
		check(open_);
	}
	while (lives > 0) {
		drop();
		check(open_);
	}
	CHECK(settled > 0);
	/* Of a session that has died nothing is sent, and regions go all the same. */
	memset(&now, 0, sizeof now);
	struct cw_region *r;
	CHECK(cw_region_add(CW_REGION_STAGING, PAGE, 0, &r) == 0);
	cw_mark_dead(&cw_s, "the test");
	known[r->id].mapped = 0;
	CHECK(cw_region_drop(r) == CUDA_ERROR_LAUNCH_FAILED && cw_s.regions == NULL && carried == 0);
	uint32_t last = newest;
	CHECK(cw_region_add(CW_REGION_STAGING, PAGE, 0, &r) == CUDA_ERROR_LAUNCH_FAILED && newest == last);
	puts("regions_test ok");
	return 0;
}
