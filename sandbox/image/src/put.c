#define _GNU_SOURCE
#include "trees.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frames.h"
#include "walk.h"

static int put_bytes(int at, const char *path, mode_t mode, long long size, int fd) {
    int failed = 0, file = openat(at, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    char chunk[CHUNK];
    for (long long left = size; left > 0 && file >= 0 && !failed;) {
        size_t want = left < CHUNK ? left : CHUNK;
        failed = read_exactly(fd, chunk, want) <= 0 || write_exactly(file, chunk, want) < 0;
        left -= want;
    }
    failed = file < 0 || failed || fchmod(file, mode) < 0;
    if (file >= 0)
        close(file);
    return failed ? -1 : 0;
}

static int put_link(int at, const char *path, long long size, int fd) {
    char pointed[PATH_MAX];
    if (size < 0 || size >= PATH_MAX || read_exactly(fd, pointed, size) <= 0)
        return -1;
    pointed[size] = 0;
    return symlinkat(pointed, at, path);
}

static int put_entry(int at, const struct field *fields, int fd) {
    char *path = copy_string(fields[2]), *permissions = copy_string(fields[1]);
    mode_t mode = strtol(permissions, NULL, 8) & 0777;
    int failed = -1;
    if (is(fields[0], "d"))
        failed = mkdirat(at, path, 0700) || fchmodat(at, path, mode, 0);
    else if (is(fields[0], "f"))
        failed = put_bytes(at, path, mode, number(fields[3]), fd);
    else if (is(fields[0], "l"))
        failed = put_link(at, path, number(fields[3]), fd);
    free(path);
    free(permissions);
    return failed ? -1 : 0;
}

int put_tree(const char *root, int fd) {
    int folder = wipe_tree(root) < 0 ? -1 : open_root(root);
    int failed = folder < 0 ? -1 : 0, ended = 0;
    while (!failed && !ended) {
        struct frame frame;
        failed = read_frame(fd, &frame) <= 0 ? -1 : 0;
        if (!failed) {
            ended = is(frame.fields[0], "end");
            if (!ended)
                failed = frame.count == 4 ? put_entry(folder, frame.fields, fd) : -1;
            free_frame(&frame);
        }
    }
    if (folder >= 0)
        close(folder);
    return failed;
}
