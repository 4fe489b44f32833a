/* cache.c - see cache.h. */
#include "cache.h"

#include <stdlib.h>

static bool open_level(cache_level *level, uint64_t line_bytes)
{
    if (level->bytes == 0u)
        return true;
    if (level->ways == 0u || level->bytes % (level->ways * line_bytes) != 0u)
        return false;
    level->sets = level->bytes / (level->ways * line_bytes);
    level->lines = calloc((size_t)(level->sets * level->ways), sizeof *level->lines);
    return level->lines != NULL;
}

bool cache_open(cache *c)
{
    return c->line_bytes > 0u && open_level(&c->l1, c->line_bytes) &&
           open_level(&c->l2, c->line_bytes);
}

/* Whether the line was there; it is afterwards. */
static bool find(cache_level *level, uint64_t line)
{
    uint64_t *const way = level->lines + line % level->sets * level->ways;
    uint64_t before = line + 1u;
    for (uint64_t i = 0; i < level->ways; i++) {
        const uint64_t here = way[i];
        way[i] = before; /* each one moves back until the place of the found one, or the last */
        if (here == line + 1u)
            return true;
        before = here;
    }
    level->misses++;
    return false;
}

void cache_access(cache *c, uint64_t address, uint64_t bytes)
{
    const uint64_t end = (address + bytes - 1u) / c->line_bytes;
    for (uint64_t line = address / c->line_bytes; line <= end; line++) {
        if (line + 1u == c->last)
            continue;
        c->last = line + 1u;
        if (!find(&c->l1, line) && c->l2.lines != NULL)
            (void)find(&c->l2, line);
    }
}
