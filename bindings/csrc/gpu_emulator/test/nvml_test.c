/* NVML: every call with its refusals. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

enum { ID_1G = 19, ID_3G = 9, ID_7G = 0, WHOLE_7 = 4, WHOLE_3 = 2, WHOLE_1 = 0 };

static void nothing_works_before_init(void)
{
    unsigned count;
    char text[NVML_VERSION_SIZE];
    nvmlDevice_t gpu;
    nvmlEventSet_t set;
    EXPECT(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
    EXPECT(nvmlDeviceGetHandleByIndex_v2(0, &gpu), NVML_ERROR_UNINITIALIZED);
    EXPECT(nvmlSystemGetNVMLVersion(text, sizeof text), NVML_ERROR_UNINITIALIZED);
    EXPECT(nvmlEventSetCreate(&set), NVML_ERROR_UNINITIALIZED);
    EXPECT(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
    EXPECT(nvmlInitWithFlags(4), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlInitWithFlags(0));
    OK(nvmlSystemGetNVMLVersion(text, sizeof text));
    EXPECT(nvmlSystemGetDriverVersion(text, 3), NVML_ERROR_INSUFFICIENT_SIZE);
    OK(nvmlShutdown());
    EXPECT(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
}

static void null_is_an_invalid_argument(void)
{
    nvmlDevice_t gpu = open_nvml();
    unsigned number;
    EXPECT(nvmlDeviceGetCount_v2(NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetHandleByIndex_v2(0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetHandleByUUID(NULL, &gpu), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetHandleByPciBusId_v2("", NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlSystemGetCudaDriverVersion_v2(NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetUUID(gpu, NULL, 96), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetName(gpu, NULL, 96), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetPciInfo_v3(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetMinorNumber(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetIndex(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetMemoryInfo(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetMemoryInfo_v2(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetBAR1MemoryInfo(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetAttributes_v2(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetCudaComputeCapability(gpu, NULL, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetPersistenceMode(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetComputeMode(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetEccMode(gpu, &number, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetComputeRunningProcesses_v3(gpu, NULL, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetSupportedEventTypes(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetMigMode(gpu, NULL, &number), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceSetMigMode(gpu, 1, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceIsMigDeviceHandle(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetMaxMigDeviceCount(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu, &gpu), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetGpuInstanceId(gpu, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetComputeInstanceId(gpu, &number), NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, ID_1G, NULL, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, ID_1G, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceCreateGpuInstance(gpu, ID_1G, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetGpuInstances(gpu, ID_1G, NULL, &number), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetGpuInstanceById(gpu, 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlEventSetCreate(NULL), NVML_ERROR_INVALID_ARGUMENT);
}

static void placements_are_the_ones_that_there_are(void)
{
    nvmlDevice_t gpu = open_nvml();
    nvmlGpuInstancePlacement_t places[8];
    nvmlGpuInstance_t instance, list[7], found;
    nvmlGpuInstanceProfileInfo_t info;
    unsigned count = 1;
    EXPECT(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, ID_3G, places, &count), NVML_ERROR_INSUFFICIENT_SIZE);
    OK(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, ID_3G, NULL, &count));
    CHECK(count == 2);
    OK(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, ID_3G, places, &count));
    CHECK(places[1].start == 4 && places[1].size == 4);
    EXPECT(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, 999, NULL, &count), NVML_ERROR_INVALID_ARGUMENT);
    nvmlGpuInstancePlacement_t wrong[] = {{1, 4}, {4, 3}, {8, 4}, {0xffffffff, 4}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT(nvmlDeviceCreateGpuInstanceWithPlacement(gpu, ID_3G, &wrong[i], &instance), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceCreateGpuInstanceWithPlacement(gpu, ID_3G, NULL, &instance), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceCreateGpuInstanceWithPlacement(gpu, ID_3G, &places[1], &instance));
    EXPECT(nvmlDeviceCreateGpuInstanceWithPlacement(gpu, ID_3G, &places[1], &found),
        NVML_ERROR_INSUFFICIENT_RESOURCES);
    EXPECT(nvmlDeviceCreateGpuInstance(gpu, ID_7G, &found), NVML_ERROR_INSUFFICIENT_RESOURCES);
    OK(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, ID_1G, &count));
    CHECK(count == 4);
    OK(nvmlDeviceGetGpuInstances(gpu, ID_3G, list, &count));
    CHECK(count == 1 && list[0] == instance);
    OK(nvmlDeviceGetGpuInstanceById(gpu, 2, &found));
    CHECK(found == instance);
    EXPECT(nvmlDeviceGetGpuInstanceById(gpu, 1, &found), NVML_ERROR_NOT_FOUND);
    EXPECT(nvmlDeviceGetGpuInstanceById(gpu, 15, &found), NVML_ERROR_NOT_FOUND);
    OK(nvmlDeviceGetGpuInstanceProfileInfo(gpu, 2, &info));
    CHECK(info.id == ID_3G && info.sliceCount == 3 && info.memorySizeMB == 16);
    EXPECT(nvmlDeviceGetGpuInstanceProfileInfo(gpu, 5, &info), NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlDeviceGetGpuInstanceProfileInfo(gpu, 18, &info), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlGpuInstanceDestroy(instance));
    EXPECT(nvmlGpuInstanceDestroy(instance), NVML_ERROR_INVALID_ARGUMENT);
}

static void compute_instances_share_an_instance(void)
{
    nvmlDevice_t gpu = open_nvml();
    nvmlGpuInstance_t instance;
    nvmlComputeInstance_t one, two, list[8];
    nvmlComputeInstanceProfileInfo_v3_t v3 = {.version = 0x0300008c};
    nvmlComputeInstanceProfileInfo_v2_t info = {.version = 0x02000088};
    unsigned count;
    OK(nvmlDeviceCreateGpuInstance(gpu, ID_3G, &instance));
    OK(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, WHOLE_1, 0, &info));
    CHECK(info.sliceCount == 1 && info.instanceCount == 3 && strcmp(info.name, "MIG 1c.3g.20gb") == 0);
    v3.capabilities = 7;
    OK(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, WHOLE_3, 0, (void *)&v3));
    CHECK(v3.id == WHOLE_3 && v3.capabilities == 0 && strcmp(v3.name, "MIG 3g.20gb") == 0);
    info.version = 1;
    EXPECT(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, WHOLE_1, 0, &info), NVML_ERROR_INVALID_ARGUMENT);
    info.version = 0x02000088;
    EXPECT(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, WHOLE_1, 1, &info), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 9, 0, &info), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, WHOLE_7, 0, &info), NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlGpuInstanceCreateComputeInstance(instance, WHOLE_1, NULL), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlGpuInstanceCreateComputeInstance(instance, WHOLE_1, &one));
    OK(nvmlGpuInstanceCreateComputeInstance(instance, WHOLE_1, &two));
    EXPECT(nvmlGpuInstanceCreateComputeInstance(instance, WHOLE_3, &two), NVML_ERROR_INSUFFICIENT_RESOURCES);
    OK(nvmlGpuInstanceGetComputeInstances(instance, WHOLE_1, list, &count));
    CHECK(count == 2 && list[0] == one && list[1] == two);
    EXPECT(nvmlGpuInstanceGetComputeInstances(instance, WHOLE_1, NULL, &count), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlGpuInstanceGetComputeInstanceById(instance, 2, &one), NVML_ERROR_NOT_FOUND);
    OK(nvmlGpuInstanceGetComputeInstanceById(instance, 1, &one));
    CHECK(one == two);
    EXPECT(nvmlGpuInstanceDestroy(instance), NVML_ERROR_IN_USE);
    OK(nvmlComputeInstanceDestroy(list[0]));
    OK(nvmlComputeInstanceDestroy(list[1]));
    OK(nvmlGpuInstanceDestroy(instance));
}

static void devices_answer_what_they_are(void)
{
    setting("GPUS", "2");
    nvmlDevice_t gpu = open_nvml(), again;
    struct cut made = cut(gpu, ID_7G, WHOLE_7, 0, 8);
    nvmlPciInfo_t pci;
    nvmlBAR1Memory_t bar1;
    nvmlDeviceAttributes_t attributes;
    nvmlMemory_v2_t memory = {.version = 0x02000028};
    unsigned a, b;
    int major, minor;
    char text[NVML_NAME_SIZE];
    OK(nvmlDeviceGetPciInfo_v3(gpu, &pci));
    OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busIdLegacy, &again));
    CHECK(again == gpu);
    OK(nvmlDeviceGetHandleByUUID(made.uuid, &again));
    CHECK(again == made.device);
    OK(nvmlDeviceGetName(made.device, text, sizeof text));
    CHECK(strcmp(text, "NVIDIA A100-SXM4-40GB MIG 7g.40gb (emulated)") == 0);
    OK(nvmlDeviceGetMinorNumber(gpu, &a));
    CHECK(a == 1);
    EXPECT(nvmlDeviceGetMinorNumber(made.device, &a), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetIndex(made.device, &a));
    CHECK(a == 0);
    OK(nvmlDeviceGetComputeInstanceId(made.device, &a));
    OK(nvmlDeviceGetPersistenceMode(gpu, &a));
    OK(nvmlDeviceGetComputeMode(gpu, &b));
    CHECK(a == 1 && b == 0);
    OK(nvmlDeviceGetEccMode(gpu, &a, &b));
    OK(nvmlDeviceGetBAR1MemoryInfo(gpu, &bar1));
    CHECK(bar1.bar1Total == 32 << 20);
    OK(nvmlDeviceGetMemoryInfo_v2(gpu, &memory));
    memory.version = 1;
    EXPECT(nvmlDeviceGetMemoryInfo_v2(gpu, &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    OK(nvmlDeviceGetAttributes_v2(made.device, &attributes));
    CHECK(attributes.engines.sms == 98 && attributes.gpuInstanceSliceCount == 7);
    EXPECT(nvmlDeviceGetAttributes_v2(gpu, &attributes), NVML_ERROR_NOT_SUPPORTED);
    OK(nvmlDeviceGetCudaComputeCapability(gpu, &major, &minor));
    CHECK(major == 8 && minor == 0);
    OK(nvmlDeviceIsMigDeviceHandle(made.device, &a));
    CHECK(a == 1);
    OK(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(made.device, &again));
    CHECK(again == gpu);
    OK(nvmlSystemGetCudaDriverVersion_v2(&major));
    CHECK(major == 13000);
    CHECK(strcmp(nvmlErrorString(NVML_ERROR_IN_USE), "In use by another client") == 0);
    destroy(made);
    EXPECT(nvmlDeviceGetUUID(made.device, text, sizeof text), NVML_ERROR_INVALID_ARGUMENT);
}

static void a_mode_changes_or_stays_pending(void)
{
    nvmlDevice_t gpu = open_nvml();
    nvmlGpuInstance_t instance;
    nvmlReturn_t activation;
    unsigned current, pending;
    EXPECT(nvmlDeviceSetMigMode(gpu, 2, &activation), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceCreateGpuInstance(gpu, ID_1G, &instance));
    OK(nvmlDeviceSetMigMode(gpu, 0, &activation));
    OK(nvmlDeviceGetMigMode(gpu, &current, &pending));
    CHECK(activation == NVML_ERROR_IN_USE && current == 1 && pending == 0);
    OK(nvmlGpuInstanceDestroy(instance));
    setting("UID", "65534");
    EXPECT(nvmlDeviceSetMigMode(gpu, 0, &activation), NVML_ERROR_NO_PERMISSION);
    EXPECT(nvmlDeviceCreateGpuInstance(gpu, ID_1G, &instance), NVML_ERROR_NO_PERMISSION);
    setting("UID", "");
    OK(nvmlDeviceSetMigMode(gpu, 0, &activation));
    OK(nvmlDeviceGetMigMode(gpu, &current, &pending));
    CHECK(activation == NVML_SUCCESS && current == 0 && pending == 0);
    EXPECT(nvmlDeviceCreateGpuInstance(gpu, ID_1G, &instance), NVML_ERROR_NOT_SUPPORTED);
}

static void event_sets_are_checked(void)
{
    nvmlDevice_t gpu = open_nvml();
    nvmlEventSet_t set;
    nvmlEventData_t data;
    uint64_t types;
    OK(nvmlDeviceGetSupportedEventTypes(gpu, &types));
    OK(nvmlEventSetCreate(&set));
    OK(nvmlDeviceRegisterEvents(gpu, types, set));
    EXPECT(nvmlDeviceRegisterEvents(gpu, 1, set), NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlDeviceRegisterEvents(gpu, types, gpu), NVML_ERROR_INVALID_ARGUMENT);
    setting("FAULTS", "xid=48@nvmlDeviceGetIndex");
    unsigned index;
    OK(nvmlDeviceGetIndex(gpu, &index));
    OK(nvmlEventSetWait_v2(set, &data, 1000));
    CHECK(data.device == gpu && data.eventData == 48 && data.gpuInstanceId == 0xffffffff);
    EXPECT(nvmlEventSetWait_v2(set, &data, 1), NVML_ERROR_TIMEOUT);
    EXPECT(nvmlEventSetWait_v2(set, NULL, 0), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlEventSetFree(set));
    EXPECT(nvmlEventSetFree(set), NVML_ERROR_INVALID_ARGUMENT);
}

static void links_lead_to_gpus_or_to_switches(void)
{
    nvmlDevice_t gpus[3];
    nvmlPciInfo_t pci, own;
    nvmlReturn_t activation;
    unsigned value;
    setting("GPUS", "3");
    setting("MIG", "off");
    setting("NVLINKS", "0-1:2,0-2:1");
    open_nvml();
    for (unsigned i = 0; i < 3; i++)
        OK(nvmlDeviceGetHandleByIndex_v2(i, &gpus[i]));
    static const unsigned ends[] = {1, 1, 2};
    for (unsigned link = 0; link < 3; link++) {
        OK(nvmlDeviceGetNvLinkState(gpus[0], link, &value));
        OK(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpus[0], link, &pci));
        OK(nvmlDeviceGetPciInfo_v3(gpus[ends[link]], &own));
        CHECK(value == 1 && memcmp(&pci, &own, sizeof pci) == 0);
    }
    OK(nvmlDeviceGetNvLinkState(gpus[0], 3, &value));
    CHECK(value == 0);
    EXPECT(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpus[0], 3, &pci), NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlDeviceGetNvLinkState(gpus[0], 18, &value), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetNvLinkState(gpus[0], 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpus[0], 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    static const unsigned of_nvlink[] = {0, 0, 5, 5, 0}, linked[] = {0, 0, 0, 0, 0};
    for (unsigned index = 0; index < 5; index++) {
        OK(nvmlDeviceGetP2PStatus(gpus[1], gpus[2], index, &value));
        CHECK(value == of_nvlink[index]);
        OK(nvmlDeviceGetP2PStatus(gpus[1], gpus[0], index, &value));
        CHECK(value == linked[index]);
    }
    EXPECT(nvmlDeviceGetP2PStatus(gpus[0], gpus[1], 5, &value), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetP2PStatus(gpus[0], gpus[1], 2, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetP2PStatus(gpus[0], gpus[0], 2, &value), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlDeviceGetP2PStatus(gpus[0], NULL, 2, &value), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceSetMigMode(gpus[1], 1, &activation)); /* its links end */
    for (unsigned link = 0; link < 3; link++) {
        OK(nvmlDeviceGetNvLinkState(gpus[0], link, &value));
        CHECK(value == (link == 2));
    }
    OK(nvmlDeviceGetP2PStatus(gpus[0], gpus[1], 2, &value));
    CHECK(value == 5);
    OK(nvmlDeviceGetP2PStatus(gpus[0], gpus[1], 0, &value));
    CHECK(value == 5);
}

static void links_to_switches_lead_to_no_gpu(void)
{
    nvmlDevice_t gpu, other, found;
    nvmlPciInfo_t pci;
    unsigned value, active = 0;
    setting("GPUS", "2");
    setting("MIG", "off");
    setting("NVLINKS", "switch:12");
    gpu = open_nvml();
    OK(nvmlDeviceGetHandleByIndex_v2(1, &other));
    for (unsigned link = 0; link < 18; link++) {
        OK(nvmlDeviceGetNvLinkState(gpu, link, &value));
        active += value;
    }
    CHECK(active == 12);
    OK(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, 11, &pci));
    CHECK(pci.pciDeviceId == 0x22a310de);
    EXPECT(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &found), NVML_ERROR_NOT_FOUND);
    OK(nvmlDeviceGetP2PStatus(gpu, other, 2, &value));
    CHECK(value == 0);
}

static void gpus_without_links_say_so(void)
{
    nvmlDevice_t gpu = open_nvml();
    nvmlPciInfo_t pci;
    unsigned value;
    EXPECT(nvmlDeviceGetNvLinkState(gpu, 0, &value), NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, 0, &pci), NVML_ERROR_NOT_SUPPORTED);
}

static const char *links;

static void open_with_links(void)
{
    setting("GPUS", "3");
    setting("NVLINKS", links);
    nvmlInit_v2();
}

static void wrong_links_end_the_process(void)
{
    static const char *const wrong[] = {"0", "0-1", "0-1:", "0-1:0", "0-1:19", "0-0:1", "0-3:1", "3-0:1", "0-1:1,",
        "0-1:1,1-0:1", "0-1:9,1-2:10", "-1:1", "0-1:1:1", "switch:", "switch:0", "switch:19", "switch:1,0-1:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        links = wrong[i];
        dies(open_with_links, 6, "gpu-emulator: OFFPATH_GPU_EMULATOR_NVLINKS: ");
    }
    links = "0-1:9,1-2:9";
    open_with_links();
}

static void a_wrong_fault(void)
{
    setting("FAULTS", "nvmlInit:1");
    nvmlInit_v2();
}

static void a_wrong_fault_ends_the_process(void)
{
    dies(a_wrong_fault, 6, "gpu-emulator: OFFPATH_GPU_EMULATOR_FAULTS: \"nvmlInit:1\" is no fault");
}

const struct test nvml_tests[] = {
    {"nothing_works_before_init", nothing_works_before_init},
    {"null_is_an_invalid_argument", null_is_an_invalid_argument},
    {"placements_are_the_ones_that_there_are", placements_are_the_ones_that_there_are},
    {"compute_instances_share_an_instance", compute_instances_share_an_instance},
    {"devices_answer_what_they_are", devices_answer_what_they_are},
    {"a_mode_changes_or_stays_pending", a_mode_changes_or_stays_pending},
    {"event_sets_are_checked", event_sets_are_checked},
    {"links_lead_to_gpus_or_to_switches", links_lead_to_gpus_or_to_switches},
    {"links_to_switches_lead_to_no_gpu", links_to_switches_lead_to_no_gpu},
    {"gpus_without_links_say_so", gpus_without_links_say_so},
    {"wrong_links_end_the_process", wrong_links_end_the_process},
    {"a_wrong_fault_ends_the_process", a_wrong_fault_ends_the_process},
    {NULL, NULL},
};
