/* Settings and faults, all from the environment. Read at each use, because a test may change them while it runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define FAULTS "DOCA_EMULATOR_FAULTS"
enum { MAX_FAULTS = 64, MAX_TEXT = 1024 };

/* Every declared call that returns a status: a fault in any other call is an error. */
static const char *const calls[] = {
#include "calls.inc"
};

struct failing_call {
    const char *call;
    uint64_t on, seen;
    doca_error_t error;
};

/* The parsed text. When the text changes, it is parsed again and counting restarts. */
static struct {
    char text[MAX_TEXT];
    struct failing_call failing[MAX_FAULTS];
    size_t count;
    uint64_t delay_ns, random, dma_error, copies, lost_peer, messages;
    bool reorders, holds;
} faults;

static uint64_t number(const char *what, const char *text, uint64_t least, uint64_t most)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] < '0' || text[0] > '9' || value < least || value > most)
        priv_doca_strict(what, "\"%s\" is no number from %llu to %llu", text, (unsigned long long)least,
            (unsigned long long)most);
    return value;
}

uint64_t priv_doca_setting(const char *name, uint64_t otherwise, uint64_t least, uint64_t most)
{
    const char *text = getenv(name);
    return text == NULL || *text == '\0' ? otherwise : number(name, text, least, most);
}

static doca_error_t error_named(const char *name)
{
    static const char prefix[] = "DOCA_ERROR_";
    for (int code = 1; code <= (int)DOCA_ERROR_SKIPPED; code++) {
        const char *known = doca_error_get_name((doca_error_t)code);
        if (strcmp(known, name) == 0 || strcmp(known + sizeof prefix - 1, name) == 0)
            return (doca_error_t)code;
    }
    priv_doca_strict(FAULTS, "no error is called \"%s\"", name);
}

/* CALL:N=ERROR, already split at the "=". */
static void add_call(char *call, const char *error)
{
    char *colon = strchr(call, ':');
    if (colon == NULL)
        priv_doca_strict(FAULTS, "\"%s=%s\" is neither a known fault nor CALL:N=ERROR", call, error);
    *colon = '\0';
    if (faults.count == MAX_FAULTS)
        priv_doca_strict(FAULTS, "more than %d calls are to fail", MAX_FAULTS);
    struct failing_call *failing = &faults.failing[faults.count++];
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i], call) == 0)
            failing->call = calls[i];
    if (failing->call == NULL)
        priv_doca_strict(FAULTS, "no call that returns a status is called \"%s\"", call);
    failing->on = number(FAULTS, colon + 1, 1, UINT64_MAX);
    failing->error = error_named(error);
}

static void add(char *one)
{
    char *value = strchr(one, '=');
    if (value == NULL) {
        if (strcmp(one, "visibility") != 0)
            priv_doca_strict(FAULTS, "\"%s\" is no fault", one);
        faults.holds = true;
        return;
    }
    *value++ = '\0';
    if (strcmp(one, "delay") == 0)
        faults.delay_ns = number(FAULTS, value, 1, 600000) * 1000000U;
    else if (strcmp(one, "reorder") == 0) {
        faults.random = number(FAULTS, value, 0, UINT64_MAX);
        faults.reorders = true;
    } else if (strcmp(one, "lost_peer") == 0)
        faults.lost_peer = number(FAULTS, value, 1, UINT64_MAX);
    else if (strcmp(one, "dma_error") == 0)
        faults.dma_error = number(FAULTS, value, 1, UINT64_MAX);
    else
        add_call(one, value);
}

/* Under the lock. */
static void read_faults(void)
{
    const char *text = getenv(FAULTS);
    if (text == NULL)
        text = "";
    if (strcmp(text, faults.text) == 0)
        return;
    if (strlen(text) >= MAX_TEXT)
        priv_doca_strict(FAULTS, "longer than %d characters", MAX_TEXT - 1);
    memset(&faults, 0, sizeof faults);
    strcpy(faults.text, text);
    char copy[MAX_TEXT], *rest = *text != '\0' ? copy : NULL, *one;
    strcpy(copy, text);
    while (*text != '\0' && (one = strsep(&rest, ",")) != NULL)
        add(one);
}

doca_error_t priv_doca_fault(const char *call)
{
    doca_error_t error = DOCA_SUCCESS;
    priv_doca_lock();
    read_faults();
    for (size_t i = 0; i < faults.count; i++) {
        struct failing_call *failing = &faults.failing[i];
        if (strcmp(failing->call, call) == 0 && ++failing->seen == failing->on)
            error = failing->error;
    }
    priv_doca_unlock();
    return error;
}

uint64_t priv_doca_delay_ns(void)
{
    priv_doca_lock();
    read_faults();
    uint64_t delay_ns = faults.delay_ns;
    priv_doca_unlock();
    return delay_ns;
}

bool priv_doca_reorder(uint64_t *random)
{
    priv_doca_lock();
    read_faults();
    bool reorders = faults.reorders;
    if (reorders) { /* splitmix64 */
        uint64_t z = (faults.random += 0x9e3779b97f4a7c15U);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        *random = z ^ (z >> 31);
    }
    priv_doca_unlock();
    return reorders;
}

bool priv_doca_copy_fails(void)
{
    priv_doca_lock();
    read_faults();
    bool fails = ++faults.copies == faults.dma_error;
    priv_doca_unlock();
    return fails;
}

bool priv_doca_link_is_cut(void)
{
    priv_doca_lock();
    read_faults();
    bool cut = ++faults.messages == faults.lost_peer;
    priv_doca_unlock();
    return cut;
}

bool priv_doca_writes_are_held(void)
{
    priv_doca_lock();
    read_faults();
    bool holds = faults.holds;
    priv_doca_unlock();
    return holds;
}
