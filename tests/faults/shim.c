/* A disk that fails when told to, for a whole process: load it with LD_PRELOAD.
 *
 * FAULTS names a file that this library maps; the test writes to it and the process obeys at once:
 *
 *     u32 calls     which calls fail: 1 reads, 2 writes, 4 syncs, 8 opens
 *     u32 error     the errno that they fail with
 *     u32 every     one call in that many fails
 *     u32 failed    how many have failed so far (counted here)
 *     i64 shift     nanoseconds added to the wall clock
 *     u64 delay     microseconds that every sync takes longer
 *
 * Only files below the folder FAULTS_BELOW are concerned, and only files with FAULTS_NAME in their path if that is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { READS = 1, WRITES = 2, SYNCS = 4, OPENS = 8, DESCRIPTORS = 65536 };

struct orders {
    _Atomic uint32_t calls, error, every, failed;
    _Atomic int64_t shift;
    _Atomic uint64_t delay;
};

static struct orders *orders;
static const char *below, *name;
static unsigned char ours[DESCRIPTORS]; /* descriptors of files that are concerned */
static _Atomic uint32_t turn;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS");
    below = getenv("FAULTS_BELOW");
    name = getenv("FAULTS_NAME");
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int fd = path ? real(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || !below) return;
    void *map = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) orders = map;
}

static int concerned(const char *path) {
    return orders && path && !strncmp(path, below, strlen(below)) && (!name || strstr(path, name));
}

static int fails(uint32_t call) {
    if (!orders || !(atomic_load(&orders->calls) & call)) return 0;
    uint32_t every = atomic_load(&orders->every);
    if (every > 1 && atomic_fetch_add(&turn, 1) % every) return 0;
    atomic_fetch_add(&orders->failed, 1);
    errno = (int)atomic_load(&orders->error);
    return 1;
}

static int known(int fd) { return fd >= 0 && fd < DESCRIPTORS && ours[fd]; }

static int opened(int fd, const char *path) {
    if (fd >= 0 && fd < DESCRIPTORS) ours[fd] = concerned(path);
    return fd;
}

#define OPEN(function)                                                              \
    int function(const char *path, int flags, ...) {                                \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        mode_t mode = va_arg(rest, mode_t);                                         \
        va_end(rest);                                                               \
        static int (*real)(const char *, int, ...);                                 \
        if (!real) real = dlsym(RTLD_NEXT, #function);                              \
        if (concerned(path) && fails(OPENS)) return -1;                             \
        return opened(real(path, flags, mode), path);                               \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "close");
    if (known(fd)) ours[fd] = 0;
    return real(fd);
}

#define CALL(result, function, kind, parameters, arguments)                         \
    result function parameters {                                                    \
        static result (*real) parameters;                                           \
        if (!real) real = dlsym(RTLD_NEXT, #function);                              \
        if (known(fd) && fails(kind)) return -1;                                    \
        return real arguments;                                                      \
    }
CALL(ssize_t, read, READS, (int fd, void *data, size_t size), (fd, data, size))
CALL(ssize_t, pread, READS, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
CALL(ssize_t, pread64, READS, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
CALL(ssize_t, write, WRITES, (int fd, const void *data, size_t size), (fd, data, size))
CALL(ssize_t, pwrite, WRITES, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
CALL(ssize_t, pwrite64, WRITES, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))

static void slow(void) {
    if (orders && atomic_load(&orders->delay)) usleep((useconds_t)atomic_load(&orders->delay));
}

#define SYNC(function)                                                              \
    int function(int fd) {                                                          \
        static int (*real)(int);                                                    \
        if (!real) real = dlsym(RTLD_NEXT, #function);                              \
        if (known(fd)) {                                                            \
            slow();                                                                 \
            if (fails(SYNCS)) return -1;                                            \
        }                                                                           \
        return real(fd);                                                            \
    }
SYNC(fsync)
SYNC(fdatasync)

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && clock == CLOCK_REALTIME && orders) {
        int64_t shift = atomic_load(&orders->shift);
        int64_t all = now->tv_sec * 1000000000LL + now->tv_nsec + shift;
        now->tv_sec = all / 1000000000LL;
        now->tv_nsec = all % 1000000000LL;
    }
    return result;
}
