/* NVRTC's and nvJitLink's way to the driver's cache of compiled code. */
#ifndef CW_API_COMPILECACHE_H
#define CW_API_COMPILECACHE_H

/* NVRTC and nvJitLink of CUDA 12 and 13: keys, look-ups, insertions. 7 words. */
extern const void *const cw_compile_cache_table;

#endif
