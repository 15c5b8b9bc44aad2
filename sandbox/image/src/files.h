/* Single files, on behalf of the host: plain ones only, and without ever blocking. Each function gives 0, or -1 and errno. */
#ifndef FILES_H
#define FILES_H

#include "frames.h"

/* The contents of a file that is not larger than `limit`, to be freed. */
int read_file(const char *path, size_t limit, struct field *contents);

/* Create or replace a file, its folders included; an existing one keeps its permissions. */
int write_file(const char *path, struct field contents);

#endif
