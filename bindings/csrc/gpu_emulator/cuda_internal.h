/* Objects of libcuda. One mutex of the process guards them all; it is held while work is executed. */
#ifndef OFFPATH_GPU_EMULATOR_CUDA_INTERNAL_H
#define OFFPATH_GPU_EMULATOR_CUDA_INTERNAL_H

#include "cuda.h"
#include "internal.h"

enum { CUDA_DEVICES = 64, CUDA_MAX_PARAMETERS = 8, CUDA_MAX_NAME = 64 };

/* -- device memory -------------------------------------------------------------------------------------------------- */

/* Peers' side of a part of an allocation, when it is another memory than the device's. */
struct cuda_export {
    struct cuda_export *next;
    uint64_t at, len; /* in the place's memory */
    uint32_t slot;    /* of the machine's table */
    uint8_t *peer;    /* what peers read and write; NULL: the device's own bytes */
    uint8_t *synced;  /* both sides, when they last were equal */
};

struct cuda_allocation {
    struct cuda_allocation *next;
    uint64_t at, len; /* in the place's memory; len as requested */
    uint32_t slot;    /* of the machine's table */
    bool is_synchronous; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
};

/* -- work ----------------------------------------------------------------------------------------------------------- */

enum cuda_kind { CUDA_COPY, CUDA_SET8, CUDA_SET32, CUDA_KERNEL, CUDA_HOST_FUNCTION, CUDA_RECORD, CUDA_WAIT };

struct cuda_work {
    struct cuda_work *next;
    enum cuda_kind kind;
    uint64_t number; /* order of submission in the context */
    void *to;
    const void *from;
    void *staged; /* a copy of pageable memory, freed with the work */
    uint64_t len;
    unsigned value;
    const struct cuda_kernel *kernel;
    uint64_t arguments[CUDA_MAX_PARAMETERS];
    int fault; /* sticky code that this launch causes */
    CUhostFn function;
    void *user_data;
    CUevent event;
    CUstream awaited;
    uint64_t awaited_number; /* a wait: until this work of that stream is done */
};

struct cuda_stream {
    struct cuda_stream *next;
    struct cuda_context *context;
    struct cuda_work *first, **last;
    bool is_blocking; /* with respect to the default stream */
};

struct cuda_event {
    struct cuda_event *next;
    struct cuda_context *context;
    CUstream stream;
    uint64_t number; /* of its last record; 0: never recorded */
    bool is_done, has_time;
    uint64_t time_ns;
};

struct cuda_kernel {
    const char *name;
    const char *types; /* a letter each: Q u64, I u32, F f32 */
    CUresult (*run)(struct cuda_context *context, const uint64_t *arguments);
};

struct cuda_function {
    const struct cuda_kernel *kernel;
    struct cuda_module *module;
};

struct cuda_module {
    struct cuda_module *next;
    struct cuda_context *context;
    struct cuda_function functions[16];
    size_t count;
};

/* -- contexts ------------------------------------------------------------------------------------------------------- */

struct cuda_context {
    struct emu_place place;
    uint64_t base, bytes; /* of the place's memory, in the GPU's */
    uint64_t limit;       /* of this client's memory, by MPS */
    uint32_t sms;
    unsigned users, flags;
    int hold;        /* the descriptor that keeps the place in use */
    uint32_t client; /* in the machine's table */
    CUresult sticky;
    void *reserved;         /* address space around the window, which begins at a multiple of 2 MiB */
    uint8_t *window, *view; /* the device's addresses, inaccessible; the same bytes for the CPU */
    struct cuda_allocation *allocations;
    struct cuda_export *exports;
    struct cuda_stream *streams, standard;
    struct cuda_event *events;
    struct cuda_module *modules;
    uint64_t submitted; /* number of the last work */
    uint64_t queued;
};

extern struct cuda_library {
    pthread_mutex_t mutex;
    bool is_initialized, is_forked;
    int count;
    struct cuda_context contexts[CUDA_DEVICES]; /* the primary context of each device */
} cuda;

/* Enters a call: takes the mutex. A call that needs a context gets the current one. On an error nothing is locked. */
CUresult cuda_enter(void);
CUresult cuda_enter_device(CUdevice device, struct cuda_context **context);
CUresult cuda_enter_context(struct cuda_context **context);
CUresult cuda_leave(CUresult result);
CUresult cuda_fail(struct cuda_context *context, CUresult code, uint64_t xid); /* from now on every call fails so */
extern _Thread_local bool cuda_in_host_function;

#define TRY(expression) \
    do { \
        CUresult tried_ = (expression); \
        if (tried_ != CUDA_SUCCESS) \
            return tried_; \
    } while (0)

/* -- devices -------------------------------------------------------------------------------------------------------- */

CUresult cuda_enumerate(void); /* under the machine's lock: fills cuda.contexts[].place by CUDA_VISIBLE_DEVICES */
uint64_t cuda_place_bytes(const struct emu_place *place);
uint64_t cuda_place_base(const struct emu_place *place);
uint32_t cuda_place_sms(const struct emu_place *place);

/* -- memory --------------------------------------------------------------------------------------------------------- */

/* Where the CPU finds [ptr, ptr + len) of one allocation; NULL: it is not in one. */
uint8_t *cuda_bytes(struct cuda_context *context, CUdeviceptr ptr, uint64_t len);
struct cuda_allocation *cuda_allocation_at(struct cuda_context *context, CUdeviceptr ptr);
bool cuda_is_pinned(const void *bytes, size_t len);
void cuda_free_all(struct cuda_context *context);
void cuda_drop_exports(struct cuda_context *context, uint64_t at, uint64_t len);
void cuda_show_peers(struct cuda_context *context); /* what the device wrote */

/* -- streams -------------------------------------------------------------------------------------------------------- */

CUresult cuda_stream(struct cuda_context *context, CUstream handle, struct cuda_stream **stream);
struct cuda_work *cuda_submit(struct cuda_stream *stream, enum cuda_kind kind); /* NULL: no memory */
void cuda_run_stream(struct cuda_stream *stream, uint64_t until);
void cuda_run_default(struct cuda_context *context); /* and what the default stream waits for */
void cuda_run_all(struct cuda_context *context);
void cuda_drop_work(struct cuda_context *context);
CUresult cuda_start_thread(void); /* runs work in the background if OFFPATH_GPU_EMULATOR_ASYNC is set */
void cuda_free_streams(struct cuda_context *context); /* and events */
void cuda_free_modules(struct cuda_context *context);
void cuda_note_work(struct cuda_context *context); /* records in the machine whether work is outstanding */

/* -- MPS ------------------------------------------------------------------------------------------------------------ */

struct cuda_mps {
    int link; /* to the control daemon; -1: this process runs without MPS */
    uint64_t server, limit;
    uint32_t percentage;
};
extern struct cuda_mps cuda_mps;
CUresult cuda_mps_connect(void);
CUresult cuda_mps_check(void); /* whether the daemon or another client ended this one */
void cuda_mps_tell_fault(struct cuda_context *context, CUresult code);

#endif
