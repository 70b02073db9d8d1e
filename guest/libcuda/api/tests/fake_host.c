#include "fake_host.h"
#include "memory/share.h"

#include "session/extent.h"
#include "session/ahead.h"
#include "session/internal.h"

struct fake fake;

static struct cw_control_page page;
struct cw_session cw_s;
struct cw_global cw_g = {.state = CW_CLOSED, .ctl = &page};
static struct cw_device_info devices[2];
static struct cw_info info = {.driver_version = 13000, .device_count = 2, .caps = CW_CAP_MAP, .devices = devices};
static uint32_t current;

/* --- the session layer ------------------------------------------------------------------------ */

static void attr(struct cw_device_info *d, int a, int value)
{
	d->attr_valid[a / 8] |= (uint8_t)(1 << a % 8);
	d->attrs[a] = value;
}

CUresult cw_session_open(void)
{
	static const int attrs[][2] = {
		{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {10, 32},
		{16, 132}, {19, 1},   {33, 6},	 {34, 0}, {39, 2048},	   {50, 0},    {75, 9},	   {76, 0},    {83, 1},
		{86, 1},   {88, 1},   {89, 1},	 {95, 1}, {100, 1},	   {101, 1},   {116, 1},   {120, 1},
	};

	for (int i = 0; i < 2; i++) {
		struct cw_device_info *d = &devices[i];

		for (size_t k = 0; k < sizeof attrs / sizeof *attrs; k++)
			attr(d, attrs[k][0], attrs[k][1]);
		attr(d, 33, 6 + i);
		d->attr_count = 148;
		d->compute = 90;
		d->uuid[0] = d->uuid_v2[0] = (uint8_t)(i + 1);
		snprintf((char *)d->name, sizeof d->name, "Fake %d", i);
	}
	atomic_store(&cw_g.state, CW_OPEN);
	return CUDA_SUCCESS;
}

const struct cw_info *cw_session_info(void) { return &info; }
CUresult cw_check_slow(void) { return CUDA_ERROR_NOT_INITIALIZED; }
__thread int cw_in_callback;
CUresult cw_sticky(CUresult sticky) { return sticky; }
void cw_thread_as(uint32_t ordinal, uint32_t ctx) { (void)ordinal, (void)ctx; }
uint32_t cw_current_ctx_id(void) { return current; }
void cw_set_current_ctx_id(uint32_t id) { current = id; }
uint32_t cw_thread_ordinal(void) { return 1; }
uint32_t cw_spin_limit(void) { return 0; }
CUresult cw_word_wait(uint32_t word, uint32_t value) { return (void)word, (void)value, CUDA_SUCCESS; }
CUresult cw_blob_send(const void *p, size_t len, uint32_t *blob) { return (void)p, (void)len, *blob = 1, CUDA_SUCCESS; }
void cw_mark_dead(struct cw_session *s, const char *why) { (void)s, (void)why; }
int cw_is_dead(struct cw_session *s) { return (void)s, 0; }

/* No extents: copies go through staging. */
uint32_t cw_extent_take(void) { return 0; }
void cw_extent_give(void) {}
int cw_extent_pins(void) { return 0; }

int cw_extent_submit(uint32_t region, uint32_t offset, void *p, uint32_t len, int to_region, void *tag)
{
	return (void)region, (void)offset, (void)p, (void)len, (void)to_region, (void)tag, -1;
}

int cw_extent_reap(struct cw_extent_end *ends, int most, int wait) { return (void)ends, (void)most, (void)wait, -1; }

CUresult cw_region_adopt_file(void *va, size_t size, int file, uint64_t at, uint32_t flags, struct cw_region **out)
{
	return (void)va, (void)size, (void)file, (void)at, (void)flags, (void)out, CUDA_ERROR_NOT_SUPPORTED;
}

int cw_memfd(size_t size) { return (void)size, -1; }
const char *cw_memfd_name(char name[CW_MEMFD_NAME]) { return memset(name, 0, CW_MEMFD_NAME), name; }
void *cw_map_shared(int fd, size_t size, void *hint) { return (void)fd, (void)size, (void)hint, NULL; }

_Atomic(void (*)(void)) cw_around_requests;
_Atomic uint64_t cw_copies;
_Atomic uint32_t cw_starved;
_Atomic uint32_t cw_callback_thread, cw_exiting_thread;

static uint64_t work; /* every record is some */

uint64_t cw_work(void) { return work; }

void cw_work_add(void) { work++; }
__thread uint32_t cw_own_work;
_Atomic uint32_t cw_hosts_ahead;
uint32_t cw_host_add(uint32_t stream) { return stream; }

void cw_host_done(uint32_t ticket)
{
	(void)ticket;
	fake.functions_done++;
}

void cw_host_behind(uint32_t stream) { (void)stream; }
void cw_host_before_copy(void) {}

int cw_host_bar(void) { return 1; }

void cw_host_unbar(void) {}

CUresult cw_region_adopt_parted(void *va, size_t size, uint32_t flags, struct cw_region **out)
{
	(void)va, (void)size, (void)flags, (void)out;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cw_region_add_at(uint64_t at, size_t size, uint32_t flags, struct cw_region **out)
{
	(void)at, (void)size, (void)flags, (void)out;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cw_region_drop(struct cw_region *r) { return (void)r, CUDA_SUCCESS; }
void cw_region_let(struct cw_region *r, struct cw_tx *tx) { (void)r, (void)tx; }
CUresult cw_region_end(struct cw_region *r, struct cw_tx *tx) { return (void)r, (void)tx, CUDA_SUCCESS; }

CUresult cw_region_add(uint32_t kind, size_t size, uint32_t flags, struct cw_region **out)
{
	return (void)kind, (void)size, (void)flags, (void)out, CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cw_region_adopt(void *va, size_t size, uint32_t flags, const struct cw_region_hands *hands, struct cw_region **out)
{
	return (void)va, (void)size, (void)flags, (void)hands, (void)out, CUDA_ERROR_NOT_SUPPORTED;
}

/* --- the worker ------------------------------------------------------------------------------- */

static uint64_t record[CW_MAX_RECORD / 8];
static union {
	uint8_t bytes[512];
	struct {
		struct cw_span info;
		struct cw_function_info f;
		struct cw_param_info p[3];
	} func;
	struct {
		struct cw_span names;
		char text[16];
	} list;
	struct cw_out_ModuleLoad load;
	struct cw_out_PrimaryCtxRetain retain;
	struct cw_out_CtxGetStreamPriorityRange range;
	struct cw_out_OccupancyMaxActiveBlocks occupancy;
	struct cw_out_CtxGetLimit limit;
	struct cw_out_DeviceCanAccessPeer peer;
	struct cw_out_IpcOpenMemHandle open;
} reply;

static uint32_t function(const char *name, size_t len)
{
	reply.func.info = (struct cw_span){sizeof reply.func.f, sizeof reply.func.info};
	reply.func.f.attr_count = 16;
	reply.func.f.attrs[0] = 1024;
	reply.func.f.attrs[3] = fake.local;
	reply.func.f.attrs[8] = 49152;
	if (len == 4 && !memcmp(name, "none", 4))
		return 0;
	if (len != 1 || *name != 'k')
		return CUDA_ERROR_NOT_FOUND;
	reply.func.info.len = sizeof reply.func.f + sizeof reply.func.p;
	reply.func.f.attrs[0] = 512;
	reply.func.f.param_count = 3;
	reply.func.p[0] = (struct cw_param_info){0, 8};
	reply.func.p[1] = (struct cw_param_info){8, 4};
	reply.func.p[2] = (struct cw_param_info){16, 12};
	return 0;
}

static void occupancy(const struct cw_in_OccupancyMaxActiveBlocks *a)
{
	int warps = (a->block + 31) / 32, blocks = warps ? 64 / warps : 0;

	if (blocks > 32)
		blocks = 32;
	if (a->dynamic && (uint64_t)blocks * a->dynamic > 102400)
		blocks = (int)(102400 / a->dynamic);
	reply.occupancy.blocks = blocks;
}

static uint32_t launch(const uint8_t *rec, const struct cw_in_Launch *a)
{
	fake.launch = *a;
	CHECK(a->params.len <= sizeof fake.params && a->attrs.len <= sizeof fake.attrs);
	if (a->params.len)
		memcpy(fake.params, rec + a->params.off, a->params.len);
	if (a->attrs.len)
		memcpy(fake.attrs, rec + a->attrs.off, a->attrs.len);
	return 0;
}

static uint32_t open_shared(const uint8_t *rec, const struct cw_in_IpcOpenMemHandle *a)
{
	unsigned i = rec[a->token.off];
	CHECK(a->token.len == CW_SHARE_TOKEN_SIZE && i < 8);
	if (a->avoid_mib != 0 && fake.away == 0)
		return CUDA_ERROR_MAP_FAILED;
	reply.open.ptr = fake.shared[i].ptr + (a->avoid_mib != 0 ? fake.away : 0);
	reply.open.size = fake.shared[i].size;
	fake.open[i]++;
	return 0;
}

static void close_shared(uint64_t ptr)
{
	int found = 0;
	for (int i = 0; i < 8; i++)
		if (fake.open[i] > 0 && (fake.shared[i].ptr == ptr || fake.shared[i].ptr + fake.away == ptr))
			fake.open[i] = 0, found = 1; /* however often */
	CHECK(found);
}

static uint32_t execute(void)
{
	const struct cw_record *r = (const struct cw_record *)record;
	const uint8_t *rec = (const uint8_t *)record;
	const void *in = r + 1;
	const struct cw_in_ModuleGetFunction *get = in;
	const struct cw_in_KernelGetFunction *kernel = in;

	memset(&reply, 0, sizeof reply);
	fake.last = *r;
	fake.last_ctx = r->ctx;
	fake.count[r->op]++;
	if (fake.fail_op == r->op)
		return fake.fail_result;
	switch (r->op) {
	case CW_OP_MODULE_GET_FUNCTION:
	case CW_OP_LIBRARY_GET_KERNEL: return function((const char *)rec + get->name.off, get->name.len);
	case CW_OP_KERNEL_GET_FUNCTION: CHECK(kernel->kernel != 0); return function("k", 1);
	case CW_OP_MODULE_LIST_FUNCTIONS:
	case CW_OP_LIBRARY_LIST_KERNELS:
		reply.list.names = (struct cw_span){7, sizeof reply.list.names};
		memcpy(reply.list.text, "k\0none", 7);
		break;
	case CW_OP_OCCUPANCY_MAX_ACTIVE_BLOCKS: occupancy(in); break;
	case CW_OP_CTX_GET_LIMIT: reply.limit.value = fake.limit; break;
	case CW_OP_PRIMARY_CTX_RETAIN: reply.retain.flags = 8; break;
	case CW_OP_CTX_GET_STREAM_PRIORITY_RANGE: reply.range.greatest = -5; break;
	case CW_OP_IPC_OPEN_MEM_HANDLE: return open_shared(rec, in);
	case CW_OP_IPC_CLOSE_MEM_HANDLE: close_shared(((const struct cw_in_IpcCloseMemHandle *)in)->ptr); break;
	case CW_OP_LAUNCH: return launch(rec, in);
	case CW_OP_WATCH_BUDGET: fake.wanted = ((const struct cw_in_WatchBudget *)in)->wanted; break;
	}
	return 0;
}

CUresult cw_begin(struct cw_tx *tx, uint16_t op, uint32_t fixed_size, uint32_t var_size, int with_reply)
{
	struct cw_record *r = (struct cw_record *)record;

	work++;
	tx->size = (uint32_t)sizeof *r + fixed_size + var_size;
	CHECK(tx->size <= CW_MAX_RECORD && tx->size % 8 == 0);
	tx->rec = (uint8_t *)record;
	tx->slot = FAKE_SLOT;
	tx->seq = FAKE_SEQ;
	memset(record, 0, tx->size);
	*r = (struct cw_record){.size = tx->size, .op = op, .flags = with_reply ? CW_RECORD_REPLY : 0, .ctx = current, .thread = 1};
	return CUDA_SUCCESS;
}

CUresult cw_commit(struct cw_tx *tx)
{
	(void)tx;
	execute();
	return CUDA_SUCCESS;
}

CUresult cw_commit_wait(struct cw_tx *tx, struct cw_reply *rep)
{
	(void)tx;
	rep->result = (CUresult)execute();
	rep->data = reply.bytes;
	rep->len = sizeof reply.bytes;
	return CUDA_SUCCESS;
}

void cw_reply_release(struct cw_reply *rep) { (void)rep; }
void cw_abort(struct cw_tx *tx) { (void)tx; }

void fake_reset(void)
{
	int failures = fake.failures;

	memset(&fake, 0, sizeof fake);
	fake.failures = failures;
}
