/* cache.h - two levels of data cache: set-associative, least recently used out first.
 *
 * Stores allocate as loads do; there are no prefetchers and no write-backs. Indexed by the guest's
 * virtual addresses, which QEMU lays out the same in every run.
 */
#ifndef CACHE_H
#define CACHE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cache_level {
    uint64_t bytes, ways, sets;
    uint64_t *lines; /* [sets][ways]: number of the line + 1, the last used first; 0 is none */
    uint64_t misses;
} cache_level;

typedef struct cache {
    cache_level l1, l2; /* of 0 bytes: there is no such level */
    uint64_t line_bytes;
    uint64_t last; /* line + 1 of the last access */
} cache;

/* False where a size is no whole number of sets, or there is no memory. */
bool cache_open(cache *c);

void cache_access(cache *c, uint64_t address, uint64_t bytes);

#endif
