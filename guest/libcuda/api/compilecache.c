/*
 * The table by which NVRTC and nvJitLink keep PTX and cubins in the driver's cache. NVRTC runs in
 * the guest and so does this: cache/ keeps files in the guest's folder, and no call reaches the
 * worker. What the functions take and return was learnt by watching NVRTC 13.0 and driver 580 from
 * outside (docs/RATIONALE.md). For each stage of a compilation NVRTC makes a key, looks up, inserts
 * what it then had to compile, and ends the key. Failures of the cache are no failures of NVRTC: it
 * compiles.
 */
#include "api/compilecache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "cache/cache.h"

typedef void (*slot)(void);
#define SLOT(f) ((slot)(f))

enum { CUBIN = 1, PTX = 2 }; /* kinds of what is kept, of those that were seen */

static const uint64_t key_magic = 0x79656b2d65686361ull, data_magic = 0x617461642d656863ull;

struct key {
	uint64_t magic;
	int incomplete; /* it does not name all that decides: nothing is found, nothing is kept */
	struct cw_cache_key key;
};

/* In front of what a look-up gives out, so that only that is taken back. */
struct handed {
	uint64_t magic;
	uint64_t size;
};
_Static_assert(sizeof(struct handed) == 16, "data is aligned as malloc's");

static struct key *key_of(void *handle)
{
	struct key *k = handle;

	return k && (uintptr_t)k % sizeof k->magic == 0 && k->magic == key_magic ? k : NULL;
}

/* NVRTC compiles without a word then; the log tells why. */
static CUresult unusable(const char *what, int err, CUresult res)
{
	cw_log(CW_LOG_INFO, "compile cache in %s: %s: %s", cw_cache_settings()->folder, what,
	       err == -EPERM ? "the folder is another user's, or others may write there" : strerror(-err));
	return res;
}

/*
 * NVRTC's key for a cubin names the bitcode and the assembler's options, but not all that the PTX
 * between them was made with: -ftz and -prec-div change the PTX alone. So it counts which PTX this
 * thread asked for before, from the same bitcode. nvJitLink names the PTX itself.
 */
static __thread struct {
	struct cw_cache_key data, key;
} last_ptx;

static int is_bitcode(const void *data, size_t size) { return size >= 4 && !memcmp(data, "BC\xc0\xde", 4); }

static int complete_source(struct cw_cache_source *src, const void *data, size_t size)
{
	cw_cache_data_key(&src->data, data, size);
	if (src->kind == PTX || (src->kind == CUBIN && !is_bitcode(data, size)))
		return 1;
	if (src->kind != CUBIN) /* of other kinds it is not known what decides */
		return 0;
	src->from = last_ptx.key;
	return !memcmp(&last_ptx.data, &src->data, sizeof src->data);
}

static struct key *new_key(struct cw_cache_source *src, const void *data, size_t size)
{
	struct key *k = calloc(1, sizeof *k);

	if (!k)
		return NULL;
	k->magic = key_magic;
	k->incomplete = !complete_source(src, data, size);
	if (k->incomplete)
		cw_log(CW_LOG_INFO, "compile cache: what a key of kind %d names does not decide what is compiled: it is not kept",
		       src->kind);
	cw_cache_key(&k->key, src);
	if (src->kind == PTX) {
		last_ptx.data = src->data;
		last_ptx.key = k->key;
	}
	return k;
}

/* compiler is the time at which that NVRTC or nvJitLink was built; arch is 90 for sm_90, with
 * variant 1 for sm_90a. */
static CUresult key_make(void **handle, int kind, const void *data, size_t size, const char *options, const char *host,
			 const char *compiler, uint32_t arch, uint32_t variant)
{
	struct cw_cache_source src = {
		.kind = kind, .arch = arch, .variant = variant, .options = options, .host = host, .compiler = compiler};
	int err;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = NULL; /* a caller that goes on regardless does so with no key */
	if (!data || !size || !options)
		return CUDA_ERROR_INVALID_VALUE;
	if (cw_cache_settings()->disabled)
		return CUDA_ERROR_NOT_INITIALIZED;
	err = cw_cache_ready(cw_cache_settings());
	if (err)
		return unusable("opening", err, CUDA_ERROR_NOT_INITIALIZED);
	*handle = new_key(&src, data, size);
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult key_end(void *handle)
{
	struct key *k = key_of(handle);

	if (!k)
		return CUDA_ERROR_INVALID_VALUE;
	free(k);
	return CUDA_SUCCESS;
}

static CUresult look_up(void *handle, uint64_t zero, void **data, uint32_t *size)
{
	struct key *k = key_of(handle);
	struct cw_cache_found found;
	int err;

	(void)zero;
	if (!k || !data || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (k->incomplete)
		return CUDA_ERROR_NOT_FOUND;
	err = cw_cache_get(cw_cache_settings(), &k->key, sizeof(struct handed), &found);
	if (err && err != -ENOENT)
		return unusable("looking up", err, CUDA_ERROR_NOT_FOUND);
	if (!err && found.size > UINT32_MAX) {
		free(found.memory);
		err = -EFBIG;
	}
	if (err)
		return CUDA_ERROR_NOT_FOUND;
	*(struct handed *)found.memory = (struct handed){data_magic, found.size};
	*data = (char *)found.memory + sizeof(struct handed);
	*size = (uint32_t)found.size;
	return CUDA_SUCCESS;
}

static CUresult insert(void *handle, uint64_t zero, const void *data, size_t size, uint64_t flags)
{
	struct key *k = key_of(handle);
	int err;

	(void)zero, (void)flags;
	if (!k || (!data && size) || size > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (k->incomplete)
		return CUDA_ERROR_NOT_SUPPORTED;
	err = cw_cache_put(cw_cache_settings(), &k->key, data, size);
	return err ? unusable("inserting", err, CUDA_ERROR_OPERATING_SYSTEM) : CUDA_SUCCESS;
}

static CUresult give_back(void *data)
{
	struct handed *l = data ? (struct handed *)((char *)data - sizeof(struct handed)) : NULL;

	if (!l || (uintptr_t)data % sizeof(struct handed) || l->magic != data_magic)
		return CUDA_ERROR_INVALID_VALUE;
	free(l);
	return CUDA_SUCCESS;
}

static CUresult refuse(void)
{
	cw_log(CW_LOG_INFO, "compile cache: function 5 was not seen in use and is not known");
	return CUDA_ERROR_NOT_SUPPORTED;
}

static const struct {
	size_t size;
	slot fn[6];
} words = {7 * sizeof(slot), {SLOT(key_make), SLOT(key_end), SLOT(look_up), SLOT(insert), SLOT(refuse), SLOT(give_back)}};

const void *const cw_compile_cache_table = &words;
