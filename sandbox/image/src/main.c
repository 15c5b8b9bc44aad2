/* gagar-init: process 1 of a sandbox's containers, and what its pool runs in them. No part of it needs the image that it runs in. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "call.h"
#include "frames.h"
#include "serve.h"
#include "trees.h"

/* Nobody may read the copy: the kernel then lets no process of the same user look into one that runs it. */
static int install(const char *path) {
    char chunk[CHUNK];
    ssize_t got;
    int source = open("/proc/self/exe", O_RDONLY), target = open(path, O_WRONLY | O_CREAT | O_EXCL, 0700);
    while (source >= 0 && target >= 0 && (got = read(source, chunk, sizeof chunk)) > 0)
        if (write_exactly(target, chunk, got) < 0)
            return 1;
    return source < 0 || target < 0 || got < 0 || fchmod(target, 0111) < 0;
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    umask(022);
    if (!strcmp(name, "serve") && getpid() == 1)
        serve();
    if (!strcmp(name, "idle"))
        idle();
    if (!strcmp(name, "call"))
        return call();
    if (!strcmp(name, "install") && count == 3)
        return install(words[2]);
    if (!strcmp(name, "copy") && count == 4)
        return copy_tree(words[2], words[3]) < 0;
    fprintf(stderr, "usage: gagar-init serve (as process 1) | idle | call | install PATH | copy SOURCE TARGET\n");
    return 64;
}
