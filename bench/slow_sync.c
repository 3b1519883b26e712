/* Preloaded into Redis by bench/disks: each sync of a file takes longer, as on a slow disk, and is counted.

   The file that SLOW_SYNC names has two 64-bit numbers: the nanoseconds to add, and the syncs so far. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static uint64_t *shared;
static int (*sync_file)(int);

__attribute__((constructor)) static void start(void)
{
    const char *name = getenv("SLOW_SYNC");
    int fd = name ? open(name, O_RDWR) : -1;
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shared = found == MAP_FAILED ? NULL : found;
    sync_file = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
}

int fdatasync(int fd)
{
    if (shared) {
        struct timespec left = {shared[0] / 1000000000, shared[0] % 1000000000};
        __atomic_fetch_add(&shared[1], 1, __ATOMIC_RELAXED);
        while (shared[0] && nanosleep(&left, &left) == -1) {
        }
    }
    return sync_file(fd);
}
