/* Strictness: where the real library's behaviour would be undefined, prints the reason and aborts. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Destroyed handles wait here before their memory is freed, so that a late use finds PRIV_DEAD. */
enum { QUARANTINE = 1024 };
static void *quarantine[QUARANTINE];
static size_t quarantine_at;

void priv_doca_strict(const char *call, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "doca-emulator: %s: %s\n", call, text);
    fflush(stderr);
    abort();
}

static const char *kind_name(enum priv_kind kind)
{
    static const char *const names[] = {"destroyed object", "devinfo", "dev", "devinfo_rep", "dev_rep", "log_backend",
        "mmap", "buf_inventory", "buf", "pe", "ctx", "task", "dma", "comch_server", "comch_client",
        "comch_connection", "gpu"};
    size_t index = (size_t)kind - (size_t)PRIV_DEAD;
    return index < sizeof names / sizeof *names ? names[index] : "no object of this library";
}

void priv_doca_live(const char *call, const enum priv_kind *magic, enum priv_kind wanted)
{
    if (magic == NULL)
        priv_doca_strict(call, "NULL where a %s is needed", kind_name(wanted));
    if (*magic != wanted)
        priv_doca_strict(call, "a %s is needed, got a %s", kind_name(wanted), kind_name(*magic));
}

void *priv_doca_new(size_t size, enum priv_kind kind)
{
    enum priv_kind *made = calloc(1, size);
    if (made != NULL)
        *made = kind;
    return made;
}

void priv_doca_retire(void *handle)
{
    if (handle == NULL)
        return;
    *(enum priv_kind *)handle = PRIV_DEAD;
    priv_doca_lock();
    void *oldest = quarantine[quarantine_at];
    quarantine[quarantine_at] = handle;
    quarantine_at = (quarantine_at + 1) % QUARANTINE;
    priv_doca_unlock();
    free(oldest);
}
