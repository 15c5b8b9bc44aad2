#define _GNU_SOURCE
#include "trees.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frames.h"
#include "sha256.h"
#include "walk.h"

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
    char **names = list_names(folder);
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
