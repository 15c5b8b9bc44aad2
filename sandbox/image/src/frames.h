/* Frames: a 4-byte length (big endian), then fields, each behind a 4-byte length of its own. */
#ifndef FRAMES_H
#define FRAMES_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_FIELDS = 12, CHUNK = 32768 };

struct field {
    const char *data;
    size_t size;
};

struct frame {
    char *body;
    int count;
    struct field fields[MAX_FIELDS];
};

/* A field of a string, without its end. */
struct field text(const char *string);

/* 1: a frame, to be freed; 0: the input has ended; -1: an error, or no frame. */
int read_frame(int fd, struct frame *frame);
void free_frame(struct frame *frame);

/* 0, or -1 where the output is gone. */
int write_frame(int fd, int count, const struct field *fields);

/* The size of a frame's body. */
size_t frame_size(int count, const struct field *fields);

/* The field as a string of its own, to be freed. */
char *copy_string(struct field field);
int is(struct field field, const char *string);
long long number(struct field field);

int read_exactly(int fd, void *data, size_t size); /* 1, 0 at the end, -1 */
int write_exactly(int fd, const void *data, size_t size);
void put_u32(unsigned char *at, uint32_t value);
void *allocate(size_t size);

#endif
