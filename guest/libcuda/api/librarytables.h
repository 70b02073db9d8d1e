/* Tables of functions that NVIDIA's own libraries ask the driver for, beside those of the runtime
 * (exporttables.c). */
#ifndef CW_API_LIBRARYTABLES_H
#define CW_API_LIBRARYTABLES_H

/* cuBLASLt (12 and newer), cuFFT, cuSPARSE: asks whether a context is there. 93 words. */
extern const void *const cw_context_question_table;
/* cuBLASLt of CUDA 13: where the device's multiprocessors lie, to order tiles by distance. 17
 * words. */
extern const void *const cw_topology_table;
/* cuFFT: walks the functions of a module. 99 words. */
extern const void *const cw_module_walk_table;

#endif
