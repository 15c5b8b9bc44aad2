#define _GNU_SOURCE
#include "processes.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc.h"

enum { PATIENCE = 50, NAP_US = 1000 };

int from_outside(pid_t pid) {
    char path[32], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t size = read(file, line, sizeof line - 1);
    close(file);
    char *after = size > 0 ? strrchr(line, ')') : NULL; /* the name before it can hold anything */
    int parent = -1;
    return after && sscanf(after, ") %*c %d", &parent) == 1 && parent == 0;
}

static int each_process(void (*visit)(pid_t)) {
    DIR *folder = opendir("/proc");
    int count = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? atoi(entry->d_name) : 0;
        if (pid > 1 && !from_outside(pid)) {
            count++;
            if (visit)
                visit(pid);
        }
    }
    if (folder)
        closedir(folder);
    return count;
}

static void kill_one(pid_t pid) { kill(pid, SIGKILL); }

int count_processes(void) { return each_process(NULL); }

int kill_processes(pid_t child, int status) {
    for (int pass = 0;; pass++) {
        int ended, at_once = pass >= PATIENCE; /* what forks faster than it is listed has to be stopped first */
        if (at_once)
            kill(-1, SIGSTOP);
        each_process(kill_one);
        if (at_once)
            kill(-1, SIGCONT);
        pid_t pid;
        while ((pid = waitpid(-1, &ended, WNOHANG)) > 0)
            if (pid == child)
                status = ended;
        if (pid < 0) { /* every process inside is a descendant: none is left */
            kill(-1, SIGCONT); /* those from outside: a command can have stopped who asked for it */
            remove_ipc();
            return status;
        }
        usleep(NAP_US);
    }
}

long long memory_kills(void) {
    static const char *const FILES[] = {"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        FILE *file = fopen(FILES[i], "re");
        char name[64];
        long long value, kills = -1;
        while (file && fscanf(file, "%63s %lld", name, &value) == 2)
            if (!strcmp(name, "oom_kill"))
                kills = value;
        if (file)
            fclose(file);
        if (kills >= 0)
            return kills;
    }
    return 0;
}
