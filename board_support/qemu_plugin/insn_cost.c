/* insn_cost.c - a plugin for QEMU's user-mode emulators of ARM: what a marked part of a program
 * costs.
 *
 * Counts executed operations by class, the cycles that their issue takes in a core whose width and
 * unit costs are given, and the misses of a simulated data cache. A program marks what to count:
 * hint #0x50 begins a region, hint #0x51 ends it; on all cores these do nothing. Options, each one
 * KEY=VALUE behind the plugin's path:
 *
 *   out=FILE                   absolute; each region's end appends one line of JSON to it
 *   l1=BYTES:WAYS l2=BYTES:WAYS line=BYTES   data caches; without l1 none is simulated
 *   issue=MILLICYCLES          that one operation takes of the front end
 *   overlap=PERMILLE           of the shorter units' time hidden behind that of the busiest one
 *   cost=CLASS:UNIT:MILLICYCLES   time of one operation in its unit (0 to UNITS - 1)
 *
 * Counts are per translation block, which costs one addition in the emulated code; they are exact
 * for a program of one thread. What a region holds of its first and last block is counted exactly,
 * too. Memory accesses call back only where a cache is simulated. The file is opened for each line,
 * so that a program may close what descriptors it likes; one write() appends a line whole.
 */
#define _POSIX_C_SOURCE 200809L
#include "cache.h"
#include "classify.h"
#include "plugin_api.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNITS     8
#define LINE_SIZE 2048

PLUGIN_EXPORT extern int qemu_plugin_version;
int qemu_plugin_version = PLUGIN_API_VERSION;

static const char *const class_names[CLASSES] = {
    "fma",   "dot",         "vector_mul",   "vector_float", "vector", "vector_div",
    "float", "vector_load", "vector_store", "load",         "store",  "prefetch",
    "alu",   "mul",         "div",          "branch",       "system",
};

typedef struct counts {
    uint64_t instructions, millicycles, operations[CLASSES];
} counts;

typedef struct block {
    struct block *next;
    uint64_t runs;
    uint64_t before; /* runs when the region began */
    counts each;     /* of one run */
} block;

/* A marker in a block: what of the block comes behind it, itself included where it ends a region.
 */
typedef struct marker {
    counts rest;
} marker;

static char out_path[PATH_MAX];
static bool arm32, thumb;
static cache data_cache;
static uint64_t issue_cost, overlap, unit_cost[CLASSES];
static unsigned unit_of[CLASSES];
static block *blocks;

static struct {
    bool open;
    pid_t process;
    unsigned index; /* of the last region that this process ended */
    int threads;    /* most at a time since the region began */
    counts more;    /* parts of blocks at its edges; wraps around below 0 */
    uint64_t l1_misses, l2_misses;
} region;
static int threads;

static void stop(const char *what)
{
    (void)fprintf(stderr, "insn_cost: %s\n", what);
    exit(EXIT_FAILURE);
}

static void *zeroed(size_t bytes)
{
    void *const memory = calloc(1, bytes);
    if (memory == NULL)
        stop("no memory");
    return memory;
}

/* The busiest unit bounds a block's throughput; of the others' time a part shows. */
static uint64_t issue_millicycles(const counts *c)
{
    uint64_t unit[UNITS + 1] = {0}, longest = 0, sum = 0;
    for (unsigned k = 0; k < CLASSES; k++) {
        unit[unit_of[k]] += c->operations[k] * unit_cost[k];
        unit[UNITS] += c->operations[k] * issue_cost;
    }
    for (unsigned u = 0; u <= UNITS; u++) {
        sum += unit[u];
        longest = unit[u] > longest ? unit[u] : longest;
    }
    return longest + (sum - longest) * (1000u - overlap) / 1000u;
}

static void add(counts *to, const counts *from, uint64_t times)
{
    to->instructions += times * from->instructions;
    to->millicycles += times * from->millicycles;
    for (unsigned k = 0; k < CLASSES; k++)
        to->operations[k] += times * from->operations[k];
}

/* ---- what a region cost ---- */

static void write_line(const char *text, size_t length)
{
    const int file = open(out_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || write(file, text, length) != (ssize_t)length)
        stop("cannot write its results");
    (void)close(file);
}

static void report(bool complete)
{
    char text[LINE_SIZE];
    int n;
    counts all = region.more;
    for (const block *b = blocks; b != NULL; b = b->next)
        add(&all, &b->each, b->runs - b->before);
    region.index++;
    n = snprintf(text, sizeof text,
                 "{\"pid\":%ld,\"region\":%u,\"complete\":%s,\"threads\":%d,"
                 "\"instructions\":%" PRIu64 ",\"millicycles\":%" PRIu64 ",\"operations\":{",
                 (long)region.process, region.index, complete ? "true" : "false", region.threads,
                 all.instructions, all.millicycles);
    for (unsigned k = 0; k < CLASSES; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s\"%s\":%" PRIu64, k > 0u ? "," : "",
                      class_names[k], all.operations[k]);
    n += snprintf(text + n, sizeof text - (size_t)n, "}");
    if (data_cache.l1.lines != NULL)
        n += snprintf(text + n, sizeof text - (size_t)n, ",\"l1_misses\":%" PRIu64,
                      data_cache.l1.misses - region.l1_misses);
    if (data_cache.l2.lines != NULL)
        n += snprintf(text + n, sizeof text - (size_t)n, ",\"l2_misses\":%" PRIu64,
                      data_cache.l2.misses - region.l2_misses);
    n += snprintf(text + n, sizeof text - (size_t)n, "}\n");
    write_line(text, (size_t)n);
}

static void on_start(unsigned vcpu, void *data)
{
    const marker *const mark = data;
    (void)vcpu;
    if (region.process != getpid()) {
        region.process = getpid();
        region.index = 0;
    }
    for (block *b = blocks; b != NULL; b = b->next)
        b->before = b->runs;
    region.more = mark->rest;
    region.threads = threads;
    region.l1_misses = data_cache.l1.misses;
    region.l2_misses = data_cache.l2.misses;
    region.open = true;
}

static void on_stop(unsigned vcpu, void *data)
{
    const marker *const mark = data;
    (void)vcpu;
    if (!region.open || region.process != getpid())
        return; /* none began, or in the process that this one was forked from */
    add(&region.more, &mark->rest, UINT64_MAX); /* once less */
    report(true);
    region.open = false;
}

static void on_exit_of_guest(qemu_plugin_id_t id, void *data)
{
    (void)id, (void)data;
    if (region.open && region.process == getpid())
        report(false);
}

static void on_thread(qemu_plugin_id_t id, unsigned vcpu)
{
    (void)id, (void)vcpu;
    threads++;
    region.threads = threads > region.threads ? threads : region.threads;
}

static void on_thread_end(qemu_plugin_id_t id, unsigned vcpu)
{
    (void)id, (void)vcpu;
    threads--;
}

static void on_access(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    (void)vcpu, (void)data;
    cache_access(&data_cache, address, UINT64_C(1) << qemu_plugin_mem_size_shift(info));
}

/* ---- translation ---- */

static uint32_t halfword(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

/* Whether a block of 32-bit ARM is Thumb. QEMU does not tell; an instruction of two bytes or off a
 * word's boundary does, as does a word that no long Thumb instruction begins with. What could be
 * both is as the block before. */
static bool is_thumb(const struct qemu_plugin_tb *tb)
{
    const size_t length = qemu_plugin_tb_n_insns(tb);
    bool always = false;
    for (size_t i = 0; i < length; i++) {
        const struct qemu_plugin_insn *const at = qemu_plugin_tb_get_insn(tb, i);
        const unsigned char *const bytes = qemu_plugin_insn_data(at);
        if (qemu_plugin_insn_size(at) == 2u || (qemu_plugin_insn_vaddr(at) & 2u) != 0u)
            return true;
        if (halfword(bytes) < 0xe800u)
            return false;
        always = always || (bytes[3] >> 4) < 0xeu; /* rare as an A32 condition */
    }
    return always || thumb;
}

static struct insn classify(const struct qemu_plugin_insn *at)
{
    const unsigned char *const bytes = qemu_plugin_insn_data(at);
    const uint32_t low = halfword(bytes);
    if (qemu_plugin_insn_size(at) == 2u)
        return classify_t16(low);
    const uint32_t high = halfword(bytes + 2);
    if (!arm32)
        return classify_a64(high << 16 | low);
    return thumb ? classify_t32(low << 16 | high) : classify_a32(high << 16 | low);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    const size_t length = qemu_plugin_tb_n_insns(tb);
    block *const b = zeroed(sizeof *b);
    (void)id;
    thumb = arm32 && is_thumb(tb);
    for (size_t i = length; i-- > 0u;) {
        struct qemu_plugin_insn *const at = qemu_plugin_tb_get_insn(tb, i);
        const struct insn insn = classify(at);
        marker *const mark = insn.mark != NO_MARK ? zeroed(sizeof *mark) : NULL;
        if (insn.mark == REGION_START)
            mark->rest = b->each;
        b->each.instructions += insn.instructions;
        b->each.operations[insn.kind] += insn.operations;
        if (mark != NULL) {
            if (insn.mark == REGION_STOP)
                mark->rest = b->each;
            mark->rest.millicycles = issue_millicycles(&mark->rest);
            qemu_plugin_register_vcpu_insn_exec_cb(
                at, insn.mark == REGION_START ? on_start : on_stop, QEMU_PLUGIN_CB_NO_REGS, mark);
        }
        if (data_cache.l1.lines != NULL && accesses_memory(insn))
            qemu_plugin_register_vcpu_mem_cb(at, on_access, QEMU_PLUGIN_CB_NO_REGS,
                                             QEMU_PLUGIN_MEM_RW, NULL);
    }
    b->each.millicycles = issue_millicycles(&b->each);
    b->next = blocks;
    blocks = b;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &b->runs, 1u);
}

/* ---- options ---- */

static bool parse_cost(const char *value)
{
    char name[32];
    unsigned unit;
    uint64_t cost;
    if (sscanf(value, "%31[a-z_]:%u:%" SCNu64, name, &unit, &cost) != 3 || unit >= UNITS)
        return false;
    for (unsigned k = 0; k < CLASSES; k++) {
        if (strcmp(name, class_names[k]) == 0) {
            unit_of[k] = unit;
            unit_cost[k] = cost;
            return true;
        }
    }
    return false;
}

static bool parse(const char *option)
{
    const char *const equals = strchr(option, '=');
    if (equals == NULL)
        return false;
    const char *const value = equals + 1;
    const size_t length = (size_t)(equals - option);
    const struct {
        const char *key;
        cache_level *level;
        uint64_t *number;
    } known[] = {
        {"l1", &data_cache.l1, NULL},
        {"l2", &data_cache.l2, NULL},
        {"line", NULL, &data_cache.line_bytes},
        {"issue", NULL, &issue_cost},
        {"overlap", NULL, &overlap},
    };
    if (strncmp(option, "cost=", 5) == 0)
        return parse_cost(value);
    if (strncmp(option, "out=", 4) == 0)
        return snprintf(out_path, sizeof out_path, "%s", value) < (int)sizeof out_path;
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        if (strlen(known[k].key) != length || strncmp(option, known[k].key, length) != 0)
            continue;
        if (known[k].number != NULL)
            return sscanf(value, "%" SCNu64, known[k].number) == 1;
        return sscanf(value, "%" SCNu64 ":%" SCNu64, &known[k].level->bytes,
                      &known[k].level->ways) == 2;
    }
    return false;
}

PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                      char **argv);

int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    arm32 = strcmp(info->target_name, "arm") == 0;
    if (!arm32 && strcmp(info->target_name, "aarch64") != 0) {
        (void)fprintf(stderr, "insn_cost: it knows no instructions of %s\n", info->target_name);
        return -1;
    }
    data_cache.line_bytes = 64u;
    for (int i = 0; i < argc; i++) {
        if (!parse(argv[i])) {
            (void)fprintf(stderr, "insn_cost: option %s is wrong\n", argv[i]);
            return -1;
        }
    }
    if (out_path[0] != '/' || overlap > 1000u || !cache_open(&data_cache)) {
        (void)fprintf(stderr, "insn_cost: out, overlap or a cache's size is wrong\n");
        return -1;
    }
    qemu_plugin_register_vcpu_init_cb(id, on_thread);
    qemu_plugin_register_vcpu_exit_cb(id, on_thread_end);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, on_exit_of_guest, NULL);
    return 0;
}
