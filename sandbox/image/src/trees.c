#define _GNU_SOURCE
#include "trees.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frames.h"
#include "sha256.h"

static int open_folder(int at, const char *name) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int open_root(const char *root) { return open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void free_names(char **names) {
    for (char **name = names; *name; name++)
        free(*name);
    free(names);
}

/* The names in a folder, sorted and ended by NULL; NULL where it cannot be read. */
static char **list(int folder) {
    DIR *stream = fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!stream)
        return NULL;
    size_t count = 0, room = 16;
    char **names = allocate(room * sizeof *names);
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (count + 1 == room && !(names = realloc(names, (room *= 2) * sizeof *names)))
            _exit(71);
        names[count++] = strdup(entry->d_name);
    }
    closedir(stream);
    names[count] = NULL;
    qsort(names, count, sizeof *names, by_name);
    return names;
}

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
    char **names = list(folder);
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
    char **names = list(from);
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

static void add_header(struct sha256 *digest, const char *kind, mode_t mode, const char *path, size_t size) {
    char permissions[8], bytes[24];
    unsigned char length[4];
    snprintf(permissions, sizeof permissions, "%o", (unsigned)(mode & 0777));
    snprintf(bytes, sizeof bytes, "%zu", size);
    struct field fields[] = {text(kind), text(permissions), text(path), text(bytes)};
    put_u32(length, frame_size(4, fields));
    sha256_add(digest, length, 4);
    for (int i = 0; i < 4; i++) {
        put_u32(length, fields[i].size);
        sha256_add(digest, length, 4);
        sha256_add(digest, fields[i].data, fields[i].size);
    }
}

static int add_file(int at, const char *name, struct sha256 *digest) {
    int file = openat(at, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return -1;
    char chunk[CHUNK];
    ssize_t got;
    while ((got = read(file, chunk, sizeof chunk)) > 0)
        sha256_add(digest, chunk, got);
    close(file);
    return got < 0 ? -1 : 0;
}

static int add_below(int folder, const char *prefix, struct sha256 *digest);

static int add_entry(int at, const char *name, const char *path, struct sha256 *digest) {
    struct stat status;
    if (fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    if (S_ISREG(status.st_mode)) {
        add_header(digest, "f", status.st_mode, path, status.st_size);
        return add_file(at, name, digest);
    }
    if (S_ISLNK(status.st_mode)) {
        char pointed[PATH_MAX];
        ssize_t size = readlinkat(at, name, pointed, sizeof pointed);
        add_header(digest, "l", 0777, path, size < 0 ? 0 : size);
        sha256_add(digest, pointed, size < 0 ? 0 : size);
        return size < 0 ? -1 : 0;
    }
    add_header(digest, S_ISDIR(status.st_mode) ? "d" : "o", status.st_mode, path, 0);
    if (!S_ISDIR(status.st_mode))
        return 0;
    int folder = open_folder(at, name);
    int failed = folder < 0 ? -1 : add_below(folder, path, digest);
    if (folder >= 0)
        close(folder);
    return failed;
}

static int add_below(int folder, const char *prefix, struct sha256 *digest) {
    char **names = list(folder);
    if (!names)
        return -1;
    int failed = 0;
    for (char **name = names; *name && !failed; name++) {
        char *path = allocate(strlen(prefix) + strlen(*name) + 2);
        sprintf(path, "%s%s%s", prefix, *prefix ? "/" : "", *name);
        failed = add_entry(folder, *name, path, digest);
        free(path);
    }
    free_names(names);
    return failed;
}

int sum_tree(const char *root, char hex[65]) {
    struct sha256 digest;
    sha256_begin(&digest);
    int folder = open_root(root);
    if (folder < 0)
        return -1;
    int failed = add_below(folder, "", &digest);
    close(folder);
    sha256_hex(&digest, hex);
    return failed;
}

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
