/* Preloaded into a process: counts the file calls below one folder, lets one of them fail, and
   writes down every change that a call made to a file or to a folder.

   tests/reliability/disk.py builds and controls it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SHORT (-1)

enum { UNSEEN, GO, FAIL, CUT };

static char root[PATH_MAX];
static size_t root_length;
static int is_watching, calls_file = -1, changes_file = -1, failing_error, was_struck;
static long call_count, failing_call;
/* Every call of this name fails, if there is one. */
static char failing_name[16];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int pauses;

/* -- control */

/* Watches the calls below `folder`. The call of that number (from 1; 0: none) fails with `error`;
   SHORT makes it transfer about half of its bytes. */
void disk_watch(const char *folder, int calls, int changes, long number, int error) {
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    calls_file = calls;
    changes_file = changes;
    call_count = 0;
    was_struck = 0;
    failing_call = number;
    failing_error = error;
    is_watching = 1;
}

/* From now on every call of that name ("write", "sync") below `folder` fails with `error`. */
void disk_break(const char *folder, const char *name, int error) {
    pthread_mutex_lock(&lock);
    disk_watch(folder, -1, -1, 0, error);
    snprintf(failing_name, sizeof failing_name, "%s", name);
    pthread_mutex_unlock(&lock);
}

/* Stops it; returns whether the call that was to fail was made. */
int disk_stop(void) {
    is_watching = 0;
    failing_name[0] = '\0';
    return was_struck;
}

/* The calls of this thread are not counted until as many disk_resume: they still are recorded. */
void disk_pause(void) { pauses++; }
void disk_resume(void) { pauses--; }

/* -- what every call does */

static int path_of(char *path, int folder, const char *name) {
    char link[64];
    size_t length = 0;
    if (name == NULL || name[0] != '/') {
        if (folder == AT_FDCWD) {
            if (getcwd(path, PATH_MAX) == NULL)
                return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t found = REAL(readlink)(link, path, PATH_MAX - 1);
            if (found < 0)
                return 0;
            path[found] = '\0';
        }
        length = strlen(path);
        if (name == NULL || strcmp(name, ".") == 0 || name[0] == '\0')
            return 1;
        path[length++] = '/';
    }
    if (length + strlen(name) >= PATH_MAX)
        return 0;
    strcpy(path + length, name);
    return 1;
}

/* Whether it is the watched folder or lies below it. */
static int is_below(const char *path) {
    return strncmp(path, root, root_length) == 0 &&
           (path[root_length] == '/' || path[root_length] == '\0');
}

static const char *relative(const char *path) {
    return path[root_length] == '/' ? path + root_length + 1 : "";
}

static void put(int file, const void *data, size_t size) {
    const char *from = data;
    while (size > 0) {
        ssize_t written = REAL(write)(file, from, size);
        if (written <= 0)
            abort();
        from += written;
        size -= (size_t)written;
    }
}

/* UNSEEN: not of interest. Else the lock is held, and `leave` must follow. */
static int enter(const char *call, char *path, int folder, const char *name) {
    int before = errno;
    if (!is_watching || !path_of(path, folder, name) || !is_below(path)) {
        errno = before;
        return UNSEEN;
    }
    pthread_mutex_lock(&lock);
    int answer = GO;
    if (pauses == 0) {
        if (calls_file >= 0) {
            char line[PATH_MAX + 64];
            int size = snprintf(line, sizeof line, "%s\t%s\n", call, relative(path));
            put(calls_file, line, (size_t)size);
        }
        if (++call_count == failing_call || strcmp(call, failing_name) == 0) {
            was_struck = 1;
            answer = failing_error == SHORT ? CUT : FAIL;
        }
    }
    errno = answer == FAIL ? failing_error : before;
    return answer;
}

static void leave(void) {
    int before = errno;
    pthread_mutex_unlock(&lock);
    errno = before;
}

/* One change: a line of fields, then `size` bytes. */
static void record(const char *change, ino_t file, long long position, const void *data,
                   size_t size, const char *path, const char *target) {
    int before = errno;
    if (changes_file >= 0) {
        char line[3 * PATH_MAX];
        int length = snprintf(line, sizeof line, "%s\t%llu\t%lld\t%zu\t%s\t%s\n", change,
                              (unsigned long long)file, position, size,
                              relative(path), target == NULL ? "" : relative(target));
        put(changes_file, line, (size_t)length);
        put(changes_file, data, size);
    }
    errno = before;
}

static ino_t inode_of(int descriptor) {
    struct stat status;
    return REAL(fstat)(descriptor, &status) == 0 ? status.st_ino : 0;
}

static ino_t inode_at(const char *path) {
    struct stat status;
    return REAL(lstat)(path, &status) == 0 ? status.st_ino : 0;
}

static size_t cut_to(int answer, size_t size) { return answer == CUT && size > 1 ? size / 2 : size; }

/* -- opening and closing */

static int open_file(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int makes = (flags & O_CREAT) != 0, nameless = (flags & O_TMPFILE) == O_TMPFILE;
    int seen = enter(makes || nameless ? "create" : "open", path, folder, name);
    if (seen == UNSEEN)
        return REAL(openat64)(folder, name, flags, mode);
    int result = -1;
    if (seen != FAIL) {
        int existed = makes && inode_at(path) != 0;
        result = REAL(openat64)(folder, name, flags, mode);
        if (result >= 0 && nameless)
            record("nameless", inode_of(result), 0, NULL, 0, path, NULL);
        else if (result >= 0 && makes && !existed)
            record("create", inode_of(result), 0, NULL, 0, path, NULL);
        else if (result >= 0 && (flags & O_TRUNC))
            record("truncate", inode_of(result), 0, NULL, 0, path, NULL);
    }
    leave();
    return result;
}

#define MODE_OF(flags)                                                                             \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                         \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

int open64(const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_file(AT_FDCWD, name, flags, mode);
}

int openat64(int folder, const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_file(folder, name, flags, mode);
}

/* Only a file that may have been written reports an error, and is closed in any case. */
int close(int descriptor) {
    char path[PATH_MAX];
    int writes = is_watching && (fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int seen = writes ? enter("close", path, descriptor, NULL) : UNSEEN;
    if (seen == UNSEEN)
        return REAL(close)(descriptor);
    int number = errno, result = REAL(close)(descriptor);
    if (seen == FAIL) {
        errno = number;
        result = -1;
    }
    leave();
    return result;
}

/* -- reading */

#define READS(call, name, descriptor, ...)                                                         \
    char path[PATH_MAX];                                                                           \
    int seen = enter(name, path, descriptor, NULL);                                                \
    if (seen != UNSEEN)                                                                            \
        size = cut_to(seen, size);                                                                 \
    ssize_t result = seen == FAIL ? -1 : REAL(call)(descriptor, data, size __VA_OPT__(, ) __VA_ARGS__); \
    if (seen != UNSEEN)                                                                            \
        leave();                                                                                   \
    return result;

ssize_t read(int descriptor, void *data, size_t size) { READS(read, "read", descriptor) }

ssize_t pread64(int descriptor, void *data, size_t size, off64_t position) {
    READS(pread64, "read", descriptor, position)
}

/* -- writing */

ssize_t write(int descriptor, const void *data, size_t size) {
    char path[PATH_MAX];
    int seen = enter("write", path, descriptor, NULL);
    if (seen == UNSEEN)
        return REAL(write)(descriptor, data, size);
    ssize_t result = -1;
    if (seen != FAIL) {
        result = REAL(write)(descriptor, data, cut_to(seen, size));
        if (result > 0) {
            /* The end of what was written, also where the file appends. */
            off64_t end = lseek64(descriptor, 0, SEEK_CUR);
            record("write", inode_of(descriptor), end - result, data, (size_t)result, path, NULL);
        }
    }
    leave();
    return result;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t position) {
    char path[PATH_MAX];
    int seen = enter("write", path, descriptor, NULL);
    if (seen == UNSEEN)
        return REAL(pwrite64)(descriptor, data, size, position);
    ssize_t result = -1;
    if (seen != FAIL) {
        result = REAL(pwrite64)(descriptor, data, cut_to(seen, size), position);
        if (result > 0)
            record("write", inode_of(descriptor), position, data, (size_t)result, path, NULL);
    }
    leave();
    return result;
}

/* A call that changes one thing and returns 0 or -1. */
#define CHANGES(name, folder, at, real, recorded)                                                  \
    char path[PATH_MAX];                                                                           \
    int seen = enter(name, path, folder, at);                                                      \
    if (seen == UNSEEN)                                                                            \
        return real;                                                                               \
    int result = -1;                                                                               \
    if (seen != FAIL && (result = real) == 0)                                                      \
        recorded;                                                                                  \
    leave();                                                                                       \
    return result;

int ftruncate64(int descriptor, off64_t size) {
    CHANGES("truncate", descriptor, NULL, REAL(ftruncate64)(descriptor, size),
            record("truncate", inode_of(descriptor), size, NULL, 0, path, NULL))
}

int truncate64(const char *name, off64_t size) {
    CHANGES("truncate", AT_FDCWD, name, REAL(truncate64)(name, size),
            record("truncate", inode_at(path), size, NULL, 0, path, NULL))
}

int fallocate(int descriptor, int mode, off_t position, off_t size) {
    CHANGES("allocate", descriptor, NULL, REAL(fallocate)(descriptor, mode, position, size),
            record("allocate", inode_of(descriptor), position + size, NULL, 0, path, NULL))
}

int fsync(int descriptor) {
    CHANGES("sync", descriptor, NULL, REAL(fsync)(descriptor),
            record("sync", inode_of(descriptor), 0, NULL, 0, path, NULL))
}

int fdatasync(int descriptor) {
    CHANGES("sync", descriptor, NULL, REAL(fdatasync)(descriptor),
            record("sync", inode_of(descriptor), 0, NULL, 0, path, NULL))
}

/* -- names */

static int rename_file(int from, const char *old, int to, const char *new, unsigned flags) {
    char path[PATH_MAX], source[PATH_MAX];
    int seen = enter("rename", path, to, new);
    if (seen == UNSEEN)
        return REAL(renameat2)(from, old, to, new, flags);
    int result = -1;
    if (seen != FAIL && path_of(source, from, old) &&
        (result = REAL(renameat2)(from, old, to, new, flags)) == 0)
        record("rename", inode_at(path), 0, NULL, 0, source, path);
    leave();
    return result;
}

int rename(const char *old, const char *new) {
    return rename_file(AT_FDCWD, old, AT_FDCWD, new, 0);
}

int renameat(int from, const char *old, int to, const char *new) {
    return rename_file(from, old, to, new, 0);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return rename_file(from, old, to, new, flags);
}

int link(const char *old, const char *new) {
    CHANGES("link", AT_FDCWD, new, REAL(link)(old, new),
            record("link", inode_at(path), 0, NULL, 0, path, NULL))
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    CHANGES("link", to, new, REAL(linkat)(from, old, to, new, flags),
            record("link", inode_at(path), 0, NULL, 0, path, NULL))
}

int unlink(const char *name) {
    CHANGES("unlink", AT_FDCWD, name, REAL(unlink)(name),
            record("unlink", 0, 0, NULL, 0, path, NULL))
}

int unlinkat(int folder, const char *name, int flags) {
    CHANGES("unlink", folder, name, REAL(unlinkat)(folder, name, flags),
            record("unlink", 0, 0, NULL, 0, path, NULL))
}

int rmdir(const char *name) {
    CHANGES("rmdir", AT_FDCWD, name, REAL(rmdir)(name),
            record("unlink", 0, 0, NULL, 0, path, NULL))
}

int mkdir(const char *name, mode_t mode) {
    CHANGES("mkdir", AT_FDCWD, name, REAL(mkdir)(name, mode),
            record("mkdir", inode_at(path), 0, NULL, 0, path, NULL))
}

int mkdirat(int folder, const char *name, mode_t mode) {
    CHANGES("mkdir", folder, name, REAL(mkdirat)(folder, name, mode),
            record("mkdir", inode_at(path), 0, NULL, 0, path, NULL))
}

/* -- asking */

#define ASKS(name, folder, at, real) CHANGES(name, folder, at, real, (void)0)

int fstat64(int descriptor, struct stat64 *status) {
    ASKS("stat", descriptor, NULL, REAL(fstat64)(descriptor, status))
}

int stat64(const char *name, struct stat64 *status) {
    ASKS("stat", AT_FDCWD, name, REAL(stat64)(name, status))
}

int lstat64(const char *name, struct stat64 *status) {
    ASKS("stat", AT_FDCWD, name, REAL(lstat64)(name, status))
}

int fstatat64(int folder, const char *name, struct stat64 *status, int flags) {
    ASKS("stat", folder, name, REAL(fstatat64)(folder, name, status, flags))
}

int statx(int folder, const char *name, int flags, unsigned mask, struct statx *status) {
    ASKS("stat", folder, name, REAL(statx)(folder, name, flags, mask, status))
}

int access(const char *name, int mode) {
    ASKS("access", AT_FDCWD, name, REAL(access)(name, mode))
}

int flock(int descriptor, int operation) {
    ASKS("lock", descriptor, NULL, REAL(flock)(descriptor, operation))
}

DIR *opendir(const char *name) {
    char path[PATH_MAX];
    int seen = enter("list", path, AT_FDCWD, name);
    DIR *result = seen == FAIL ? NULL : REAL(opendir)(name);
    if (seen != UNSEEN)
        leave();
    return result;
}

struct dirent64 *readdir64(DIR *folder) {
    char path[PATH_MAX];
    int seen = is_watching ? enter("list", path, dirfd(folder), NULL) : UNSEEN;
    struct dirent64 *result = seen == FAIL ? NULL : REAL(readdir64)(folder);
    if (seen != UNSEEN)
        leave();
    return result;
}
