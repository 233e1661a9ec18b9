/* Buffers: elements of an inventory, each a part of a memory map with a reference count. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "memory.h"

struct doca_buf_inventory {
    enum priv_kind magic;
    bool is_started;
    size_t count, free_count;
    struct doca_buf *free_list; /* linked by `chain` */
    struct doca_buf elements[];
};

doca_error_t doca_buf_inventory_create(size_t num_elements, struct doca_buf_inventory **inventory)
{
    FAULT();
    NEEDS(num_elements > 0 && num_elements <= UINT32_MAX && inventory != NULL, DOCA_ERROR_INVALID_VALUE);
    struct doca_buf_inventory *made =
        priv_doca_new(sizeof *made + num_elements * sizeof *made->elements, PRIV_INVENTORY);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    made->count = made->free_count = num_elements;
    for (size_t i = num_elements; i-- > 0;) {
        made->elements[i].magic = PRIV_DEAD;
        made->elements[i].inventory = made;
        made->elements[i].chain = made->free_list;
        made->free_list = &made->elements[i];
    }
    *inventory = made;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_inventory_start(struct doca_buf_inventory *inventory)
{
    FAULT();
    VALID(inventory, PRIV_INVENTORY);
    inventory->is_started = true;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_inventory_stop(struct doca_buf_inventory *inventory)
{
    FAULT();
    VALID(inventory, PRIV_INVENTORY);
    inventory->is_started = false;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_inventory_destroy(struct doca_buf_inventory *inventory)
{
    FAULT();
    VALID(inventory, PRIV_INVENTORY);
    NEEDS(inventory->free_count == inventory->count, DOCA_ERROR_IN_USE);
    priv_doca_retire(inventory);
    return DOCA_SUCCESS;
}

static struct doca_buf *take(struct doca_buf_inventory *inventory, struct doca_mmap *mmap)
{
    struct doca_buf *buf = inventory->free_list;
    if (buf == NULL)
        return NULL;
    inventory->free_list = buf->chain;
    inventory->free_count--;
    *buf = (struct doca_buf){.magic = PRIV_BUF, .inventory = inventory, .mmap = mmap, .refcount = 1};
    atomic_fetch_add(&mmap->bufs, 1);
    return buf;
}

static void give_back(struct doca_buf *buf)
{
    struct doca_buf_inventory *inventory = buf->inventory;
    struct doca_mmap *mmap = buf->mmap;
    *buf = (struct doca_buf){.magic = PRIV_DEAD, .inventory = inventory, .chain = inventory->free_list};
    inventory->free_list = buf;
    inventory->free_count++;
    emu_map_buf_gone(mmap);
}

doca_error_t doca_buf_inventory_buf_get_by_args(struct doca_buf_inventory *inventory, struct doca_mmap *mmap,
    void *addr, size_t len, void *data, size_t data_len, struct doca_buf **buf)
{
    FAULT();
    VALID(inventory, PRIV_INVENTORY);
    VALID(mmap, PRIV_MMAP);
    uint64_t head = (uintptr_t)addr, begin = (uintptr_t)data;
    bool is_usable = mmap->state == EMU_STARTED || (mmap->state == EMU_IMPORTED && mmap->file != NULL);
    NEEDS(buf != NULL && inventory->is_started && is_usable && !mmap->is_dying, DOCA_ERROR_INVALID_VALUE);
    NEEDS(emu_map_holds(mmap, head, len), DOCA_ERROR_INVALID_VALUE);
    NEEDS(begin >= head && begin - head <= len && data_len <= len - (begin - head), DOCA_ERROR_INVALID_VALUE);
    struct doca_buf *made = take(inventory, mmap);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    made->head = head;
    made->len = len;
    made->data = begin;
    made->data_len = data_len;
    *buf = made;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_inventory_buf_dup(struct doca_buf_inventory *inventory, const struct doca_buf *src_buf,
    struct doca_buf **dst_buf)
{
    FAULT();
    VALID(inventory, PRIV_INVENTORY);
    VALID(src_buf, PRIV_BUF);
    NEEDS(dst_buf != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(inventory->is_started, DOCA_ERROR_BAD_STATE);
    NEEDS(src_buf->chain == NULL && !src_buf->chained, DOCA_ERROR_NOT_PERMITTED);
    struct doca_buf *made = take(inventory, src_buf->mmap);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    made->head = src_buf->head;
    made->len = src_buf->len;
    made->data = src_buf->data;
    made->data_len = src_buf->data_len;
    *dst_buf = made;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_inventory_get_num_elements(const struct doca_buf_inventory *inventory,
    uint32_t *num_of_elements)
{
    FAULT();
    VALID(inventory, PRIV_INVENTORY);
    NEEDS(num_of_elements != NULL, DOCA_ERROR_INVALID_VALUE);
    *num_of_elements = (uint32_t)inventory->count;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_inventory_get_num_free_elements(const struct doca_buf_inventory *inventory,
    uint32_t *num_of_free_elements)
{
    FAULT();
    VALID(inventory, PRIV_INVENTORY);
    NEEDS(num_of_free_elements != NULL, DOCA_ERROR_INVALID_VALUE);
    *num_of_free_elements = (uint32_t)inventory->free_count;
    return DOCA_SUCCESS;
}

/* -- reference counts: calls report the previous count ------------------------------------------------------------- */

doca_error_t doca_buf_inc_refcount(struct doca_buf *buf, uint16_t *refcount)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    NEEDS(!buf->chained, DOCA_ERROR_NOT_PERMITTED);
    NEEDS(buf->refcount < UINT16_MAX, DOCA_ERROR_TOO_BIG);
    if (refcount != NULL)
        *refcount = buf->refcount;
    buf->refcount++;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_dec_refcount(struct doca_buf *buf, uint16_t *refcount)
{
    FAULT();
    /* The header defines a buffer whose count is 0: an element that was returned, while its inventory exists. */
    if (buf != NULL && buf->magic == PRIV_DEAD && buf->inventory != NULL && buf->inventory->magic == PRIV_INVENTORY)
        return DOCA_ERROR_BAD_STATE;
    LIVE(buf, PRIV_BUF);
    NEEDS(!buf->chained, DOCA_ERROR_NOT_PERMITTED);
    if (buf->refcount == 1 && buf->in_flight > 0)
        priv_doca_strict(__func__, "the last reference to a buffer that %u tasks in flight use", buf->in_flight);
    if (refcount != NULL)
        *refcount = buf->refcount;
    if (--buf->refcount > 0)
        return DOCA_SUCCESS;
    while (buf != NULL) { /* a list is freed with its head */
        struct doca_buf *next = buf->chain;
        give_back(buf);
        buf = next;
    }
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_get_refcount(const struct doca_buf *buf, uint16_t *refcount)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    *refcount = buf->refcount;
    return DOCA_SUCCESS;
}

/* -- range and data ------------------------------------------------------------------------------------------------ */

doca_error_t doca_buf_get_len(const struct doca_buf *buf, size_t *len)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    *len = buf->len;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_get_head(const struct doca_buf *buf, void **head)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    *head = (void *)(uintptr_t)buf->head;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_get_data_len(const struct doca_buf *buf, size_t *data_len)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    *data_len = buf->data_len;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_get_data(const struct doca_buf *buf, void **data)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    *data = (void *)(uintptr_t)buf->data;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_set_data(struct doca_buf *buf, void *data, size_t data_len)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    uint64_t begin = (uintptr_t)data;
    if (begin < buf->head || begin - buf->head > buf->len || data_len > buf->len - (begin - buf->head))
        priv_doca_strict(__func__, "the data leaves the buffer; with the real library that is undefined");
    buf->data = begin;
    buf->data_len = data_len;
    return DOCA_SUCCESS;
}

#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_buf_set_data_len(struct doca_buf *buf, size_t data_len)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    if (data_len > buf->len - (buf->data - buf->head))
        priv_doca_strict(__func__, "the data leaves the buffer; with the real library that is undefined");
    buf->data_len = data_len;
    return DOCA_SUCCESS;
}
#endif

doca_error_t doca_buf_reset_data_len(struct doca_buf *buf)
{
    FAULT();
    LIVE(buf, PRIV_BUF);
    buf->data_len = 0;
    return DOCA_SUCCESS;
}

doca_error_t doca_buf_chain_list(struct doca_buf *list1, struct doca_buf *list2)
{
    FAULT();
    LIVE(list1, PRIV_BUF);
    LIVE(list2, PRIV_BUF);
    NEEDS(!list1->chained && !list2->chained && list1 != list2, DOCA_ERROR_NOT_PERMITTED);
    struct doca_buf *tail = list1;
    while (tail->chain != NULL)
        tail = tail->chain;
    tail->chain = list2;
    list2->chained = true;
    return DOCA_SUCCESS;
}
