/* The settings of the machine, all from the environment of the process that uses a folder first. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "settings.h"

#define PREFIX "OFFPATH_GPU_EMULATOR_"
enum { DEFAULT_DRIVER = 580, DEFAULT_ORDERING = 100, MOST_TEXT = 512 };
#define DEFAULT_SLICE_BYTES (64ULL << 20)
#define MOST_SLICE_BYTES (64ULL << 30)

static const struct emu_model models[] = {
#include "models.inc"
};

const struct emu_model *emu_model(uint32_t index)
{
    return index < sizeof models / sizeof *models ? &models[index] : NULL;
}

static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : NULL;
}

static uint32_t model_named(const char *name)
{
    for (uint32_t i = 0; emu_model(i) != NULL; i++)
        if (strcmp(emu_model(i)->key, name) == 0)
            return i;
    emu_strict(PREFIX "MODELS", "there is no model \"%s\"", name);
}

/* MODELS is a list; GPUS repeats it up to that many. */
static void read_gpus(struct emu_settings *settings)
{
    const char *text = text_of(PREFIX "MODELS");
    char copy[MOST_TEXT], *rest = copy, *one;
    uint32_t count = 0, listed[EMU_GPUS];
    if (text != NULL && strlen(text) >= sizeof copy)
        emu_strict(PREFIX "MODELS", "longer than %zu characters", sizeof copy - 1);
    strcpy(copy, text != NULL ? text : models[0].key);
    while ((one = strsep(&rest, ",")) != NULL) {
        if (count == EMU_GPUS)
            emu_strict(PREFIX "MODELS", "more than %d GPUs", EMU_GPUS);
        listed[count++] = model_named(one);
    }
    memset(settings->models, 0, sizeof settings->models);
    settings->gpu_count = (uint32_t)emu_setting(PREFIX "GPUS", count, 0, EMU_GPUS);
    for (uint32_t i = 0; i < settings->gpu_count; i++)
        settings->models[i] = listed[i % count];
}

static void read_mig(struct emu_settings *settings, const char *text)
{
    static const struct {
        const char *name;
        uint32_t mig, pending;
    } modes[] = {{"on", 1, 1}, {"off", 0, 0}, {"pending-on", 0, 1}, {"pending-off", 1, 0}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, text) == 0) {
            settings->mig = modes[i].mig;
            settings->pending = modes[i].pending;
            return;
        }
    emu_strict(PREFIX "MIG", "\"%s\" is none of on, off, pending-on, pending-off", text);
}

static uint64_t read_slice_bytes(const char *text)
{
    if (strcmp(text, "real") == 0)
        return 0;
    uint64_t bytes = emu_number(PREFIX "SLICE_BYTES", text, EMU_PAGE, MOST_SLICE_BYTES);
    if (bytes % EMU_PAGE != 0)
        emu_strict(PREFIX "SLICE_BYTES", "%s is no multiple of 2 MiB", text);
    return bytes;
}

/* A number of the setting, up to one of the characters in `ends`. */
static uint32_t link_number(char **rest, const char *ends)
{
    const char *one = strsep(rest, ends);
    return (uint32_t)emu_number(PREFIX "NVLINKS", one != NULL ? one : "", 0, EMU_LINKS);
}

static void link_pair(struct emu_settings *settings, char *pair)
{
    uint32_t a = link_number(&pair, "-"), b = link_number(&pair, ":"), count = link_number(&pair, "");
    if (a >= settings->gpu_count || b >= settings->gpu_count || a == b)
        emu_strict(PREFIX "NVLINKS", "%u-%u are not two GPUs of the machine", a, b);
    if (settings->links[a][b] != 0 || count == 0)
        emu_strict(PREFIX "NVLINKS", "%u-%u is there twice, or without a link", a, b);
    settings->links[a][b] = settings->links[b][a] = (uint8_t)count;
}

/* Pairs of GPUs, each with the NVLinks between them, "0-1:4,2-3:4"; or "switch:18": those of every GPU to switches. */
static void read_links(struct emu_settings *settings, const char *text)
{
    static const char to_switches[] = "switch:";
    char copy[MOST_TEXT], *rest = copy, *one;
    memset(settings->links, 0, sizeof settings->links);
    settings->switch_links = 0;
    if (strncmp(text, to_switches, strlen(to_switches)) == 0) {
        settings->switch_links = emu_number(PREFIX "NVLINKS", text + strlen(to_switches), 1, EMU_LINKS);
        return;
    }
    if (strlen(text) >= sizeof copy)
        emu_strict(PREFIX "NVLINKS", "longer than %zu characters", sizeof copy - 1);
    strcpy(copy, text);
    while ((one = strsep(&rest, ",")) != NULL)
        link_pair(settings, one);
    for (uint32_t gpu = 0; gpu < settings->gpu_count; gpu++) {
        uint32_t sum = 0;
        for (uint32_t other = 0; other < EMU_GPUS; other++)
            sum += settings->links[gpu][other];
        if (sum > EMU_LINKS)
            emu_strict(PREFIX "NVLINKS", "GPU %u has %u links, more than %d", gpu, sum, EMU_LINKS);
    }
}

/* Root and the user of the process that makes the machine, unless the variable lists others. */
static void read_uids(struct emu_settings *settings, const char *text)
{
    char copy[MOST_TEXT], *rest = copy, *one;
    memset(settings->uids, 0, sizeof settings->uids);
    settings->uid_count = 0;
    if (strcmp(text, "none") == 0)
        return;
    if (strlen(text) >= sizeof copy)
        emu_strict(PREFIX "CONFIG_UIDS", "longer than %zu characters", sizeof copy - 1);
    strcpy(copy, text);
    while ((one = strsep(&rest, ",")) != NULL) {
        if (settings->uid_count == EMU_UIDS)
            emu_strict(PREFIX "CONFIG_UIDS", "more than %d users", EMU_UIDS);
        settings->uids[settings->uid_count++] = (uint32_t)emu_number(PREFIX "CONFIG_UIDS", one, 0, UINT32_MAX);
    }
}

static void set_defaults(struct emu_settings *settings)
{
    memset(settings, 0, sizeof *settings);
    read_gpus(settings);
    settings->driver = DEFAULT_DRIVER;
    settings->mig = settings->pending = 1;
    settings->ordering = DEFAULT_ORDERING;
    settings->dma_buf = 1;
    settings->read_only_pins = 1;
    settings->slice_bytes = DEFAULT_SLICE_BYTES;
    settings->serial = 1;
    settings->uid_count = geteuid() == 0 ? 1 : 2;
    settings->uids[1] = settings->uid_count == 2 ? geteuid() : 0;
}

static uint32_t one_of(const char *name, uint32_t otherwise, const uint32_t *allowed, size_t count)
{
    uint32_t value = (uint32_t)emu_setting(name, otherwise, 0, UINT32_MAX);
    for (size_t i = 0; i < count; i++)
        if (allowed[i] == value)
            return value;
    emu_strict(name, "%u is not emulated", value);
}

void emu_read_settings(struct emu_settings *settings, const struct emu_settings *otherwise)
{
    static const uint32_t drivers[] = {535, 570, 580, 615}, orderings[] = {0, 100, 200};
    const char *text;
    if (otherwise == NULL)
        set_defaults(settings);
    else
        *settings = *otherwise;
    if (text_of(PREFIX "MODELS") != NULL || text_of(PREFIX "GPUS") != NULL)
        read_gpus(settings);
    settings->driver = one_of(PREFIX "DRIVER", settings->driver, drivers, sizeof drivers / sizeof *drivers);
    settings->ordering = one_of(PREFIX "ORDERING", settings->ordering, orderings, sizeof orderings / sizeof *orderings);
    settings->dma_buf = (uint32_t)emu_setting(PREFIX "DMA_BUF", settings->dma_buf, 0, 1);
    settings->read_only_pins = emu_setting(PREFIX "READ_ONLY_PINS", settings->read_only_pins, 0, 1);
    settings->scrubs = (uint32_t)emu_setting(PREFIX "SCRUB", settings->scrubs, 0, 1);
    settings->serial = emu_setting(PREFIX "SERIAL", settings->serial, 0, UINT64_MAX);
    if ((text = text_of(PREFIX "MIG")) != NULL)
        read_mig(settings, text);
    if ((text = text_of(PREFIX "SLICE_BYTES")) != NULL)
        settings->slice_bytes = read_slice_bytes(text);
    if ((text = text_of(PREFIX "NVLINKS")) != NULL)
        read_links(settings, text);
    if ((text = text_of(PREFIX "CONFIG_UIDS")) != NULL)
        read_uids(settings, text);
}
