// Whether a kernel may use what this process has no access to (PROT_NONE): the library asks the
// system what may be read, which Linux answers from 6.11 on (PROCMAP_QUERY). Before, such a launch
// ends the program: docs/UNSUPPORTED.md.
#pragma once

#include <cstdint>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool may_forbid()
{
    struct {
        uint64_t size, flags, addr, rest[10];
    } query = {};
    query.size = sizeof query;
    query.addr = (uint64_t)(uintptr_t)&query;
    int maps = open("/proc/self/maps", O_RDONLY);
    bool answered = maps >= 0 && ioctl(maps, _IOWR('f', 17, query), &query) == 0;
    close(maps);
    return answered;
}
