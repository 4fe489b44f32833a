/* plugin_api.h - the part of QEMU's TCG plugin interface that insn_cost.c uses.
 *
 * Version 1 of the interface, which QEMU 4.2 to 8.2 have. QEMU resolves these names when it loads
 * the plugin; declaring them here spares its header, which few distributions package.
 */
#ifndef PLUGIN_API_H
#define PLUGIN_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLUGIN_API_VERSION 1
#define PLUGIN_EXPORT      __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

/* What the guest is; only the first member is read. */
typedef struct qemu_info_t {
    const char *target_name;
} qemu_info_t;

enum { QEMU_PLUGIN_CB_NO_REGS = 0 };
enum { QEMU_PLUGIN_MEM_RW = 3 };
enum { QEMU_PLUGIN_INLINE_ADD_U64 = 0 };

typedef void (*plugin_vcpu_cb)(qemu_plugin_id_t id, unsigned vcpu);
typedef void (*plugin_tb_cb)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*plugin_udata_cb)(qemu_plugin_id_t id, void *data);
typedef void (*plugin_insn_cb)(unsigned vcpu, void *data);
typedef void (*plugin_mem_cb)(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address,
                              void *data);

/* Instructions of a translation block: a straight run of guest code that is translated at once. */
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);

void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t id, plugin_vcpu_cb cb);
void qemu_plugin_register_vcpu_exit_cb(qemu_plugin_id_t id, plugin_vcpu_cb cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, plugin_tb_cb cb);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, plugin_udata_cb cb, void *data);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op, void *counter,
                                              uint64_t value);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, plugin_insn_cb cb,
                                            int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, plugin_mem_cb cb, int flags,
                                      int accesses, void *data);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);

#endif
