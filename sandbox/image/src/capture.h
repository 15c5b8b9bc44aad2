/* What is kept of one output of a command: head and tail, a number of bytes in all. */
#ifndef CAPTURE_H
#define CAPTURE_H

#include <stddef.h>

#include "frames.h"

struct capture {
    int source; /* the end of the pipe to read from; -1 once it has ended */
    size_t head_room, tail_room, head_size, tail_size, tail_at;
    unsigned long long cut;
    char *head, *tail;
};

/* The end for the command to write to; -1 where there are no pipes to be had. */
int capture_begin(struct capture *capture, size_t limit);

/* Take a chunk of what is there: its size, 0 where there is nothing, -1 where the output has ended. `chunk` has CHUNK bytes. */
int capture_pull(struct capture *capture, char *chunk);

/* Head and tail, with a line between them where something was cut; to be freed. */
struct field capture_text(const struct capture *capture);
void capture_end(struct capture *capture);

#endif
