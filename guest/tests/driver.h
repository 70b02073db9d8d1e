// What the programs that speak to the driver directly share.
#pragma once

#include <cuda.h>

#include "check.h"
// const unsigned char driverapi_fatbin[], made by the build from driverapi_kernels.cu
#include "driverapi_fatbin.h"

static inline const char *name_of(CUresult r)
{
    const char *s = nullptr;
    return cuGetErrorName(r, &s) == CUDA_SUCCESS && s ? s : "(no name)";
}

// CU ends the program when a call that must succeed does not.
#define CU(call)                                                                        \
    do {                                                                                \
        CUresult r_ = (call);                                                           \
        if (r_ != CUDA_SUCCESS) {                                                       \
            printf("%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, (int)r_, name_of(r_)); \
            fflush(stdout);                                                             \
            _Exit(1);                                                                   \
        }                                                                               \
    } while (0)
