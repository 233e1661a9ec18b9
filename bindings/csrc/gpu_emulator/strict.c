/* Strictness, and the settings of the environment. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

static void print_line(const char *format, va_list args)
{
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "gpu-emulator: %s\n", text);
    fflush(stderr);
}

void emu_log(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
}

void emu_strict(const char *call, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    emu_log("%s: %s", call, text);
    abort();
}

uint64_t emu_number(const char *what, const char *text, uint64_t least, uint64_t most)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] < '0' || text[0] > '9' || value < least || value > most)
        emu_strict(what, "\"%s\" is no number from %llu to %llu", text, (unsigned long long)least,
            (unsigned long long)most);
    return value;
}

uint64_t emu_setting(const char *name, uint64_t otherwise, uint64_t least, uint64_t most)
{
    const char *text = getenv(name);
    return text == NULL || *text == '\0' ? otherwise : emu_number(name, text, least, most);
}
