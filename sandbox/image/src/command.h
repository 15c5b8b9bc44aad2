/* One command: what was asked, what became of it. */
#ifndef COMMAND_H
#define COMMAND_H

#include <sys/types.h>

#include "capture.h"
#include "frames.h"

struct command {
    long long id; /* 0: none so far */
    int running;
    pid_t child;
    double deadline;
    int most_processes;
    long long kills_before;
    struct capture out, err;
    /* once it has ended: */
    const char *outcome;
    int exit_code;
    const char *note;
};

double now(void); /* seconds */

/* Begin what the frame of a `run` asks for. The command before it is forgotten. */
void command_begin(struct command *command, const struct frame *frame);

/* It ended by itself with `status`, or has to (`outcome`, and a note for its errors): leave nothing of it running. */
void command_finish(struct command *command, int status, const char *outcome, const char *note);

/* A command that never ran and never will. */
void command_refuse(struct command *command, long long id);

int command_answer(const struct command *command, int fd);

#endif
