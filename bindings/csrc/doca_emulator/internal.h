/* Shared by the emulator's libraries. Names used across libraries begin with priv_doca_ and are exported under the
 * version node INTERNAL, as DOCA's own are; the rest is local to its library. */
#ifndef OFFPATH_DOCA_EMULATOR_INTERNAL_H
#define OFFPATH_DOCA_EMULATOR_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "prototypes.h"

/* -- strictness ---------------------------------------------------------------------------------------------------- */

/* The first word of every handle. Destroyed handles carry PRIV_DEAD, and their memory is reused only later. */
enum priv_kind {
    PRIV_DEAD = 0x0ddead00,
    PRIV_DEVINFO,
    PRIV_DEV,
    PRIV_DEVINFO_REP,
    PRIV_DEV_REP,
    PRIV_LOG_BACKEND,
    PRIV_MMAP,
    PRIV_INVENTORY,
    PRIV_BUF,
    PRIV_PE,
    PRIV_CTX,
    PRIV_TASK,
    PRIV_DMA,
    PRIV_COMCH_SERVER,
    PRIV_COMCH_CLIENT,
    PRIV_COMCH_CONNECTION,
    PRIV_GPU,
};

/* Prints the error and aborts: with the real library the behaviour would be undefined. */
_Noreturn void priv_doca_strict(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
void priv_doca_live(const char *call, const enum priv_kind *magic, enum priv_kind wanted);
void *priv_doca_new(size_t size, enum priv_kind kind); /* zeroed; NULL when there is no memory */
void priv_doca_retire(void *handle);                   /* the first word becomes PRIV_DEAD */

/* A NULL or dead handle where the header documents no error for it. */
#define LIVE(handle, kind) priv_doca_live(__func__, (handle) ? &(handle)->magic : NULL, (kind))
/* The same where the header documents INVALID_VALUE: only for NULL, because no library can detect a dead handle. */
#define VALID(handle, kind) \
    do { \
        if ((handle) == NULL) \
            return DOCA_ERROR_INVALID_VALUE; \
        LIVE(handle, kind); \
    } while (0)
#define NEEDS(condition, error) \
    do { \
        if (!(condition)) \
            return (error); \
    } while (0)
#define CONTAINER(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* -- settings and faults ------------------------------------------------------------------------------------------- */

uint64_t priv_doca_setting(const char *name, uint64_t otherwise, uint64_t least, uint64_t most);
doca_error_t priv_doca_fault(const char *call); /* the error that this call must return, or DOCA_SUCCESS */
/* First statement of every call that returns a status. */
#define FAULT() \
    do { \
        doca_error_t fault_ = priv_doca_fault(__func__); \
        if (fault_ != DOCA_SUCCESS) \
            return fault_; \
    } while (0)

uint64_t priv_doca_delay_ns(void);         /* of every completion */
bool priv_doca_reorder(uint64_t *random);  /* if a seed determines the order of completions: its next number */
bool priv_doca_copy_fails(void);           /* counts the copies */
bool priv_doca_link_is_cut(void);          /* counts the messages */
bool priv_doca_writes_are_held(void);

/* -- process and folder -------------------------------------------------------------------------------------------- */

uint64_t priv_doca_now_ns(void);
void priv_doca_lock(void); /* one lock for all state shared by threads; held briefly, and never during a callback */
void priv_doca_unlock(void);
int priv_doca_folder(void); /* a descriptor of the rendezvous folder, which the caller closes; -1: none */
void priv_doca_log(uint32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t priv_doca_start_time(pid_t pid); /* 0: no such process */

/* -- devices ------------------------------------------------------------------------------------------------------- */

/* One function of a card, as seen from this side. A card has one on the DPU and one on the host. */
struct priv_function {
    bool on_dpu;
    uint32_t card;
};

struct doca_devinfo {
    enum priv_kind magic;
    struct priv_function function;
};

struct doca_dev {
    enum priv_kind magic;
    struct doca_devinfo info;
    unsigned opened;
    atomic_uint users; /* memory maps, contexts and representors that require it to be open */
    struct doca_dev *next;
};

struct doca_devinfo_rep {
    enum priv_kind magic;
    struct doca_dev *dev;
};

struct doca_dev_rep {
    enum priv_kind magic;
    struct doca_devinfo_rep info;
    atomic_uint users;
};

/* -- memory -------------------------------------------------------------------------------------------------------- */

struct doca_buf {
    enum priv_kind magic;
    struct doca_buf_inventory *inventory;
    struct doca_mmap *mmap;
    uint64_t head, data; /* the exporter's addresses where the map is imported */
    size_t len, data_len;
    uint16_t refcount;
    uint32_t in_flight;     /* submitted tasks that use it */
    struct doca_buf *chain; /* next in its list */
    bool chained;           /* an element of a list, but not its head */
};

/* Whether the device of `dev` may read from or write to this map. */
doca_error_t priv_doca_may_move(struct doca_mmap *mmap, const struct doca_dev *dev, bool writes);
doca_error_t priv_doca_move(struct doca_mmap *to, uint64_t to_addr, struct doca_mmap *from, uint64_t from_addr,
    size_t len);
/* Memory from a GPU library: where the CPU finds the bytes behind [addr, addr + len). */
void priv_doca_gpu_range_add(uint64_t addr, size_t len, uint64_t backing);
void priv_doca_gpu_range_remove(uint64_t addr);

/* -- contexts and tasks -------------------------------------------------------------------------------------------- */

enum priv_attempt { PRIV_LATER, PRIV_DONE, PRIV_FATAL };

struct priv_ctx_ops {
    doca_error_t (*start)(struct doca_ctx *ctx); /* SUCCESS: running; IN_PROGRESS: starting; else it stays idle */
    void (*stop)(struct doca_ctx *ctx);          /* begins to stop; tasks in flight continue */
    bool (*drained)(struct doca_ctx *ctx);       /* nothing left but tasks? */
    void (*idle)(struct doca_ctx *ctx);          /* frees what belongs to one run */
    bool (*poll)(struct doca_ctx *ctx);          /* processes one event, if there is one */
    doca_error_t (*validate)(struct doca_task *task);
    doca_error_t (*submitted)(struct doca_task *task);
    enum priv_attempt (*attempt)(struct doca_task *task, doca_error_t *status);
    void (*finished)(struct doca_task *task); /* releases what it held; before the callback */
    void (*complete)(struct doca_task *task); /* the callback */
    doca_error_t flushed;                     /* status of what was in flight when the context failed */
    bool is_ordered;                          /* completions keep the order of submission, despite fault "reorder" */
    bool is_polled;                           /* has no event-triggered completions */
};

struct doca_ctx {
    enum priv_kind magic;
    const struct priv_ctx_ops *ops;
    enum doca_ctx_states state;
    struct doca_pe *pe;
    struct doca_ctx *next; /* in the engine's contexts */
    doca_ctx_state_changed_callback_t state_changed;
    union doca_data user_data;
    struct doca_task *free_tasks;
    size_t in_flight, taken; /* tasks: submitted and not completed; handed out and not freed */
    bool is_on_gpu;
    bool has_failed; /* tasks in flight are returned with an error */
};

enum priv_task_state { PRIV_TASK_OURS, PRIV_TASK_IN_FLIGHT, PRIV_TASK_COMPLETED };

struct doca_task {
    enum priv_kind magic;
    enum priv_task_state state;
    struct doca_ctx *ctx;
    struct doca_task *next; /* in the free list, or in flight */
    union doca_data user_data;
    doca_error_t status;
    uint64_t ready_ns;
};

void priv_doca_ctx_init(struct doca_ctx *ctx, const struct priv_ctx_ops *ops);
void priv_doca_ctx_gone(struct doca_ctx *ctx); /* its object is destroyed: the engine drops it */
/* Changes the state and calls the callback. */
void priv_doca_ctx_becomes(struct doca_ctx *ctx, enum doca_ctx_states next);
void priv_doca_task_add(struct doca_ctx *ctx, struct doca_task *task); /* to the pool of this run */
struct doca_task *priv_doca_task_take(struct doca_ctx *ctx);           /* NULL: all are in use */
void priv_doca_callback(bool begins); /* around every callback: rejects progress inside one */

#endif
