#define _GNU_SOURCE
#include "trees.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frames.h"
#include "walk.h"

static int empty(int folder);

static int remove_folder(int at, const char *name) {
    if (fchmodat(at, name, 0700, 0) < 0)
        return -1;
    int folder = open_folder(at, name);
    if (folder < 0)
        return -1;
    int failed = empty(folder);
    close(folder);
    return failed ? -1 : unlinkat(at, name, AT_REMOVEDIR);
}

static int empty(int folder) {
    char **names = list_names(folder);
    if (!names)
        return -1;
    int failed = 0;
    for (char **name = names; *name && !failed; name++) {
        failed = unlinkat(folder, *name, 0);
        if (failed && errno == EISDIR)
            failed = remove_folder(folder, *name);
    }
    free_names(names);
    return failed;
}

int wipe_tree(const char *root) {
    mkdir(root, 0755);
    int folder = open_root(root);
    if (folder < 0)
        return -1;
    int failed = empty(folder);
    close(folder);
    return failed;
}

static int copy_bytes(int from, int to) {
    char chunk[CHUNK];
    for (ssize_t got; (got = read(from, chunk, sizeof chunk));)
        if (got < 0 || write_exactly(to, chunk, got) < 0)
            return -1;
    return 0;
}

static int copy_file(int from, int to, const char *name, const struct stat *status) {
    int failed = -1, source = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (source < 0 && errno == EACCES && fchmodat(from, name, 0600, 0) == 0)  /* ours, but not to be read */
        source = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int target = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (source >= 0 && target >= 0) {
        struct timespec times[2] = {status->st_atim, status->st_mtim};  /* compiled files are checked against their source's */
        failed = copy_bytes(source, target) || fchmod(target, (status->st_mode & 0777) | 0400) || futimens(target, times);
    }
    if (source >= 0)
        close(source);
    if (target >= 0)
        close(target);
    return failed ? -1 : 0;
}

static int copy_link(int from, int to, const char *name) {
    char pointed[PATH_MAX + 1];
    ssize_t size = readlinkat(from, name, pointed, PATH_MAX);
    if (size < 0)
        return -1;
    pointed[size] = 0;
    return symlinkat(pointed, to, name);
}

static int copy_into(int from, int to);

static int copy_folder(int from, int to, const char *name, mode_t mode) {
    int failed = -1, source = -1, target = -1;
    if ((mode & 0700) == 0700 || fchmodat(from, name, 0700, 0) == 0)
        source = open_folder(from, name);
    if (source >= 0 && mkdirat(to, name, 0700) == 0)
        target = open_folder(to, name);
    if (target >= 0)
        failed = copy_into(source, target) || fchmod(target, (mode & 0777) | 0700);
    if (source >= 0)
        close(source);
    if (target >= 0)
        close(target);
    return failed ? -1 : 0;
}

static int copy_into(int from, int to) {
    char **names = list_names(from);
    if (!names)
        return -1;
    int failed = 0;
    for (char **name = names; *name && !failed; name++) {
        struct stat status;
        failed = fstatat(from, *name, &status, AT_SYMLINK_NOFOLLOW);
        if (!failed && S_ISDIR(status.st_mode))
            failed = copy_folder(from, to, *name, status.st_mode);
        else if (!failed && S_ISREG(status.st_mode))
            failed = copy_file(from, to, *name, &status);
        else if (!failed && S_ISLNK(status.st_mode))
            failed = copy_link(from, to, *name);
    }
    free_names(names);
    return failed;
}

int copy_tree(const char *source, const char *target) {
    if (wipe_tree(target) < 0)
        return -1;
    int failed = -1, from = open_root(source), to = open_root(target);
    if (from >= 0 && to >= 0)
        failed = copy_into(from, to);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return failed;
}
