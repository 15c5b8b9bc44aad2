/* run, cancel: to process 1. read PATH LIMIT, write PATH DATA, wipe ROOT, sum ROOT, copy SOURCE TARGET, put ROOT (and then the tree):
   answered with "ok" and contents or digest, or with "error", errno and its text. */
#define _GNU_SOURCE
#include "call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "serve.h"
#include "trees.h"

static int answer(int failed, struct field data) {
    char code[16];
    snprintf(code, sizeof code, "%d", errno);
    struct field ok[] = {text("ok"), data}, error[] = {text("error"), text(code), text(strerror(errno))};
    return failed ? write_frame(1, 3, error) : write_frame(1, 2, ok);
}

static int on_file(const struct frame *request, const char *path) {
    struct field contents = {"", 0};
    if (is(request->fields[0], "write"))
        return answer(write_file(path, request->fields[2]), contents);
    int failed = read_file(path, number(request->fields[2]), &contents);
    int written = answer(failed, contents);
    if (!failed)
        free((char *)contents.data);
    return written;
}

static int on_tree(const struct frame *request, const char *root) {
    struct field name = request->fields[0];
    const char *changed = root;
    char hex[65] = "", *target = request->count > 2 ? copy_string(request->fields[2]) : NULL;
    int failed = 0;
    if (is(name, "put"))
        failed = put_tree(root, 0);
    else if (is(name, "copy"))
        failed = copy_tree(root, changed = target);
    else if (is(name, "wipe"))
        failed = wipe_tree(root);
    failed = failed || sum_tree(changed, hex);
    int written = answer(failed, text(hex));
    free(target);
    return failed ? -1 : written; /* what follows may be the rest of a tree */
}

static int handle(const struct frame *request) {
    struct field name = request->fields[0];
    if (is(name, "run") || is(name, "cancel"))
        return relay(request, 1);
    if (request->count < 2 + (is(name, "copy") || is(name, "read") || is(name, "write")))
        return -1;
    char *path = copy_string(request->fields[1]);
    int failed = is(name, "read") || is(name, "write") ? on_file(request, path) : on_tree(request, path);
    free(path);
    return failed;
}

int call(void) {
    for (;;) {
        struct frame request;
        int got = read_frame(0, &request);
        if (got == 0)
            return 0;
        if (got < 0 || request.count == 0)
            return 74;
        int end = is(request.fields[0], "end"), failed = end ? 0 : handle(&request);
        free_frame(&request);
        if (end || failed)
            return failed ? 75 : 0;
    }
}
