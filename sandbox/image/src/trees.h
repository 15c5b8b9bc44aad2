/* Trees of files: folders, plain files and links, with their permissions. Nothing may change them meanwhile. Each function gives 0,
   or -1 and errno. Links are never followed, but in the path of a root itself. */
#ifndef TREES_H
#define TREES_H

/* Remove everything below `root`, which stays, or is made. */
int wipe_tree(const char *root);

/* Make the tree below `target` that below `source`, where the owner may read everything; sockets, pipes and devices are left out. */
int copy_tree(const char *source, const char *target);

/* The digest of a tree: SHA-256 of what `put_tree` reads for it, without the end. */
int sum_tree(const char *root, char hex[65]);

/* Make the tree below `root` what comes from `fd`: for each entry, folders first and in the order of their names' bytes, a frame of
   kind (d, f, l, or o for others, which cannot be put), permissions in octal, path and size, and then so many bytes: a file's
   contents, or where a link points to; after the last a frame of the word "end". */
int put_tree(const char *root, int fd);

#endif
