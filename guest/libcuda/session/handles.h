/*
 * Handles that the application sees: pointers into one reserved slab of fixed-size objects, never
 * dereferenced before they were checked. A lookup takes no lock and touches no memory outside the
 * slab, whatever value the application passes.
 *
 * An object begins with struct cw_obj; its owner may lay its own struct over it:
 *     struct my_stream { struct cw_obj o; int priority; };   CW_OBJ_FITS(struct my_stream);
 * A freed object's kind is 0 until its id is used again, which is after at least CW_HANDLE_DELAY
 * other frees.
 */
#ifndef CW_SESSION_HANDLES_H
#define CW_SESSION_HANDLES_H

enum cw_kind {
	CW_KIND_FREE = 0,
	CW_KIND_CTX = 1,
	CW_KIND_MODULE,
	CW_KIND_LIBRARY,
	CW_KIND_FUNC,
	CW_KIND_KERNEL,
	CW_KIND_STREAM,
	CW_KIND_EVENT,
	CW_KIND_POOL,
	CW_KIND_GRAPH,
	CW_KIND_GRAPHNODE,
	CW_KIND_GRAPHEXEC,
	CW_KIND_ARRAY,
	CW_KIND_MIPMAP,
	CW_KIND_LINK,
	CW_KIND_MEMHANDLE, /* CUmemGenericAllocationHandle */
	CW_KIND_GREENCTX,
	CW_KIND_RESDESC, /* CUdevResourceDesc */
	CW_KIND_TEX,
	CW_KIND_SURF,
	CW_KIND_TEXREF,
	CW_KIND_SURFREF,
	CW_KIND_RESV,	 /* address reservation: never seen by the application */
	CW_KIND_MAPPING, /* likewise */
	CW_KIND_USEROBJ, /* CUuserObject */
	CW_KIND_NOTICE,	 /* CUasyncCallbackHandle */
	CW_KIND_LAST,
};

#define CW_OBJ_SIZE 128u /* one object, header included; objects are aligned to 64 */
#define CW_HANDLE_COUNT (1u << 20)
#define CW_HANDLE_RESERVED 16u /* ids 0..15 are never handed out: 1 and 2 are the default streams */
#define CW_HANDLE_DELAY 4096u

struct cw_obj {
	_Atomic uint32_t kind; /* enum cw_kind */
	uint32_t id;	       /* what the wire carries */
	/* Of a function, which cuFFT reads here, 8 bytes into what the driver calls a
	 * CUfunction. */
	const char *name;
	uint32_t ctx;	/* id of the context it belongs to; owner's to use */
	uint32_t flags; /* owner's to use */
			/* CW_OBJ_SIZE - sizeof(struct cw_obj) bytes of the owner's, zero in
			        * a new object */
};
#define CW_OBJ_FITS(type) _Static_assert(sizeof(type) <= CW_OBJ_SIZE, #type " does not fit a handle object")

/* A new object of this kind (body zeroed), or NULL when the slab is full. It is visible to lookups
 * at once: whoever needs more fields set first uses cw_handle_alloc, fills them, then
 * cw_handle_publish. */
struct cw_obj *cw_handle_new(enum cw_kind kind);
struct cw_obj *cw_handle_alloc(void);
void cw_handle_publish(struct cw_obj *o, enum cw_kind kind);
/* The live object behind an application's handle, or NULL (not ours, misaligned, freed, another
 * kind). */
struct cw_obj *cw_handle_get(enum cw_kind kind, const void *app_handle);
struct cw_obj *cw_handle_by_id(enum cw_kind kind, uint32_t id);
/* Ends an object. 1 if this call ended it, 0 if it was not alive (of two racing frees one wins). */
int cw_handle_free(enum cw_kind kind, struct cw_obj *o);
/* Calls fn for every live object of a kind; objects made or freed meanwhile may be missed. Stops at
 * the first non-zero. */
int cw_handle_each(enum cw_kind kind, int (*fn)(struct cw_obj *o, void *arg), void *arg);

/* What goes into a `stream` field: 1 legacy, 2 per-thread, or a stream's id. ptds: what NULL means
 * to this entry. CUDA_ERROR_INVALID_HANDLE if it is none. */
CUresult cw_stream_id(CUstream stream, int ptds, uint32_t *id);

#endif
