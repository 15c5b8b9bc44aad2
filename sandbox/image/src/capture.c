#define _GNU_SOURCE
#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int capture_begin(struct capture *capture, size_t limit) {
    int ends[2];
    *capture = (struct capture){.source = -1, .head_room = limit / 2, .tail_room = limit - limit / 2};
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    capture->source = ends[0];
    capture->head = allocate(capture->head_room);
    capture->tail = allocate(capture->tail_room);
    return ends[1];
}

/* The tail is a ring: `tail_at` is where the next byte goes. */
static void keep(struct capture *capture, const char *data, size_t size) {
    size_t room = capture->head_room - capture->head_size, taken = size < room ? size : room;
    memcpy(capture->head + capture->head_size, data, taken);
    capture->head_size += taken;
    for (size_t i = taken; i < size; i++) {
        if (capture->tail_size == capture->tail_room)
            capture->cut++;
        else
            capture->tail_size++;
        if (capture->tail_room) {
            capture->tail[capture->tail_at] = data[i];
            capture->tail_at = (capture->tail_at + 1) % capture->tail_room;
        }
    }
}

int capture_pull(struct capture *capture, char *chunk) {
    if (capture->source < 0)
        return -1;
    ssize_t got = read(capture->source, chunk, CHUNK);
    if (got > 0)
        keep(capture, chunk, got);
    else if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    else {
        close(capture->source);
        capture->source = -1;
        return -1;
    }
    return got;
}

struct field capture_text(const struct capture *capture) {
    char note[64] = "";
    if (capture->cut)
        snprintf(note, sizeof note, "\n[... %llu bytes cut ...]\n", capture->cut);
    size_t noted = strlen(note);
    char *data = allocate(capture->head_size + noted + capture->tail_size);
    char *tail = data + capture->head_size + noted;
    size_t oldest = capture->tail_size == capture->tail_room ? capture->tail_at : 0;
    memcpy(data, capture->head, capture->head_size);
    memcpy(data + capture->head_size, note, noted);
    memcpy(tail, capture->tail + oldest, capture->tail_size - oldest);
    memcpy(tail + capture->tail_size - oldest, capture->tail, oldest);
    return (struct field){data, tail + capture->tail_size - data};
}

void capture_end(struct capture *capture) {
    if (capture->source >= 0)
        close(capture->source);
    free(capture->head);
    free(capture->tail);
    *capture = (struct capture){.source = -1};
}
