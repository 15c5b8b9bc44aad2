#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PROC = 0x9fa0 };

/* Links that a command planted may name a pipe, a device, or something of /proc. */
static int open_plain(const char *path, int flags) {
    struct stat status;
    struct statfs system;
    int file = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    if (file < 0)
        return -1;
    int reason = fstat(file, &status) < 0 || fstatfs(file, &system) < 0 ? errno : 0;
    if (!reason && S_ISDIR(status.st_mode))
        reason = EISDIR;
    else if (!reason && (!S_ISREG(status.st_mode) || system.f_type == PROC))
        reason = EINVAL;
    if (!reason)
        return file;
    close(file);
    errno = reason;
    return -1;
}

int read_file(const char *path, size_t limit, struct field *contents) {
    struct stat status;
    int file = open_plain(path, O_RDONLY);
    if (file < 0)
        return -1;
    if (fstat(file, &status) < 0 || (size_t)status.st_size > limit) {
        close(file);
        errno = EFBIG;
        return -1;
    }
    char *data = allocate(status.st_size);
    size_t size = 0;
    for (ssize_t got; (got = read(file, data + size, status.st_size - size)) > 0;)
        size += got;
    close(file);
    *contents = (struct field){data, size};
    return 0;
}

static void make_folders(const char *path) {
    char *copy = strdup(path);
    for (char *at = copy; copy && (at = strchr(at + 1, '/'));) {
        *at = 0;
        mkdir(copy, 0777);
        *at = '/';
    }
    free(copy);
}

int write_file(const char *path, struct field contents) {
    make_folders(path);
    int file = open_plain(path, O_WRONLY | O_CREAT);
    if (file < 0)
        return -1;
    int failed = ftruncate(file, 0) < 0 || write_exactly(file, contents.data, contents.size) < 0;
    int reason = errno;
    close(file);
    errno = reason;
    return failed ? -1 : 0;
}
