#define _GNU_SOURCE
#include "serve.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "processes.h"

enum { TICK_MS = 50, STALL_S = 10, NAPS = 500, NAP_US = 10000, RUN_FIELDS = 10, STREAM = 9 };

struct server {
    int listener, children;
    int client; /* who waits for the command; -1: nobody */
    int stream; /* whether the client wants output as it comes */
    int full;   /* whether the client cannot take more output now, so that none is read */
    struct command command;
    char chunk[CHUNK];
};

static int name_of(struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    strcpy(address->sun_path + 1, "gagar"); /* no file: the files are the policy's */
    return sizeof address->sun_family + 1 + strlen("gagar");
}

static int open_socket(int (*use)(int, const struct sockaddr *, socklen_t)) {
    struct sockaddr_un address;
    int size = name_of(&address), fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int nap = 0; use(fd, (struct sockaddr *)&address, size) < 0; nap++) { /* process 1 may have just begun */
        if (nap == NAPS)
            _exit(72);
        usleep(NAP_US);
    }
    return fd;
}

static void leave(struct server *server) {
    if (server->client >= 0)
        close(server->client);
    server->client = -1;
    server->full = 0;
}

static void answer(struct server *server) {
    if (server->client >= 0)
        command_answer(&server->command, server->client);
    leave(server);
}

static void finish(struct server *server, int status, const char *outcome, const char *note) {
    command_finish(&server->command, status, outcome, note);
    answer(server);
}

static void run(struct server *server, int client, const struct frame *request) {
    long long id = number(request->fields[1]);
    if (id < server->command.id || (id > server->command.id && server->command.running)) {
        struct field refusal[] = {text("refused"), text(id < server->command.id ? "an old command" : "a command is running")};
        write_frame(client, 2, refusal);
        close(client);
        return;
    }
    leave(server); /* whoever waited has sent it again, for the connection was lost */
    server->client = client;
    server->stream = is(request->fields[STREAM], "1");
    if (id > server->command.id)
        command_begin(&server->command, request);
    if (!server->command.running)
        answer(server);
}

static void cancel(struct server *server, int client, long long id) {
    if (id >= server->command.id) { /* else it is late: another command has begun */
        if (server->command.running)
            finish(server, 0, "timed_out", "");
        else
            kill_processes(0, 0);
        if (id > server->command.id)
            command_refuse(&server->command, id);
    }
    struct field done[] = {text("ok")};
    write_frame(client, 1, done);
    close(client);
}

static int trusted(int client) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct timeval patience = {.tv_sec = STALL_S};
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && from_outside(peer.pid);
}

static void receive(struct server *server) {
    struct frame request;
    int client = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
        return;
    if (!trusted(client) || read_frame(client, &request) <= 0) {
        close(client);
        return;
    }
    if (request.count == RUN_FIELDS && is(request.fields[0], "run"))
        run(server, client, &request);
    else if (request.count == 2 && is(request.fields[0], "cancel"))
        cancel(server, client, number(request.fields[1]));
    else
        close(client);
    free_frame(&request);
}

static void reap(struct server *server) {
    struct signalfd_siginfo seen;
    if (read(server->children, &seen, sizeof seen) < 0)
        return;
    int status, ended = 0, own = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        if (pid == server->command.child) {
            ended = 1;
            own = status;
        }
    if (ended && server->command.running)
        finish(server, own, "exited", "");
}

static void pull(struct server *server, struct capture *capture, const char *name) {
    struct pollfd client = {server->client, POLLOUT, 0};
    int streams = server->client >= 0 && server->stream;
    if (streams && poll(&client, 1, 0) == 0) {
        server->full = 1;
        return;
    }
    int size = capture_pull(capture, server->chunk);
    struct field output[] = {text(name), {server->chunk, size > 0 ? size : 0}};
    if (streams && size > 0 && write_frame(server->client, 2, output) < 0)
        leave(server);
}

/* What stops a command that has not ended. */
static void look(struct server *server) {
    static char note[64];
    struct command *command = &server->command;
    if (!command->running)
        return;
    if (now() >= command->deadline)
        finish(server, 0, "timed_out", "");
    else if (command->most_processes && count_processes() > command->most_processes) {
        strcpy(note, "killed: too many processes\n");
        finish(server, 0, "exited", note);
    }
}

static void turn(struct server *server) {
    struct command *command = &server->command;
    short output = command->running && !server->full ? POLLIN : 0;
    struct pollfd ready[] = {
        {server->listener, POLLIN, 0},
        {server->children, POLLIN, 0},
        {server->client, POLLRDHUP | (server->full ? POLLOUT : 0), 0},
        {output ? command->out.source : -1, output, 0},
        {output ? command->err.source : -1, output, 0},
    };
    poll(ready, 5, command->running ? TICK_MS : -1);
    if (ready[2].revents & (POLLRDHUP | POLLHUP | POLLERR))
        leave(server);
    else if (ready[2].revents & POLLOUT)
        server->full = 0;
    if (ready[3].revents)
        pull(server, &command->out, "stdout");
    if (ready[4].revents)
        pull(server, &command->err, "stderr");
    if (ready[1].revents)
        reap(server);
    if (ready[0].revents)
        receive(server);
    look(server);
}

static int hear_children(int flags) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &children, flags);
}

static void forget_cluster(void) {
    extern char **environ;
    for (char **variable = environ; *variable;) {
        char *name = strndup(*variable, strcspn(*variable, "="));
        if (strncmp(name, "KUBERNETES_", 11) == 0)
            unsetenv(name);
        else
            variable++;
        free(name);
    }
}

void serve(void) {
    static struct server server = {.client = -1, .command.out.source = -1, .command.err.source = -1};
    prctl(PR_SET_DUMPABLE, 0); /* the policy has our user: keep it from tracing us */
    forget_cluster();
    server.children = hear_children(SFD_CLOEXEC | SFD_NONBLOCK);
    server.listener = open_socket(bind);
    listen(server.listener, 16);
    for (;;)
        turn(&server);
}

void idle(void) {
    struct signalfd_siginfo seen;
    int children = hear_children(SFD_CLOEXEC);
    while (read(children, &seen, sizeof seen) > 0)
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    _exit(73);
}

int relay(const struct frame *request, int out) {
    char chunk[CHUNK];
    ssize_t got;
    int server = open_socket(connect);
    if (write_frame(server, request->count, request->fields) < 0)
        return -1;
    while ((got = read(server, chunk, sizeof chunk)) > 0)
        if (write_exactly(out, chunk, got) < 0)
            return -1;
    close(server);
    return got < 0 ? -1 : 0;
}
