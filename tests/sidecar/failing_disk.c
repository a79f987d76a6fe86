/* Preloaded into a process: writes to a write-ahead log fail with EIO while the file that
   FAILING_DISK names exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_failing(int descriptor) {
    const char *flag = getenv("FAILING_DISK");
    char link[64], path[4096];
    if (flag == NULL || access(flag, F_OK) != 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 4)
        return 0;
    path[length] = '\0';
    return strcmp(path + length - 4, "-wal") == 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t position) {
    if (is_failing(descriptor)) {
        errno = EIO;
        return -1;
    }
    return REAL(pwrite64)(descriptor, data, size, position);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t position) {
    if (is_failing(descriptor)) {
        errno = EIO;
        return -1;
    }
    return REAL(pwrite)(descriptor, data, size, position);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    if (is_failing(descriptor)) {
        errno = EIO;
        return -1;
    }
    return REAL(write)(descriptor, data, size);
}
