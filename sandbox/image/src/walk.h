/* Going through a folder. */
#ifndef WALK_H
#define WALK_H

/* Descriptors, or -1 and errno; a link is no folder, but may lead to a root. */
int open_folder(int at, const char *name);
int open_root(const char *root);

/* The names in a folder, sorted by their bytes and ended by NULL, to be freed; NULL where it cannot be read. */
char **list_names(int folder);
void free_names(char **names);

#endif
