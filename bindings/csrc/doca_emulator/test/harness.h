/* Common code of the tests of the DOCA interface. It uses the notes and prototypes.h only, no internals. */
#ifndef OFFPATH_DOCA_EMULATOR_HARNESS_H
#define OFFPATH_DOCA_EMULATOR_HARNESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "../prototypes.h"

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
#define EXPECT(call, wanted) expect((call), (wanted), #call, __FILE__, __LINE__)
#define OK(call) EXPECT(call, DOCA_SUCCESS)

void check(bool holds, const char *claim, const char *file, int line);
void expect(doca_error_t got, doca_error_t wanted, const char *call, const char *file, int line);

/* Asserts misuse: `wrong`, in its own process, ends with SIGABRT and prints `text`. */
void aborts(void (*wrong)(void), const char *text);

/* Two processes with a socket between them. The child runs `body` and exits; `joined` waits for success. */
struct child {
    pid_t pid;
    int fd;
};
struct child begin(void (*body)(int fd));
void joined(struct child child);
void killed(struct child child); /* sends SIGKILL and waits for the end */
void tell(int fd, const void *bytes, size_t len);
void hear(int fd, void *bytes, size_t len);

void side(const char *name); /* the side of this process from now on: "dpu" or "host" */
void fault(const char *text);
struct doca_dev *open_device(const char *pci_address);
struct doca_dev *device(const char *name); /* `side`, and its first device */
struct doca_dev_rep *open_rep(struct doca_dev *dev);

struct doca_mmap *map(struct doca_dev *dev, void *addr, size_t len, uint32_t permissions);
struct doca_buf *buf(struct doca_buf_inventory *inventory, struct doca_mmap *mmap, void *addr, size_t len, size_t data);
struct doca_buf_inventory *inventory(size_t count);
enum doca_ctx_states state(struct doca_ctx *ctx);

/* Calls progress until the claim holds; fails after ten seconds. */
void until(struct doca_pe *pe, bool (*claim)(void *of), void *of);
bool is_idle(void *ctx);
bool is_running(void *ctx);
bool readable(int fd, int timeout_ms);
uint64_t now_ms(void);

/* One DMA context with its objects, and what its callbacks received. */
struct rig {
    struct doca_dev *dev;
    struct doca_pe *pe;
    struct doca_dma *dma;
    struct doca_ctx *ctx;
    struct doca_buf_inventory *inventory;
    uint64_t done[64], failed[64]; /* the tasks' user data, in order */
    doca_error_t errors[64];
    size_t done_count, failed_count;
    bool keeps_tasks;
    struct doca_task *kept[64];
    enum doca_ctx_states states[16];
    size_t state_count;
};
void rig_open(struct rig *rig, struct doca_dev *dev, uint32_t tasks);
void rig_close(struct rig *rig);
struct doca_dma_task_memcpy *copy(struct rig *rig, struct doca_buf *src, struct doca_buf *dst, uint64_t mark);
/* Submits, progresses until the callback, and returns its status. Releases both buffers. */
doca_error_t copied(struct rig *rig, struct doca_buf *src, struct doca_buf *dst);
bool all_done(void *rig);

typedef void test_body(void);
struct test {
    const char *name;
    test_body *body;
};
extern const struct test dma_tests[], order_tests[], engine_tests[], comch_tests[], link_tests[], fault_tests[],
    gpu_tests[], ask_tests[];

#endif
