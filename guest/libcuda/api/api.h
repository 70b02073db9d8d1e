/*
 * The hand-written entries of libcuda: what its files share.
 *
 * Every cwi_cuX is called by the exported symbols of gen/entries.c after their preamble
 * (initialised, not forked, no sticky error), on the application's thread. Nothing here owns a
 * thread. Objects live in the session's handle slab; their structs are in objects.h.
 *
 * Lock order: device lock (primary contexts) > context-storage lock > module lock > session locks;
 * legacy.c's is taken alone. No lock is held while a request is in flight, except the device lock
 * (a primary context is retained once), a module's lock (a function is looked up once) and that of
 * registering notifications (notify.c).
 */
#ifndef CW_API_API_H
#define CW_API_API_H

#include "session/session.h"
#include "gen/ops.h"
#include "gen/entries.h"
#include "api/objects.h"

#pragma GCC visibility push(hidden)

/* --- process-wide settings, constant after cuInit --------------------------------------------- */

struct cw_settings {
	int blocking; /* CUDA_LAUNCH_BLOCKING=1: each launch and asynchronous copy is waited for */
	int eager;    /* CUDA_MODULE_LOADING=EAGER */
};
extern struct cw_settings cw_settings;

/* With CUDA_LAUNCH_BLOCKING: waits for the stream that an operation was just given to; else returns
 * res. For launches, copies and memsets of stream id stream. */
CUresult cw_settle(CUresult res, uint32_t stream);

/* --- devices ---------------------------------------------------------------------------------- */

/* The device behind an ordinal, or NULL. Valid once cuInit succeeded. */
struct cw_device *cw_device_get(CUdevice dev);
int cw_device_count(void);
/* What an entry returns for an ordinal without a device: CUDA_ERROR_INVALID_DEVICE, before cuInit
 * CUDA_ERROR_NOT_INITIALIZED. */
CUresult cw_no_device(void);
/* Attribute value as the application sees it (after the adjustments of device.c); 0 if the device
 * does not know it. */
int cw_device_attr(const struct cw_device *d, int attr);
CUresult cw_devices_init(void);

/* --- contexts --------------------------------------------------------------------------------- */

/* The calling thread's current context: 0 and *ctx, CUDA_ERROR_INVALID_CONTEXT (201) if there is
 * none, CUDA_ERROR_CONTEXT_IS_DESTROYED (709) if it is gone. */
CUresult cw_ctx_current(struct cw_ctx **ctx);
/* The current context's stream priorities. */
CUresult cw_ctx_priorities(struct cw_ctx *c, int *least, int *greatest);
/* A context handle, NULL meaning the current one. */
CUresult cw_ctx_resolve(CUcontext handle, struct cw_ctx **ctx);
/* The primary context's object of a device, made on first use; does not retain it. NULL: out of
 * handles. */
struct cw_ctx *cw_ctx_primary(struct cw_device *d);
/* Tells everything on the guest's side that a context's objects are gone. */
void cw_ctx_objects_gone(struct cw_ctx *c);

/* Context-local storage (export table, and destroyed contexts). */
CUresult cw_cls_put(CUcontext ctx, void *key, void *value, void (*dtor)(CUcontext, void *, void *));
CUresult cw_cls_delete(CUcontext ctx, void *key);
CUresult cw_cls_get(void **value, CUcontext ctx, void *key);
void cw_cls_clear(struct cw_ctx *c);
void cw_cls_free(struct cw_ctx *c);

/* The wire id of a stream that must belong to context ctx (for the default streams: the current one
 * must be that). CUDA_ERROR_INVALID_HANDLE if it does not. */
CUresult cw_stream_here(CUstream stream, int ptds, uint32_t ctx, uint32_t *id);

/* --- modules, libraries, functions ------------------------------------------------------------ */

/* Guards the lists of functions, kernels and modules that hang on their owners. */
extern struct cw_lock cw_module_lock;

struct cw_jit;
struct cw_image;
/* Sends an image; op is CW_OP_MODULE_LOAD or CW_OP_LIBRARY_LOAD. Writes logs and time back, also
 * when the load fails. */
CUresult cw_load(uint16_t op, uint32_t id, const struct cw_jit *jit, const struct cw_image *img, uint64_t *managed);
/* The names in a module or library (CW_OP_MODULE_LIST_FUNCTIONS, CW_OP_LIBRARY_LIST_KERNELS);
 * free() them. */
CUresult cw_names(uint16_t op, uint32_t id, char **names, size_t *len);

/* Loads an image of any kind into the current context, as cuModuleLoadDataEx does. */
CUresult cw_module_load(CUmodule *module, const void *image, unsigned count, const int *options, void **values);
/* A file's bytes with a NUL behind them; free() them. CUDA_ERROR_FILE_NOT_FOUND if it cannot be
 * read. */
CUresult cw_read_file(const char *path, void **data);
/* Moves the managed variables of code that was just loaded (CW_OP_LIBRARY_MANAGE,
 * CW_OP_MODULE_MANAGE), size bytes by the answer to the load, to where the program reaches them.
 * NULL if there are none or they stay. The code's end drops their home. */
struct cw_home;
struct cw_home *cw_managed_move(uint16_t op, uint32_t id, uint64_t size);
void cw_managed_drop(struct cw_home *h);
/* Remembers a variable whose address was asked for; home: of its code's managed variables, or
 * NULL. */
void cw_managed_note(const struct cw_home *home, uint64_t ptr, uint64_t size);
/* Says why, if it is so, that a variable's address was refused, and gives the result back. */
CUresult cw_managed_refused(const char *name, CUresult res);
/* The module of a library in the current context. */
CUresult cw_library_module(struct cw_library *l, struct cw_module **out);

/* A CUfunction, or a CUkernel where a function is accepted. NULL: neither (a host stub's address,
 * say). */
static inline struct cw_func *cw_func_get(const void *handle)
{
	struct cw_obj *o = cw_handle_get(CW_KIND_FUNC, handle);

	return (struct cw_func *)(cw_likely(o != NULL) ? o : cw_handle_get(CW_KIND_KERNEL, handle));
}
static inline int cw_func_attr(const struct cw_func *f, int attr)
{
	return atomic_load_explicit(&f->info->attrs[attr], memory_order_relaxed);
}

/* How an owner asks the worker for one of its functions; info receives FuncInfo and its
 * parameters. */
typedef CUresult cw_func_fetch(struct cw_obj *owner, uint32_t id, const char *name, void *info, size_t cap, size_t *len);
/* The function of this name in the owner's list, fetched at most once. kind: FUNC or KERNEL. */
CUresult cw_func_lookup(struct cw_obj *owner, struct cw_func **list, enum cw_kind kind, uint32_t ctx, const char *name,
			cw_func_fetch *fetch, struct cw_func **out);
/* Ends the functions of a list. Called with cw_module_lock held. */
void cw_funcs_free(struct cw_func **list);
/* Ends a module's functions and references. Called with cw_module_lock held. */
void cw_module_names_free(struct cw_module *m);
/* Checks and copies what the worker says about a function; NULL if it is malformed or there is no
 * memory. free() it. */
struct cw_func_info *cw_func_info_parse(const void *p, size_t len);
/* The names in a module or library: cw_list has lookup fill place i of out for each, as far as
 * there is room; count counts all. */
struct cw_listing {
	uint16_t op;
	struct cw_obj *owner; /* NULL: an invalid handle */
	CUresult (*lookup)(void *out, unsigned i, struct cw_obj *owner, const char *name);
	void *out;
	unsigned room, count;
};
CUresult cw_list(struct cw_listing *l);
CUresult cw_list_count(struct cw_listing *l, unsigned *count);

/* --- occupancy -------------------------------------------------------------------------------- */

/* Resident blocks per multiprocessor, from a small cache or the worker. */
CUresult cw_occupancy_blocks(const struct cw_func *f, int block, size_t dynamic, uint32_t flags, int *blocks);
/* Drops what is cached about a function whose attributes changed or that ended. */
void cw_occupancy_forget(uint32_t func);

/* limits.c: limits may have changed; there is a kernel that needs so much stack. */
void cw_limits_forget(void);
void cw_limits_kernel(int local);

#pragma GCC visibility pop
#endif
