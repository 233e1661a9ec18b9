/* Devices and representors. DOCA_EMULATOR_SIDE is the side on which a list is made: "dpu" (the Arm cores of the cards)
 * or "host"; DOCA_EMULATOR_DEVICES is the number of cards. The DPU sees card i as 0000:03:00.0 + i buses and the host
 * as 0000:5c:00.0 + i buses, which is also the address that the DPU's representor reports. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { DPU_BUS = 0x03, HOST_BUS = 0x5c, MAX_CARDS = 8, MAX_BUS_TEXT = 13 };

static struct doca_dev *open_devices;

static void pci_address(struct priv_function function, char text[MAX_BUS_TEXT])
{
    unsigned bus = (function.on_dpu ? DPU_BUS : HOST_BUS) + function.card;
    snprintf(text, MAX_BUS_TEXT, "0000:%02x:00.0", bus & 0xffU);
}

static bool is_address_of(struct priv_function function, const char *asked)
{
    char address[MAX_BUS_TEXT];
    pci_address(function, address);
    return strcasecmp(asked, address) == 0 || strcasecmp(asked, address + 5) == 0;
}

static bool is_on_dpu(void)
{
    const char *side = getenv("DOCA_EMULATOR_SIDE");
    if (side != NULL && strcmp(side, "dpu") == 0)
        return true;
    if (side == NULL || strcmp(side, "host") != 0)
        priv_doca_strict("DOCA_EMULATOR_SIDE", "has to be \"dpu\" or \"host\", is \"%s\"", side ? side : "");
    return false;
}

/* -- lists: freed with their elements ------------------------------------------------------------------------------ */

doca_error_t doca_devinfo_create_list(struct doca_devinfo ***dev_list, uint32_t *nb_devs)
{
    FAULT();
    NEEDS(dev_list != NULL && nb_devs != NULL, DOCA_ERROR_INVALID_VALUE);
    bool on_dpu = is_on_dpu();
    uint32_t count = (uint32_t)priv_doca_setting("DOCA_EMULATOR_DEVICES", 1, 0, MAX_CARDS);
    NEEDS(count > 0, DOCA_ERROR_NOT_FOUND);
    struct doca_devinfo **list = calloc(count + 1, sizeof *list);
    NEEDS(list != NULL, DOCA_ERROR_NO_MEMORY);
    for (uint32_t card = 0; card < count; card++) {
        list[card] = priv_doca_new(sizeof **list, PRIV_DEVINFO);
        if (list[card] == NULL) {
            doca_devinfo_destroy_list(list);
            return DOCA_ERROR_NO_MEMORY;
        }
        list[card]->function = (struct priv_function){on_dpu, card};
    }
    *dev_list = list;
    *nb_devs = count;
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_destroy_list(struct doca_devinfo **dev_list)
{
    FAULT();
    NEEDS(dev_list != NULL, DOCA_ERROR_INVALID_VALUE);
    for (size_t i = 0; dev_list[i] != NULL; i++) {
        LIVE(dev_list[i], PRIV_DEVINFO);
        priv_doca_retire(dev_list[i]);
    }
    free(dev_list);
    return DOCA_SUCCESS;
}

/* -- properties of a device ---------------------------------------------------------------------------------------- */

doca_error_t doca_devinfo_get_pci_addr_str(const struct doca_devinfo *devinfo, char *pci_addr_str)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(pci_addr_str != NULL, DOCA_ERROR_INVALID_VALUE);
    pci_address(devinfo->function, pci_addr_str);
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_is_equal_pci_addr(const struct doca_devinfo *devinfo, const char *pci_addr_str,
    uint8_t *is_equal)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(pci_addr_str != NULL && is_equal != NULL, DOCA_ERROR_INVALID_VALUE);
    *is_equal = is_address_of(devinfo->function, pci_addr_str);
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_get_ibdev_name(const struct doca_devinfo *devinfo, char *ibdev_name, uint32_t size)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(ibdev_name != NULL && size >= DOCA_DEVINFO_IBDEV_NAME_SIZE, DOCA_ERROR_INVALID_VALUE);
    snprintf(ibdev_name, size, "mlx5_%u", devinfo->function.card);
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_get_iface_name(const struct doca_devinfo *devinfo, char *iface_name, uint32_t size)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(iface_name != NULL && size >= DOCA_DEVINFO_IFACE_NAME_SIZE, DOCA_ERROR_INVALID_VALUE);
    if (devinfo->function.on_dpu)
        snprintf(iface_name, size, "p%u", devinfo->function.card);
    else
        snprintf(iface_name, size, "enp%us0f0np0", HOST_BUS + devinfo->function.card);
    return DOCA_SUCCESS;
}

#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_devinfo_get_vhca_id(const struct doca_devinfo *devinfo, uint16_t *vhca_id)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(vhca_id != NULL, DOCA_ERROR_INVALID_VALUE);
    *vhca_id = (uint16_t)(2 * devinfo->function.card + !devinfo->function.on_dpu);
    return DOCA_SUCCESS;
}
#endif

/* -- open devices: one object per device, however often it is opened ----------------------------------------------- */

doca_error_t doca_dev_open(struct doca_devinfo *devinfo, struct doca_dev **dev)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(dev != NULL, DOCA_ERROR_INVALID_VALUE);
    struct priv_function asked = devinfo->function;
    priv_doca_lock();
    struct doca_dev *found = open_devices;
    while (found != NULL && (found->info.function.card != asked.card || found->info.function.on_dpu != asked.on_dpu))
        found = found->next;
    if (found == NULL && (found = priv_doca_new(sizeof *found, PRIV_DEV)) != NULL) {
        found->info = (struct doca_devinfo){PRIV_DEVINFO, asked};
        found->next = open_devices;
        open_devices = found;
    }
    if (found != NULL)
        found->opened++;
    priv_doca_unlock();
    *dev = found;
    return found != NULL ? DOCA_SUCCESS : DOCA_ERROR_NO_MEMORY;
}

doca_error_t doca_dev_close(struct doca_dev *dev)
{
    FAULT();
    LIVE(dev, PRIV_DEV);
    priv_doca_lock();
    bool last = dev->opened == 1, used = last && atomic_load(&dev->users) > 0;
    if (!used)
        dev->opened--;
    if (last && !used) {
        struct doca_dev **at = &open_devices;
        while (*at != dev)
            at = &(*at)->next;
        *at = dev->next;
    }
    priv_doca_unlock();
    if (last && !used) {
        dev->info.magic = PRIV_DEAD;
        priv_doca_retire(dev);
    }
    return used ? DOCA_ERROR_IN_USE : DOCA_SUCCESS;
}

struct doca_devinfo *doca_dev_as_devinfo(const struct doca_dev *dev)
{
    LIVE(dev, PRIV_DEV);
    return (struct doca_devinfo *)&dev->info;
}

/* -- representors: on the DPU only --------------------------------------------------------------------------------- */

doca_error_t doca_devinfo_rep_create_list(struct doca_dev *dev, int filter, struct doca_devinfo_rep ***dev_list_rep,
    uint32_t *nb_devs_rep)
{
    FAULT();
    VALID(dev, PRIV_DEV);
    NEEDS(dev_list_rep != NULL && nb_devs_rep != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(dev->info.function.on_dpu, DOCA_ERROR_NOT_SUPPORTED);
    bool wants_net = filter == DOCA_DEVINFO_REP_FILTER_ALL || filter == DOCA_DEVINFO_REP_FILTER_NET;
    NEEDS(wants_net || filter == DOCA_DEVINFO_REP_FILTER_EMULATED, DOCA_ERROR_INVALID_VALUE);
    struct doca_devinfo_rep **list = calloc(2, sizeof *list);
    NEEDS(list != NULL, DOCA_ERROR_NO_MEMORY);
    if (wants_net) {
        if ((list[0] = priv_doca_new(sizeof **list, PRIV_DEVINFO_REP)) == NULL) {
            free(list);
            return DOCA_ERROR_NO_MEMORY;
        }
        list[0]->dev = dev;
    }
    *dev_list_rep = list;
    *nb_devs_rep = wants_net;
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_rep_destroy_list(struct doca_devinfo_rep **dev_list_rep)
{
    FAULT();
    NEEDS(dev_list_rep != NULL, DOCA_ERROR_INVALID_VALUE);
    for (size_t i = 0; dev_list_rep[i] != NULL; i++) {
        LIVE(dev_list_rep[i], PRIV_DEVINFO_REP);
        priv_doca_retire(dev_list_rep[i]);
    }
    free(dev_list_rep);
    return DOCA_SUCCESS;
}

static struct priv_function represented(const struct doca_devinfo_rep *rep)
{
    return (struct priv_function){false, rep->dev->info.function.card};
}

doca_error_t doca_devinfo_rep_get_pci_addr_str(const struct doca_devinfo_rep *devinfo_rep, char *pci_addr_str)
{
    FAULT();
    VALID(devinfo_rep, PRIV_DEVINFO_REP);
    NEEDS(pci_addr_str != NULL, DOCA_ERROR_INVALID_VALUE);
    pci_address(represented(devinfo_rep), pci_addr_str);
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_rep_is_equal_pci_addr(const struct doca_devinfo_rep *devinfo_rep, const char *pci_addr_str,
    uint8_t *is_equal)
{
    FAULT();
    VALID(devinfo_rep, PRIV_DEVINFO_REP);
    NEEDS(pci_addr_str != NULL && is_equal != NULL, DOCA_ERROR_INVALID_VALUE);
    *is_equal = is_address_of(represented(devinfo_rep), pci_addr_str);
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_rep_get_vuid(const struct doca_devinfo_rep *devinfo_rep, char *rep_vuid, uint32_t size)
{
    FAULT();
    VALID(devinfo_rep, PRIV_DEVINFO_REP);
    NEEDS(rep_vuid != NULL && size >= DOCA_DEVINFO_REP_VUID_SIZE, DOCA_ERROR_INVALID_VALUE);
    snprintf(rep_vuid, size, "EMULATED%04uMLNXS0D0F0", represented(devinfo_rep).card);
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_rep_get_pci_func_type(const struct doca_devinfo_rep *devinfo_rep,
    enum doca_pci_func_type *pci_func_type)
{
    FAULT();
    VALID(devinfo_rep, PRIV_DEVINFO_REP);
    NEEDS(pci_func_type != NULL, DOCA_ERROR_INVALID_VALUE);
    *pci_func_type = DOCA_PCI_FUNC_TYPE_PF;
    return DOCA_SUCCESS;
}

doca_error_t doca_dev_rep_open(struct doca_devinfo_rep *devinfo, struct doca_dev_rep **dev_rep)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO_REP);
    NEEDS(dev_rep != NULL, DOCA_ERROR_INVALID_VALUE);
    LIVE(devinfo->dev, PRIV_DEV); /* the device was closed while the list exists */
    struct doca_dev_rep *made = priv_doca_new(sizeof *made, PRIV_DEV_REP);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    made->info = *devinfo;
    atomic_fetch_add(&devinfo->dev->users, 1);
    *dev_rep = made;
    return DOCA_SUCCESS;
}

doca_error_t doca_dev_rep_close(struct doca_dev_rep *dev)
{
    FAULT();
    VALID(dev, PRIV_DEV_REP);
    NEEDS(atomic_load(&dev->users) == 0, DOCA_ERROR_IN_USE);
    atomic_fetch_sub(&dev->info.dev->users, 1);
    dev->info.magic = PRIV_DEAD;
    priv_doca_retire(dev);
    return DOCA_SUCCESS;
}

struct doca_devinfo_rep *doca_dev_rep_as_devinfo(struct doca_dev_rep *dev_rep)
{
    LIVE(dev_rep, PRIV_DEV_REP);
    return &dev_rep->info;
}

doca_error_t doca_devinfo_rep_cap_is_filter_all_supported(const struct doca_devinfo *devinfo,
    uint8_t *filter_all_supported)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(filter_all_supported != NULL, DOCA_ERROR_INVALID_VALUE);
    *filter_all_supported = devinfo->function.on_dpu;
    return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_rep_cap_is_filter_net_supported(const struct doca_devinfo *devinfo,
    uint8_t *filter_net_supported)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(filter_net_supported != NULL, DOCA_ERROR_INVALID_VALUE);
    *filter_net_supported = devinfo->function.on_dpu;
    return DOCA_SUCCESS;
}
