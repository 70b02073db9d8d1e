/* The objects behind the handles that this folder hands out. Each is laid over a struct cw_obj of
 * the session's slab. */
#ifndef CW_API_OBJECTS_H
#define CW_API_OBJECTS_H

#include "session/lock.h"

#include "api/params.h"

enum { CW_DEVICE_ATTRS = 192 };

/* A device. attrs are the host's true values after device.c's adjustments. The lock guards the
 * primary context's count. */
struct cw_device {
	int ordinal;
	const struct cw_device_info *info;
	int32_t attrs[CW_DEVICE_ATTRS];
	uint8_t known[CW_DEVICE_ATTRS];
	struct cw_lock lock;
	_Atomic(struct cw_ctx *) primary;
	/* guest's own count; the worker sees the first retain and the last release */
	_Atomic uint32_t retained;
	uint32_t primary_flags;
	_Atomic uint32_t prio_known; /* prio_least and prio_greatest are those of the host */
	int prio_least, prio_greatest;
};

enum cw_ctx_state { CW_CTX_LIVE = 0, CW_CTX_GONE = 1 };

/*
 * A context. refs counts the living context itself and each place on a thread's stack, so that a
 * destroyed context that is still current somewhere keeps its object and answers
 * CUDA_ERROR_CONTEXT_IS_DESTROYED. A primary context's object is never freed: its handle is stable,
 * and state alternates with retain and release.
 */
struct cw_ctx {
	struct cw_obj o;
	_Atomic uint32_t state;
	_Atomic uint32_t refs;
	struct cw_device *device;
	uint64_t uid; /* cuCtxGetId: never reused */
	/* context-local storage: nodes are pushed, never unlinked while the object lives */
	_Atomic(struct cw_cls *) cls;
	_Atomic uint32_t flags;
	uint32_t version; /* cuCtxGetApiVersion */
	_Atomic uint32_t cache_config;
	_Atomic uint32_t shared_config;
	uint8_t is_primary;
	uint8_t is_green; /* of a green context: ends with it only */
};
CW_OBJ_FITS(struct cw_ctx);

struct cw_stream {
	struct cw_obj o; /* flags: CUstream_flags; ctx */
	int32_t priority;
	uint64_t uid;	/* cuStreamGetId: never reused */
	uint32_t green; /* id of its green context, 0 */
};
CW_OBJ_FITS(struct cw_stream);

struct cw_event {
	struct cw_obj o; /* flags: CUevent_flags; ctx */
	_Atomic uint32_t recorded;
	uint32_t shared; /* other processes may have it; set before it is published */
};
CW_OBJ_FITS(struct cw_event);

/* What a function's entry answers locally. attrs change by cuFuncSetAttribute only. */
struct cw_func_info {
	uint32_t attr_count;
	uint32_t param_count;
	uint32_t param_bytes; /* end of the last parameter */
	_Atomic int32_t attrs[24];
	struct cw_param params[];
};

struct cw_func {
	struct cw_obj o; /* ctx: 0 for a kernel (it has no context) */
	struct cw_func_info *info;
	char *name;
	struct cw_func *next;
	struct cw_obj *owner;	   /* module; library of a kernel; kernel of a kernel's function */
	struct cw_func *functions; /* of a kernel: its functions, one per context */
	/* Of a kernel: info is what it is like on that one, unless mixed. */
	int device;
	_Atomic uint8_t mixed; /* an attribute was set for another device */
	/* Attributes, by number, that were set here: not those that follow the kernel, or the
	 * code. */
	_Atomic uint32_t set;
	/* legacy.c's, under its lock; NULL until the launch interface of CUDA 3 is used */
	struct cw_legacy *legacy;
};
CW_OBJ_FITS(struct cw_func);

struct cw_module {
	struct cw_obj o;
	struct cw_func *funcs;
	struct cw_module *next;	 /* of a library: its modules in other contexts */
	struct cw_obj *library;	 /* NULL: loaded by the application, who unloads it */
	struct cw_home *managed; /* as a library's, which keeps it for its modules */
	struct cw_ref *refs;	 /* textures and surfaces */
};
CW_OBJ_FITS(struct cw_module);

struct cw_library {
	struct cw_obj o;
	struct cw_func *kernels;
	struct cw_module *modules;
	struct cw_home *managed; /* where its managed variables lie, NULL: it has none that moved */
	int unmoved;		 /* it has some, and they did not */
};
CW_OBJ_FITS(struct cw_library);

#endif
