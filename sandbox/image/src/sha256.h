/* SHA-256, FIPS 180-4. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t total;
    unsigned char block[64];
};

void sha256_begin(struct sha256 *digest);
void sha256_add(struct sha256 *digest, const void *data, size_t size);
void sha256_hex(struct sha256 *digest, char hex[65]);

#endif
