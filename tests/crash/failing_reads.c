/* LD_PRELOAD: pread of files whose path contains FAIL_READS_OF fails with EIO while the file FAIL_READS_WHILE exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*pread_call)(int, void *, size_t, off64_t);

static int fails(int fd) {
    const char *part = getenv("FAIL_READS_OF"), *flag = getenv("FAIL_READS_WHILE");
    char link[64], path[4096];
    if (!part || !flag || access(flag, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

ssize_t pread64(int fd, void *buffer, size_t count, off64_t offset) {
    static pread_call real;
    if (!real) real = (pread_call)dlsym(RTLD_NEXT, "pread64");
    if (fails(fd)) { errno = EIO; return -1; }
    return real(fd, buffer, count, offset);
}

ssize_t pread(int fd, void *buffer, size_t count, off_t offset) { return pread64(fd, buffer, count, offset); }
