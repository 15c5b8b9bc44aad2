/* What processes share by the kernel's own names, and leave behind: shared memory, semaphores and queues of System V and POSIX. */
#ifndef IPC_H
#define IPC_H

void remove_ipc(void);

#endif
