/* Call counters, and the faults of OFFPATH_GPU_EMULATOR_FAULTS. The variable is read at each call, because a test may
 * change it while it runs; a changed text starts counting again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

#define FAULTS "OFFPATH_GPU_EMULATOR_FAULTS"
enum { MOST_FAULTS = 64, MOST_TEXT = 1024, MOST_MS = 600000, LAST_CODE = 999, XID_LOST = 79, ECC = 214 };

/* Every function of both interfaces: a fault in any other one is an error. */
static const char *const known_calls[] = {
#include "calls.inc"
};

enum kind { FAILS, IS_SLOW, POSTS_XID };

struct at_call {
    enum kind kind;
    char call[64];
    uint64_t on, seen, value;
};

static struct {
    char text[MOST_TEXT];
    struct at_call at[MOST_FAULTS];
    size_t count;
    uint64_t ecc, sticky, sticky_code, launches, lost, calls, in_use;
    bool residue, mps_gone;
} faults;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct emu_call *listed;

/* -- the text ------------------------------------------------------------------------------------------------------- */

/* Whether `name` is `call`, or `call` without the suffix of its version. */
static bool is_named(const char *call, const char *name)
{
    size_t len = strlen(name);
    return strncmp(call, name, len) == 0 &&
           (call[len] == '\0' || (strncmp(call + len, "_v", 2) == 0 && strlen(call + len) == 3));
}

/* CALL or CALL:N, into a fault that counts. */
static struct at_call *add_at(enum kind kind, char *call, bool has_turn)
{
    if (faults.count == MOST_FAULTS)
        emu_strict(FAULTS, "more than %d faults", MOST_FAULTS);
    struct at_call *at = &faults.at[faults.count++];
    at->kind = kind;
    at->on = 1;
    char *colon = has_turn ? strchr(call, ':') : NULL;
    if (colon != NULL) {
        *colon = '\0';
        at->on = emu_number(FAULTS, colon + 1, 1, UINT64_MAX);
    }
    for (size_t i = 0; i < sizeof known_calls / sizeof *known_calls; i++)
        if (is_named(known_calls[i], call))
            snprintf(at->call, sizeof at->call, "%s", call);
    if (at->call[0] == '\0')
        emu_strict(FAULTS, "no call is named \"%s\"", call);
    return at;
}

static void add_slow(char *value)
{
    char *colon = strchr(value, ':');
    if (colon == NULL)
        emu_strict(FAULTS, "slow=%s instead of slow=CALL:MS", value);
    *colon = '\0';
    add_at(IS_SLOW, value, false)->value = emu_number(FAULTS, colon + 1, 0, MOST_MS);
}

/* The two sides of "@". */
static char *after_at(const char *what, char *value)
{
    char *at = strchr(value, '@');
    if (at == NULL)
        emu_strict(FAULTS, "%s=%s lacks the \"@\"", what, value);
    *at = '\0';
    return at + 1;
}

static void add(char *one)
{
    char *value = strchr(one, '=');
    if (value == NULL) {
        bool *flag = strcmp(one, "residue") == 0 ? &faults.residue : strcmp(one, "mps_gone") == 0 ? &faults.mps_gone : NULL;
        if (flag == NULL)
            emu_strict(FAULTS, "\"%s\" is no fault", one);
        *flag = true;
        return;
    }
    *value++ = '\0';
    if (strcmp(one, "ecc") == 0)
        faults.ecc = emu_number(FAULTS, value, 1, UINT64_MAX);
    else if (strcmp(one, "lost") == 0)
        faults.lost = emu_number(FAULTS, value, 1, UINT64_MAX);
    else if (strcmp(one, "in_use") == 0)
        faults.in_use = emu_number(FAULTS, value, 1, UINT64_MAX);
    else if (strcmp(one, "slow") == 0)
        add_slow(value);
    else if (strcmp(one, "xid") == 0) {
        char *call = after_at(one, value);
        add_at(POSTS_XID, call, true)->value = emu_number(FAULTS, value, 1, UINT32_MAX);
    } else if (strcmp(one, "sticky") == 0) {
        faults.sticky = emu_number(FAULTS, after_at(one, value), 1, UINT64_MAX);
        faults.sticky_code = emu_number(FAULTS, value, 1, LAST_CODE);
    } else if (strchr(one, ':') == NULL)
        emu_strict(FAULTS, "\"%s=%s\" is neither a known fault nor CALL:N=CODE", one, value);
    else
        add_at(FAILS, one, true)->value = emu_number(FAULTS, value, 1, LAST_CODE);
}

/* Under the mutex. */
static void read_faults(void)
{
    const char *text = getenv(FAULTS);
    if (text == NULL)
        text = "";
    if (strcmp(text, faults.text) == 0)
        return;
    if (strlen(text) >= MOST_TEXT)
        emu_strict(FAULTS, "longer than %d characters", MOST_TEXT - 1);
    memset(&faults, 0, sizeof faults);
    strcpy(faults.text, text);
    char copy[MOST_TEXT], *rest = *text != '\0' ? copy : NULL, *one;
    strcpy(copy, text);
    while (rest != NULL && (one = strsep(&rest, ",")) != NULL)
        add(one);
}

/* -- what happens at a call ----------------------------------------------------------------------------------------- */

static void list(struct emu_call *call)
{
    if (atomic_exchange(&call->is_listed, true))
        return;
    call->next = listed;
    listed = call;
}

static void sleep_ms(uint64_t ms)
{
    struct timespec left = {(time_t)(ms / 1000U), (long)(ms % 1000U) * 1000000L};
    nanosleep(&left, NULL);
}

static void lose_all_gpus(void)
{
    struct emu_state *state = emu_state();
    if (state == NULL)
        return;
    struct emu_place place = {0, EMU_NONE, EMU_NONE, 0, 0};
    for (; place.gpu < state->settings.gpu_count; place.gpu++) {
        state->gpus[place.gpu].is_lost = true;
        emu_xid(&place, XID_LOST);
    }
}

int emu_enter(struct emu_call *call)
{
    int code = 0;
    uint64_t ms = 0, xid = 0;
    pthread_mutex_lock(&mutex);
    list(call);
    atomic_fetch_add(&call->count, 1);
    read_faults();
    bool is_lost = ++faults.calls == faults.lost;
    for (size_t i = 0; i < faults.count; i++) {
        struct at_call *at = &faults.at[i];
        if (!is_named(call->name, at->call))
            continue;
        bool is_its_turn = ++at->seen == at->on;
        if (at->kind == IS_SLOW)
            ms = at->value;
        else if (at->kind == POSTS_XID && is_its_turn)
            xid = at->value;
        else if (at->kind == FAILS && is_its_turn)
            code = (int)at->value;
    }
    pthread_mutex_unlock(&mutex);
    if (ms > 0)
        sleep_ms(ms);
    if (xid != 0 && emu_state() != NULL)
        emu_xid(&emu_here, xid);
    if (is_lost)
        lose_all_gpus();
    return code;
}

uint64_t emu_calls(const char *name)
{
    uint64_t count = 0;
    pthread_mutex_lock(&mutex);
    for (struct emu_call *call = listed; call != NULL; call = call->next)
        count += is_named(call->name, name) ? atomic_load(&call->count) : 0;
    pthread_mutex_unlock(&mutex);
    return count;
}

int emu_launch_fault(void)
{
    pthread_mutex_lock(&mutex);
    read_faults();
    faults.launches++;
    int code = faults.launches == faults.sticky ? (int)faults.sticky_code : faults.launches == faults.ecc ? ECC : 0;
    pthread_mutex_unlock(&mutex);
    return code;
}

bool emu_refuses_to_destroy(void)
{
    pthread_mutex_lock(&mutex);
    read_faults();
    bool refuses = faults.in_use > 0;
    faults.in_use -= refuses;
    pthread_mutex_unlock(&mutex);
    return refuses;
}

static bool has(const bool *flag)
{
    pthread_mutex_lock(&mutex);
    read_faults();
    bool is_set = *flag;
    pthread_mutex_unlock(&mutex);
    return is_set;
}

bool emu_leaves_residue(void)
{
    return has(&faults.residue);
}

bool emu_mps_is_gone(void)
{
    return has(&faults.mps_gone);
}
