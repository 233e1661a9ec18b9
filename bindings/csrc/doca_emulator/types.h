/* The types of DOCA's interface: opaque objects, enumerations, callbacks. Values: the notes, 1.1 and 1.2. */
#ifndef OFFPATH_DOCA_EMULATOR_TYPES_H
#define OFFPATH_DOCA_EMULATOR_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifndef DOCA_EMULATOR_RELEASE
#define DOCA_EMULATOR_RELEASE 30 /* 30: DOCA 3.0; 25: DOCA 2.5, without later additions */
#endif

typedef enum doca_error {
    DOCA_SUCCESS = 0,
    DOCA_ERROR_UNKNOWN = 1,
    DOCA_ERROR_NOT_PERMITTED = 2,
    DOCA_ERROR_IN_USE = 3,
    DOCA_ERROR_NOT_SUPPORTED = 4,
    DOCA_ERROR_AGAIN = 5,
    DOCA_ERROR_INVALID_VALUE = 6,
    DOCA_ERROR_NO_MEMORY = 7,
    DOCA_ERROR_INITIALIZATION = 8,
    DOCA_ERROR_TIME_OUT = 9,
    DOCA_ERROR_SHUTDOWN = 10,
    DOCA_ERROR_CONNECTION_RESET = 11,
    DOCA_ERROR_CONNECTION_ABORTED = 12,
    DOCA_ERROR_CONNECTION_INPROGRESS = 13,
    DOCA_ERROR_NOT_CONNECTED = 14,
    DOCA_ERROR_NO_LOCK = 15,
    DOCA_ERROR_NOT_FOUND = 16,
    DOCA_ERROR_IO_FAILED = 17,
    DOCA_ERROR_BAD_STATE = 18,
    DOCA_ERROR_UNSUPPORTED_VERSION = 19,
    DOCA_ERROR_OPERATING_SYSTEM = 20,
    DOCA_ERROR_DRIVER = 21,
    DOCA_ERROR_UNEXPECTED = 22,
    DOCA_ERROR_ALREADY_EXIST = 23,
    DOCA_ERROR_FULL = 24,
    DOCA_ERROR_EMPTY = 25,
    DOCA_ERROR_IN_PROGRESS = 26,
    DOCA_ERROR_TOO_BIG = 27,
    DOCA_ERROR_AUTHENTICATION = 28, /* this and the two below: not in 2.5 */
    DOCA_ERROR_BAD_CONFIG = 29,
    DOCA_ERROR_SKIPPED = 30,
} doca_error_t;

enum doca_access_flag {
    DOCA_ACCESS_FLAG_LOCAL_READ_ONLY = 0,
    DOCA_ACCESS_FLAG_LOCAL_READ_WRITE = 1,
    DOCA_ACCESS_FLAG_RDMA_READ = 2,
    DOCA_ACCESS_FLAG_RDMA_WRITE = 4,
    DOCA_ACCESS_FLAG_RDMA_ATOMIC = 8,
    DOCA_ACCESS_FLAG_PCI_READ_ONLY = 16,
    DOCA_ACCESS_FLAG_PCI_READ_WRITE = 32,
    DOCA_ACCESS_FLAG_PCI_RELAXED_ORDERING = 64,
};

enum doca_ctx_states {
    DOCA_CTX_STATE_IDLE = 0,
    DOCA_CTX_STATE_STARTING = 1,
    DOCA_CTX_STATE_RUNNING = 2,
    DOCA_CTX_STATE_STOPPING = 3,
};

enum doca_devinfo_rep_filter {
    DOCA_DEVINFO_REP_FILTER_ALL = 0,
    DOCA_DEVINFO_REP_FILTER_NET = 2,
    DOCA_DEVINFO_REP_FILTER_EMULATED = 4,
};

enum doca_pci_func_type {
    DOCA_PCI_FUNC_TYPE_PF = 0,
    DOCA_PCI_FUNC_TYPE_VF = 1,
    DOCA_PCI_FUNC_TYPE_SF = 2,
};

enum doca_gpu_mem_type {
    DOCA_GPU_MEM_TYPE_GPU = 0,
    DOCA_GPU_MEM_TYPE_GPU_CPU = 1,
    DOCA_GPU_MEM_TYPE_CPU_GPU = 2,
};

enum doca_comch_counter {
    DOCA_COMCH_COUNTER_SENT_MESSAGES = 1,
    DOCA_COMCH_COUNTER_SENT_BYTES = 2,
    DOCA_COMCH_COUNTER_RECV_MESSAGES = 3,
    DOCA_COMCH_COUNTER_RECV_BYTES = 4,
};

enum doca_pe_event_mode {
    DOCA_PE_EVENT_MODE_PROGRESS_SELECTIVE = 0,
    DOCA_PE_EVENT_MODE_PROGRESS_ALL = 1,
};

enum doca_task_submit_flag {
    DOCA_TASK_SUBMIT_FLAG_NONE = 0,
    DOCA_TASK_SUBMIT_FLAG_FLUSH = 1,
    DOCA_TASK_SUBMIT_FLAG_OPTIMIZE_REPORTS = 2,
};

enum doca_log_level {
    DOCA_LOG_LEVEL_DISABLE = 10,
    DOCA_LOG_LEVEL_CRIT = 20,
    DOCA_LOG_LEVEL_ERROR = 30,
    DOCA_LOG_LEVEL_WARNING = 40,
    DOCA_LOG_LEVEL_INFO = 50,
    DOCA_LOG_LEVEL_DEBUG = 60,
    DOCA_LOG_LEVEL_TRACE = 70,
};

/* Sizes of the buffers that callers provide, including the NUL. */
enum {
    DOCA_DEVINFO_PCI_ADDR_SIZE = 13,
    DOCA_DEVINFO_PCI_BDF_SIZE = 8,
    DOCA_DEVINFO_IBDEV_NAME_SIZE = 64,
    DOCA_DEVINFO_IFACE_NAME_SIZE = 256,
    DOCA_DEVINFO_REP_PCI_ADDR_SIZE = 13,
    DOCA_DEVINFO_REP_VUID_SIZE = 128,
};

/* Passed by value in the whole interface: eight bytes in one integer register. */
union doca_data {
    void *ptr;
    uint64_t u64;
};

typedef int doca_notification_handle_t;
enum { doca_event_invalid_handle = -1 };

struct doca_buf;
struct doca_buf_inventory;
struct doca_comch_client;
struct doca_comch_connection;
struct doca_comch_event_connection_status_changed;
struct doca_comch_event_consumer;
struct doca_comch_event_msg_recv;
struct doca_comch_server;
struct doca_comch_task_send;
struct doca_ctx;
struct doca_dev;
struct doca_dev_rep;
struct doca_devinfo;
struct doca_devinfo_rep;
struct doca_dma;
struct doca_dma_task_memcpy;
struct doca_gpu;
struct doca_gpu_dma;
struct doca_log_backend;
struct doca_mmap;
struct doca_pe;
struct doca_task;

typedef void (*doca_ctx_state_changed_callback_t)(const union doca_data user_data, struct doca_ctx *ctx,
    enum doca_ctx_states prev_state, enum doca_ctx_states next_state);
typedef void (*doca_dma_task_memcpy_completion_cb_t)(struct doca_dma_task_memcpy *task,
    union doca_data task_user_data, union doca_data ctx_user_data);
typedef void (*doca_comch_task_send_completion_cb_t)(struct doca_comch_task_send *task,
    union doca_data task_user_data, union doca_data ctx_user_data);
typedef void (*doca_comch_event_msg_recv_cb_t)(struct doca_comch_event_msg_recv *event, uint8_t *recv_buffer,
    uint32_t msg_len, struct doca_comch_connection *comch_connection);
typedef void (*doca_comch_event_connection_status_changed_cb_t)(
    struct doca_comch_event_connection_status_changed *event, struct doca_comch_connection *comch_connection,
    uint8_t change_successful);
typedef void (*doca_comch_event_consumer_cb_t)(struct doca_comch_event_consumer *event,
    struct doca_comch_connection *comch_connection, uint32_t id);
typedef void(doca_mmap_memrange_free_cb_t)(void *addr, size_t len, void *cookie); /* a function, not a pointer */

#endif
