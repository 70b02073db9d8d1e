/* dlopen and its kin as glibc 2.17 has them, in libdl: for files that call them. */
#ifndef CW_TOOLS_LOADER_H
#define CW_TOOLS_LOADER_H

#include <dlfcn.h>

#ifndef CW_NO_SYMVER
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5\n.symver dlsym,dlsym@GLIBC_2.2.5\n.symver dlerror,dlerror@GLIBC_2.2.5\n");
#endif

#endif
