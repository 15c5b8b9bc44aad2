#include "frames.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FRAME = 256 << 20 };

void *allocate(size_t size) {
    void *data = malloc(size ? size : 1);
    if (!data)
        _exit(71);
    return data;
}

void put_u32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = value >> (24 - 8 * i);
}

static uint32_t get_u32(const char *at) {
    const unsigned char *bytes = (const unsigned char *)at;
    return (uint32_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

int read_exactly(int fd, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t got = read(fd, (char *)data + done, size - done);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR)
            return -1;
        done += got > 0 ? got : 0;
    }
    return 1;
}

int write_exactly(int fd, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t put = write(fd, (const char *)data + done, size - done);
        if (put < 0 && errno != EINTR)
            return -1;
        done += put > 0 ? put : 0;
    }
    return 0;
}

static int split(struct frame *frame, size_t size) {
    for (size_t at = 0; at < size;) {
        if (size - at < 4 || frame->count == MAX_FIELDS)
            return -1;
        size_t length = get_u32(frame->body + at);
        if (length > size - at - 4)
            return -1;
        frame->fields[frame->count++] = (struct field){frame->body + at + 4, length};
        at += 4 + length;
    }
    return 1;
}

int read_frame(int fd, struct frame *frame) {
    char prefix[4];
    *frame = (struct frame){0};
    int got = read_exactly(fd, prefix, sizeof prefix);
    if (got <= 0)
        return got;
    size_t size = get_u32(prefix);
    if (size > MAX_FRAME)
        return -1;
    frame->body = allocate(size);
    got = read_exactly(fd, frame->body, size);
    if (got > 0)
        got = split(frame, size);
    else
        got = -1;
    if (got < 0)
        free_frame(frame);
    return got;
}

void free_frame(struct frame *frame) {
    free(frame->body);
    *frame = (struct frame){0};
}

size_t frame_size(int count, const struct field *fields) {
    size_t size = 0;
    for (int i = 0; i < count; i++)
        size += 4 + fields[i].size;
    return size;
}

int write_frame(int fd, int count, const struct field *fields) {
    size_t size = frame_size(count, fields), at = 4;
    unsigned char *frame = allocate(4 + size);
    put_u32(frame, size);
    for (int i = 0; i < count; i++) {
        put_u32(frame + at, fields[i].size);
        memcpy(frame + at + 4, fields[i].data, fields[i].size);
        at += 4 + fields[i].size;
    }
    int failed = write_exactly(fd, frame, at);
    free(frame);
    return failed;
}

struct field text(const char *string) { return (struct field){string, strlen(string)}; }

char *copy_string(struct field field) {
    char *string = allocate(field.size + 1);
    memcpy(string, field.data, field.size);
    string[field.size] = 0;
    return string;
}

int is(struct field field, const char *string) {
    return field.size == strlen(string) && memcmp(field.data, string, field.size) == 0;
}

long long number(struct field field) {
    char *string = copy_string(field);
    long long value = atoll(string);
    free(string);
    return value;
}
