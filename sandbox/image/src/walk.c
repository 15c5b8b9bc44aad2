#define _GNU_SOURCE
#include "walk.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frames.h"

int open_folder(int at, const char *name) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int open_root(const char *root) { return open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

void free_names(char **names) {
    for (char **name = names; *name; name++)
        free(*name);
    free(names);
}

char **list_names(int folder) {
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
