/* Shared by libnvidia-ml and libcuda of the emulator. Each library is linked with its own copy of these functions and
 * exports none of them; what the libraries share is the machine, a file in the folder that all processes map. */
#ifndef OFFPATH_GPU_EMULATOR_INTERNAL_H
#define OFFPATH_GPU_EMULATOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    EMU_GPUS = 16,
    EMU_INSTANCES = 15, /* ids 0 to 14 */
    EMU_COMPUTE = 8,    /* ids 0 to 7 of one instance */
    EMU_PROFILES = 8,
    EMU_STARTS = 8,
    EMU_CLIENTS = 256,
    EMU_ALLOCATIONS = 4096,
    EMU_EXPORTS = 512,
    EMU_EVENTS = 256,
    EMU_UIDS = 16,
    EMU_LINKS = 18, /* NVLinks of one GPU */
    EMU_NAME = 96,
    EMU_MIB = 1 << 20,
    EMU_PAGE = 2 << 20, /* of a GPU's memory */
};
#define EMU_NONE 0xffffffffU

/* -- strictness, settings, faults ----------------------------------------------------------------------------------- */

/* Prints the error and aborts: with the real library the behaviour would be undefined, or a setting is wrong. */
_Noreturn void emu_strict(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
void emu_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t emu_number(const char *what, const char *text, uint64_t least, uint64_t most); /* aborts on anything else */
uint64_t emu_setting(const char *name, uint64_t otherwise, uint64_t least, uint64_t most);

/* One function of the interface: how often it was called. */
struct emu_call {
    const char *name;
    atomic_ullong count;
    atomic_bool is_listed;
    struct emu_call *next;
};
/* Counts the call and applies the faults that name it. Returns the code that it must return, or 0. */
int emu_enter(struct emu_call *call);
uint64_t emu_calls(const char *name); /* with or without the suffix of its version */
/* First statement of every function of the interface that returns a code. */
#define ENTER(type) \
    do { \
        static struct emu_call call_ = {.name = __func__}; \
        int fault_ = emu_enter(&call_); \
        if (fault_ != 0) \
            return (type)fault_; \
    } while (0)
#define NEEDS(condition, error) \
    do { \
        if (!(condition)) \
            return (error); \
    } while (0)

int emu_launch_fault(void);       /* counts the launches; the sticky code that this one causes, or 0 */
bool emu_refuses_to_destroy(void); /* counts the destructions that the fault in_use refuses */
bool emu_leaves_residue(void);
bool emu_mps_is_gone(void);

/* -- models --------------------------------------------------------------------------------------------------------- */

struct emu_profile {
    const char *name;
    uint32_t number, id; /* the enumerator for queries; the id for creation */
    uint32_t slices, size, most, sms, memory_mib, media, start_count, starts[EMU_STARTS];
};

struct emu_model {
    const char *key, *name;
    int major, minor;
    uint32_t sms, memory_mib, pci_id, slices, memory_slices, profile_count;
    struct emu_profile profiles[EMU_PROFILES];
};
const struct emu_model *emu_model(uint32_t index); /* NULL after the last one */

/* -- the machine ---------------------------------------------------------------------------------------------------- */

/* What the first process's environment determines for all. */
struct emu_settings {
    uint32_t gpu_count, models[EMU_GPUS];
    uint32_t driver, mig, pending, ordering, dma_buf, scrubs, uid_count; /* no padding: compared as bytes */
    uint64_t slice_bytes; /* 0: as a real GPU */
    uint64_t serial;
    uint64_t read_only_pins;
    uint64_t switch_links;             /* NVLinks of every GPU to NVSwitches */
    uint8_t links[EMU_GPUS][EMU_GPUS]; /* NVLinks between two GPUs */
    uint32_t uids[EMU_UIDS]; /* allowed to create and destroy instances */
};

struct emu_compute {
    uint64_t generation; /* unique on the machine; 0: there is none */
    uint32_t id, profile, start, size, index; /* index: of the MIG device */
};

struct emu_instance {
    uint64_t generation;
    uint32_t id, profile, start;
    struct emu_compute compute[EMU_COMPUTE];
};

struct emu_gpu {
    uint32_t model, mig, pending, is_lost;
    struct emu_instance instances[EMU_INSTANCES];
};

/* Where a process computes: a compute instance, or a whole GPU (both generations 0). */
struct emu_place {
    uint32_t gpu, instance_id, compute_id;
    uint64_t instance, compute;
};

/* A CUDA context of a process. */
struct emu_client {
    uint32_t pid; /* 0: free */
    uint32_t scrubs;
    uint64_t started;
    struct emu_place place;
    uint64_t server; /* of MPS; 0: none */
    uint32_t fault;  /* caused by another client of its server */
    uint32_t queued, is_told_to_end;
};

struct emu_allocation {
    uint64_t at, len; /* in the GPU's memory; len 0: free */
    uint32_t client, gpu;
};

struct emu_export {
    uint64_t number; /* 0: free */
    uint64_t at, len;
    uint64_t instance;
    uint32_t client, gpu, is_separate; /* whether its bytes reach the device only by a flush */
};

struct emu_event {
    uint64_t xid;
    uint32_t gpu, instance_id, compute_id;
};

/* One MPS server, of one pipe directory. */
enum emu_server_state { EMU_SERVER_NONE, EMU_SERVER_ACTIVE, EMU_SERVER_FAULT, EMU_SERVER_UNDEFINED };
enum { EMU_SERVERS = 64 };
struct emu_server {
    uint64_t number; /* 0: free */
    uint32_t state;
};

struct emu_state {
    uint64_t magic;
    pthread_mutex_t lock;
    struct emu_settings settings;
    struct emu_gpu gpus[EMU_GPUS];
    struct emu_client clients[EMU_CLIENTS];
    struct emu_allocation allocations[EMU_ALLOCATIONS];
    struct emu_export exports[EMU_EXPORTS];
    struct emu_server servers[EMU_SERVERS];
    struct emu_event events[EMU_EVENTS];
    atomic_uint event_count; /* all that there ever were, modulo 2^32 */
    uint64_t generation;
};

/* Stores what makes a row of a table valid, after all else in it: a process may be killed in between. */
#define EMU_VALIDATE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)

bool emu_open(void); /* the machine of OFFPATH_GPU_EMULATOR_DIR; false, with a line on stderr: it cannot be used */
struct emu_state *emu_state(void); /* the machine that was opened */
void emu_lock(void);
void emu_unlock(void);
uint64_t emu_generation(void); /* the next one; under the lock */
int emu_file(const char *name, int flags); /* opens a file of the folder */
void emu_remove(const char *name);
uint32_t emu_uid(void);
bool emu_may_cut(void);

/* -- processes; all under the lock ---------------------------------------------------------------------------------- */

uint64_t emu_started(uint32_t pid); /* 0: no such process, or a dead one */
void emu_reap(void);                /* takes from dead processes what they had */
void emu_release_client(uint32_t client);
uint64_t emu_used(uint32_t gpu, uint64_t instance); /* bytes; instance 0: on the whole GPU */
int emu_hold(const char *name);                     /* a descriptor that keeps it in use; -1: the system refuses */
bool emu_is_held(const char *name);                 /* by any living process */
bool emu_is_exported(uint32_t gpu, uint64_t instance); /* memory of an instance; 0: of the whole GPU */
void emu_place_name(char *name, size_t len, const struct emu_place *place); /* of its lock file */
void emu_export_name(char *name, size_t len, uint64_t number);
void emu_export_into_memory(const struct emu_export *export); /* what peers wrote stays in the memory */

/* -- events --------------------------------------------------------------------------------------------------------- */

extern struct emu_place emu_here; /* this process's place, for faults that name none */
void emu_xid(const struct emu_place *place, uint64_t xid); /* takes the lock */
void emu_await_event(uint32_t seen, uint32_t timeout_ms);  /* returns when there is a later one, or earlier */

/* -- NVLinks; all under the lock ------------------------------------------------------------------------------------ */

uint32_t emu_link_count(uint32_t gpu); /* whether they are active or not */
/* Whether the GPU's link of this number is active; *end: the GPU at its other end, EMU_NONE: a switch. */
bool emu_link(uint32_t gpu, uint32_t number, uint32_t *end);
bool emu_are_linked(uint32_t gpu, uint32_t other); /* by active links, directly or through switches */

/* -- geometry; all under the lock ----------------------------------------------------------------------------------- */

enum emu_cut { EMU_CUT = 0, EMU_IMPOSSIBLE = 2, EMU_TAKEN = 23 };
const struct emu_model *emu_model_of(uint32_t gpu);
const struct emu_profile *emu_profile_numbered(const struct emu_model *model, uint32_t number);
const struct emu_profile *emu_profile_with_id(const struct emu_model *model, uint32_t id);
uint64_t emu_slice_bytes(uint32_t gpu);
uint64_t emu_gpu_bytes(uint32_t gpu);
uint64_t emu_profile_bytes(uint32_t gpu, const struct emu_profile *profile);
/* start EMU_NONE: the first that fits. */
enum emu_cut emu_cut(uint32_t gpu, const struct emu_profile *profile, uint32_t start, struct emu_instance **made);
uint32_t emu_remaining(uint32_t gpu, const struct emu_profile *profile);
uint32_t emu_compute_slices(uint32_t profile); /* 0: no such profile of compute instances */
bool emu_compute_fits(const struct emu_profile *of, uint32_t profile);
enum emu_cut emu_cut_compute(uint32_t gpu, struct emu_instance *instance, uint32_t profile, struct emu_compute **made);
uint32_t emu_bus(uint32_t gpu);
void emu_bus_id(char *text, size_t len, uint32_t gpu); /* with a domain of eight digits */
void emu_bus_text(char *text, size_t len, uint32_t bus);
void emu_device_name(char *text, size_t len, uint32_t gpu, const struct emu_instance *instance,
    const struct emu_compute *compute); /* NULL: the whole GPU's */
int emu_cuda_version(void);
void emu_gpu_uuid(uint32_t gpu, uint8_t uuid[16]);
void emu_mig_uuid(uint32_t gpu, uint32_t instance_id, uint32_t compute_id, uint8_t uuid[16]);
void emu_uuid_text(char *text, size_t len, const char *prefix, const uint8_t uuid[16]);

#endif
