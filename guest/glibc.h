/*
 * Goes before every file of what runs in guests (-include): built with a new glibc's headers it
 * must load on glibc 2.17. Since 2.38 these turn strtol, sscanf and their kin into __isoc23_ ones,
 * which read 0b101 too, for all who define _GNU_SOURCE.
 */
#ifndef CW_GLIBC_H
#define CW_GLIBC_H

#include <features.h>

#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#endif
