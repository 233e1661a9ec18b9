/* The settings of the machine. */
#ifndef OFFPATH_GPU_EMULATOR_SETTINGS_H
#define OFFPATH_GPU_EMULATOR_SETTINGS_H

#include "internal.h"

/* From the environment; what it does not set is taken from `otherwise`, or has its default where that is NULL. */
void emu_read_settings(struct emu_settings *settings, const struct emu_settings *otherwise);

#endif
