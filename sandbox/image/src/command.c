#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "processes.h"

/* Fields of a `run`. */
enum { RUN, ID, TIMEOUT_MS, OUTPUT_LIMIT, WORDS, VARIABLES, INPUT, PROCESSES, FILE_BYTES };

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* The strings of a list, each ended by a NUL, behind those of `before`; ended by NULL. */
static char **strings(struct field list, char **before) {
    size_t count = 0, known = 0;
    while (before && before[known])
        known++;
    char *data = copy_string(list), **found = allocate((known + list.size + 1) * sizeof *found);
    memcpy(found, before ? before : found, known * sizeof *found);
    for (size_t at = 0; at < list.size; at += strlen(data + at) + 1)
        found[known + count++] = data + at;
    found[known + count] = NULL;
    return found;
}

static int input(struct field data) {
    if (!data.size)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int file = memfd_create("stdin", MFD_CLOEXEC);
    if (file >= 0 && write_exactly(file, data.data, data.size) == 0)
        lseek(file, 0, SEEK_SET);
    return file;
}

static void limit(int kind, rlim_t value) {
    struct rlimit now;
    if (getrlimit(kind, &now) == 0 && value < now.rlim_max)
        setrlimit(kind, &(struct rlimit){value, value});
}

/* In the child; gives errno where the command cannot run. */
static int become(const struct frame *frame, int in, int out, int err) {
    sigset_t none;
    char **words = strings(frame->fields[WORDS], NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        return errno;
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, number(frame->fields[FILE_BYTES]));
    char **variables = strings(frame->fields[VARIABLES], NULL);
    for (; *variables; variables++)
        putenv(*variables);
    if (!*words)
        return ENOENT;
    execvp(words[0], words);
    return errno;
}

/* Gives the child, or -1 and errno. */
static pid_t spawn(const struct frame *frame, int in, int out, int err) {
    int told[2], reason = 0;
    if (in < 0 || out < 0 || err < 0 || pipe2(told, O_CLOEXEC) < 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        reason = become(frame, in, out, err);
        write_exactly(told[1], &reason, sizeof reason);
        _exit(127);
    }
    close(told[1]);
    if (child > 0 && read_exactly(told[0], &reason, sizeof reason) > 0) {
        waitpid(child, NULL, 0);
        child = -1;
    }
    close(told[0]);
    errno = reason ? reason : errno;
    return child;
}

static void close_all(int in, int out, int err) {
    int ends[] = {in, out, err};
    for (int i = 0; i < 3; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

void command_begin(struct command *command, const struct frame *frame) {
    const struct field *fields = frame->fields;
    command_refuse(command, number(fields[ID]));
    int in = input(fields[INPUT]);
    int out = capture_begin(&command->out, number(fields[OUTPUT_LIMIT]));
    int err = capture_begin(&command->err, number(fields[OUTPUT_LIMIT]));
    command->most_processes = number(fields[PROCESSES]);
    command->kills_before = memory_kills();
    command->child = spawn(frame, in, out, err);
    command->deadline = now() + number(fields[TIMEOUT_MS]) / 1e3;
    command->running = command->child > 0;
    if (!command->running) {
        char *name = copy_string(fields[WORDS]);
        command->outcome = "exited";
        command->exit_code = errno == ENOENT ? 127 : 126;
        dprintf(err, "%.200s: %s\n", name, strerror(errno)); /* nobody reads it yet */
        free(name);
    }
    close_all(in, out, err);
    if (!command->running)
        command_finish(command, W_EXITCODE(command->exit_code, 0), "exited", "");
}

static void drain(struct capture *capture) {
    char chunk[CHUNK];
    while (capture_pull(capture, chunk) > 0)
        ;
}

void command_finish(struct command *command, int status, const char *outcome, const char *note) {
    status = kill_processes(command->child, status);
    drain(&command->out);
    drain(&command->err);
    command->running = 0;
    command->outcome = memory_kills() > command->kills_before ? "out_of_memory" : outcome;
    command->exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    command->note = note;
}

void command_refuse(struct command *command, long long id) {
    capture_end(&command->out);
    capture_end(&command->err);
    *command = (struct command){.id = id, .outcome = "timed_out", .exit_code = 137, .note = "", .out.source = -1, .err.source = -1};
}

int command_answer(const struct command *command, int fd) {
    char code[16];
    snprintf(code, sizeof code, "%d", command->exit_code);
    struct field out = capture_text(&command->out), err = capture_text(&command->err);
    const char *cut = command->out.cut || command->err.cut ? "1" : "0";
    struct field fields[] = {text("done"), text(command->outcome), text(code), text(cut), out, err, text(command->note)};
    int failed = write_frame(fd, 7, fields);
    free((char *)out.data);
    free((char *)err.data);
    return failed;
}
