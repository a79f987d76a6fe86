/* Preloaded into a process: while the file that FAILING_DISK names exists, writes to files with
   FAILING_PATH in their path fail with the error number FAILING_ERROR. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_failing(int descriptor) {
    const char *flag = getenv("FAILING_DISK"), *part = getenv("FAILING_PATH");
    const char *number = getenv("FAILING_ERROR");
    char link[64], path[4096];
    if (flag == NULL || part == NULL || number == NULL || access(flag, F_OK) != 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    if (strstr(path, part) == NULL)
        return 0;
    errno = atoi(number);
    return 1;
}

/* Each of these is what the C library calls it, but for the failures. */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t position) {
    if (is_failing(descriptor))
        return -1;
    return REAL(pwrite64)(descriptor, data, size, position);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t position) {
    if (is_failing(descriptor))
        return -1;
    return REAL(pwrite)(descriptor, data, size, position);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    if (is_failing(descriptor))
        return -1;
    return REAL(write)(descriptor, data, size);
}
