#include "ipc.h"

#include <stdio.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

#include "trees.h"

static void remove_memory(int id) { shmctl(id, IPC_RMID, NULL); }
static void remove_semaphores(int id) { semctl(id, 0, IPC_RMID); }
static void remove_queue(int id) { msgctl(id, IPC_RMID, NULL); }

/* Each line has a key and an identifier first; that of the names at the top is no number. */
static void each(const char *path, void (*visit)(int)) {
    char line[512];
    int id;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%*d %d", &id) == 1)
            visit(id);
    if (file)
        fclose(file);
}

void remove_ipc(void) {
    each("/proc/sysvipc/shm", remove_memory);
    each("/proc/sysvipc/sem", remove_semaphores);
    each("/proc/sysvipc/msg", remove_queue);
    if (access("/dev/mqueue", W_OK) == 0)
        wipe_tree("/dev/mqueue");
}
