/* Process 1, and how those that come from outside reach it. */
#ifndef SERVE_H
#define SERVE_H

#include "frames.h"

/* Reap, and answer requests from outside; does not return. */
void serve(void);

/* Reap, and nothing else; does not return. */
void idle(void);

/* Hand a request to process 1 and what it answers to `out`: 0, or -1 where process 1 cannot be reached or `out` is gone. */
int relay(const struct frame *request, int out);

#endif
