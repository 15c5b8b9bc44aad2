/* The processes of this container. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include <sys/types.h>

/* Whether a process was put into this container from outside, as those of an exec are. No process inside can seem so: its parent is
   inside too. */
int from_outside(pid_t pid);

/* How many processes there are beside process 1 and those from outside. */
int count_processes(void);

/* Kill and reap all processes but this one, which is process 1, and those from outside, and remove what they left in the kernel.
   Gives the status of `child`, where it was among them, else `status`. */
int kill_processes(pid_t child, int status);

/* How often the kernel has killed something here for want of memory; 0 where no control group tells. */
long long memory_kills(void);

#endif
