/* The interface of this emulator: the rows of the notes' tables 2.1 to 2.6 and 2.8, in their order. A test compares
 * each declaration with its row. Each begins on its own line with its type and name: the build reads from here the
 * names of the calls that can be made to fail. */
#ifndef OFFPATH_DOCA_EMULATOR_PROTOTYPES_H
#define OFFPATH_DOCA_EMULATOR_PROTOTYPES_H

#include "types.h"

/* 2.1 Errors, devices, representors */
const char *doca_error_get_name(doca_error_t error);
const char *doca_error_get_descr(doca_error_t error);
doca_error_t doca_devinfo_create_list(struct doca_devinfo ***dev_list, uint32_t *nb_devs);
doca_error_t doca_devinfo_destroy_list(struct doca_devinfo **dev_list);
doca_error_t doca_devinfo_get_pci_addr_str(const struct doca_devinfo *devinfo, char *pci_addr_str);
doca_error_t doca_devinfo_is_equal_pci_addr(const struct doca_devinfo *devinfo, const char *pci_addr_str,
    uint8_t *is_equal);
doca_error_t doca_devinfo_get_ibdev_name(const struct doca_devinfo *devinfo, char *ibdev_name, uint32_t size);
doca_error_t doca_devinfo_get_iface_name(const struct doca_devinfo *devinfo, char *iface_name, uint32_t size);
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_devinfo_get_vhca_id(const struct doca_devinfo *devinfo, uint16_t *vhca_id);
#endif
doca_error_t doca_dev_open(struct doca_devinfo *devinfo, struct doca_dev **dev);
doca_error_t doca_dev_close(struct doca_dev *dev);
struct doca_devinfo *doca_dev_as_devinfo(const struct doca_dev *dev);
doca_error_t doca_devinfo_rep_create_list(struct doca_dev *dev, int filter, struct doca_devinfo_rep ***dev_list_rep,
    uint32_t *nb_devs_rep);
doca_error_t doca_devinfo_rep_destroy_list(struct doca_devinfo_rep **dev_list_rep);
doca_error_t doca_devinfo_rep_get_pci_addr_str(const struct doca_devinfo_rep *devinfo_rep, char *pci_addr_str);
doca_error_t doca_devinfo_rep_is_equal_pci_addr(const struct doca_devinfo_rep *devinfo_rep,
    const char *pci_addr_str, uint8_t *is_equal);
doca_error_t doca_devinfo_rep_get_vuid(const struct doca_devinfo_rep *devinfo_rep, char *rep_vuid, uint32_t size);
doca_error_t doca_devinfo_rep_get_pci_func_type(const struct doca_devinfo_rep *devinfo_rep,
    enum doca_pci_func_type *pci_func_type);
doca_error_t doca_dev_rep_open(struct doca_devinfo_rep *devinfo, struct doca_dev_rep **dev_rep);
doca_error_t doca_dev_rep_close(struct doca_dev_rep *dev);
struct doca_devinfo_rep *doca_dev_rep_as_devinfo(struct doca_dev_rep *dev_rep);
doca_error_t doca_devinfo_rep_cap_is_filter_all_supported(const struct doca_devinfo *devinfo,
    uint8_t *filter_all_supported);
doca_error_t doca_devinfo_rep_cap_is_filter_net_supported(const struct doca_devinfo *devinfo,
    uint8_t *filter_net_supported);
const char *doca_version_runtime(void);
doca_error_t doca_log_backend_create_standard(void);
doca_error_t doca_log_backend_create_with_fd_sdk(int fd, struct doca_log_backend **backend);
doca_error_t doca_log_backend_set_sdk_level(struct doca_log_backend *backend, uint32_t level);

/* 2.2 Memory: mmap */
doca_error_t doca_mmap_create(struct doca_mmap **mmap);
doca_error_t doca_mmap_destroy(struct doca_mmap *mmap);
doca_error_t doca_mmap_start(struct doca_mmap *mmap);
doca_error_t doca_mmap_stop(struct doca_mmap *mmap);
doca_error_t doca_mmap_add_dev(struct doca_mmap *mmap, struct doca_dev *dev);
doca_error_t doca_mmap_rm_dev(struct doca_mmap *mmap, struct doca_dev *dev);
doca_error_t doca_mmap_set_memrange(struct doca_mmap *mmap, void *addr, size_t len);
doca_error_t doca_mmap_set_dmabuf_memrange(struct doca_mmap *mmap, int dmabuf_fd, void *addr, size_t dmabuf_offset,
    size_t len);
doca_error_t doca_mmap_get_memrange(const struct doca_mmap *mmap, void **addr, size_t *len);
doca_error_t doca_mmap_set_permissions(struct doca_mmap *mmap, uint32_t access_mask);
doca_error_t doca_mmap_set_max_num_devices(struct doca_mmap *mmap, uint32_t max_num_devices);
doca_error_t doca_mmap_set_user_data(struct doca_mmap *mmap, union doca_data user_data);
doca_error_t doca_mmap_set_free_cb(struct doca_mmap *mmap, doca_mmap_memrange_free_cb_t *free_cb, void *opaque);
doca_error_t doca_mmap_get_num_bufs(const struct doca_mmap *mmap, uint32_t *num_bufs);
doca_error_t doca_mmap_export_pci(struct doca_mmap *mmap, const struct doca_dev *dev, const void **export_desc,
    size_t *export_desc_len);
doca_error_t doca_mmap_export_rdma(struct doca_mmap *mmap, const struct doca_dev *dev, const void **export_desc,
    size_t *export_desc_len);
doca_error_t doca_mmap_create_from_export(const union doca_data *user_data, const void *export_desc,
    size_t export_desc_len, struct doca_dev *dev, struct doca_mmap **mmap);
doca_error_t doca_mmap_cap_is_export_pci_supported(const struct doca_devinfo *devinfo, uint8_t *mmap_export);
doca_error_t doca_mmap_cap_is_create_from_export_pci_supported(const struct doca_devinfo *devinfo,
    uint8_t *from_export);
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_mmap_enable_thread_safety(struct doca_mmap *mmap);
#endif

/* 2.3 Memory: buf and inventory */
doca_error_t doca_buf_inventory_create(size_t num_elements, struct doca_buf_inventory **inventory);
doca_error_t doca_buf_inventory_start(struct doca_buf_inventory *inventory);
doca_error_t doca_buf_inventory_stop(struct doca_buf_inventory *inventory);
doca_error_t doca_buf_inventory_destroy(struct doca_buf_inventory *inventory);
doca_error_t doca_buf_inventory_buf_get_by_args(struct doca_buf_inventory *inventory, struct doca_mmap *mmap,
    void *addr, size_t len, void *data, size_t data_len, struct doca_buf **buf);
static inline doca_error_t doca_buf_inventory_buf_get_by_addr(struct doca_buf_inventory *inventory,
    struct doca_mmap *mmap, void *addr, size_t len, struct doca_buf **buf)
{
    return doca_buf_inventory_buf_get_by_args(inventory, mmap, addr, len, addr, 0, buf);
}
static inline doca_error_t doca_buf_inventory_buf_get_by_data(struct doca_buf_inventory *inventory,
    struct doca_mmap *mmap, void *data, size_t data_len, struct doca_buf **buf)
{
    return doca_buf_inventory_buf_get_by_args(inventory, mmap, data, data_len, data, data_len, buf);
}
doca_error_t doca_buf_inventory_buf_dup(struct doca_buf_inventory *inventory, const struct doca_buf *src_buf,
    struct doca_buf **dst_buf);
doca_error_t doca_buf_inventory_get_num_elements(const struct doca_buf_inventory *inventory,
    uint32_t *num_of_elements);
doca_error_t doca_buf_inventory_get_num_free_elements(const struct doca_buf_inventory *inventory,
    uint32_t *num_of_free_elements);
doca_error_t doca_buf_inc_refcount(struct doca_buf *buf, uint16_t *refcount);
doca_error_t doca_buf_dec_refcount(struct doca_buf *buf, uint16_t *refcount);
doca_error_t doca_buf_get_refcount(const struct doca_buf *buf, uint16_t *refcount);
doca_error_t doca_buf_get_len(const struct doca_buf *buf, size_t *len);
doca_error_t doca_buf_get_head(const struct doca_buf *buf, void **head);
doca_error_t doca_buf_get_data_len(const struct doca_buf *buf, size_t *data_len);
doca_error_t doca_buf_get_data(const struct doca_buf *buf, void **data);
doca_error_t doca_buf_set_data(struct doca_buf *buf, void *data, size_t data_len);
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_buf_set_data_len(struct doca_buf *buf, size_t data_len);
#endif
doca_error_t doca_buf_reset_data_len(struct doca_buf *buf);
doca_error_t doca_buf_chain_list(struct doca_buf *list1, struct doca_buf *list2);

/* 2.4 Progress engine, contexts, tasks */
doca_error_t doca_pe_create(struct doca_pe **pe);
doca_error_t doca_pe_destroy(struct doca_pe *pe);
doca_error_t doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx);
uint8_t doca_pe_progress(struct doca_pe *pe);
doca_error_t doca_pe_get_notification_handle(const struct doca_pe *pe, doca_notification_handle_t *handle);
doca_error_t doca_pe_request_notification(struct doca_pe *pe);
doca_error_t doca_pe_clear_notification(struct doca_pe *pe, doca_notification_handle_t handle);
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_pe_set_event_mode(struct doca_pe *pe, enum doca_pe_event_mode event_mode);
#endif
doca_error_t doca_pe_get_num_inflight_tasks(const struct doca_pe *pe, size_t *num_inflight_tasks);
doca_error_t doca_ctx_start(struct doca_ctx *ctx);
doca_error_t doca_ctx_stop(struct doca_ctx *ctx);
doca_error_t doca_ctx_get_state(const struct doca_ctx *ctx, enum doca_ctx_states *state);
doca_error_t doca_ctx_set_state_changed_cb(struct doca_ctx *ctx, doca_ctx_state_changed_callback_t cb);
doca_error_t doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data user_data);
doca_error_t doca_ctx_get_user_data(const struct doca_ctx *ctx, union doca_data *user_data);
doca_error_t doca_ctx_get_num_inflight_tasks(const struct doca_ctx *ctx, size_t *num_inflight_tasks);
doca_error_t doca_ctx_set_datapath_on_gpu(struct doca_ctx *ctx, struct doca_gpu *gpu_dev);
doca_error_t doca_task_submit(struct doca_task *task);
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_task_submit_ex(struct doca_task *task, uint32_t flags);
#endif
doca_error_t doca_task_try_submit(struct doca_task *task);
void doca_task_free(struct doca_task *task);
doca_error_t doca_task_get_status(const struct doca_task *task);
void doca_task_set_user_data(struct doca_task *task, union doca_data user_data);
union doca_data doca_task_get_user_data(const struct doca_task *task);
struct doca_ctx *doca_task_get_ctx(const struct doca_task *task);

/* 2.5 DMA */
doca_error_t doca_dma_create(struct doca_dev *dev, struct doca_dma **dma);
doca_error_t doca_dma_destroy(struct doca_dma *dma);
struct doca_ctx *doca_dma_as_ctx(struct doca_dma *dma);
doca_error_t doca_dma_cap_task_memcpy_is_supported(const struct doca_devinfo *devinfo);
doca_error_t doca_dma_cap_task_memcpy_get_max_buf_size(const struct doca_devinfo *devinfo, uint64_t *buf_size);
doca_error_t doca_dma_cap_task_memcpy_get_max_buf_list_len(const struct doca_devinfo *devinfo,
    uint32_t *max_buf_list_len);
doca_error_t doca_dma_cap_get_max_num_tasks(struct doca_dma *dma, uint32_t *max_num_tasks);
doca_error_t doca_dma_task_memcpy_set_conf(struct doca_dma *dma,
    doca_dma_task_memcpy_completion_cb_t task_completion_cb, doca_dma_task_memcpy_completion_cb_t task_error_cb,
    uint32_t num_memcpy_tasks);
doca_error_t doca_dma_task_memcpy_alloc_init(struct doca_dma *dma, const struct doca_buf *src, struct doca_buf *dst,
    union doca_data user_data, struct doca_dma_task_memcpy **task);
struct doca_task *doca_dma_task_memcpy_as_task(struct doca_dma_task_memcpy *task);
void doca_dma_task_memcpy_set_src(struct doca_dma_task_memcpy *task, const struct doca_buf *src);
const struct doca_buf *doca_dma_task_memcpy_get_src(const struct doca_dma_task_memcpy *task);
void doca_dma_task_memcpy_set_dst(struct doca_dma_task_memcpy *task, struct doca_buf *dst);
struct doca_buf *doca_dma_task_memcpy_get_dst(const struct doca_dma_task_memcpy *task);
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_dma_get_gpu_handle(struct doca_dma *dma, struct doca_gpu_dma **gpu_dma);
#endif

/* 2.6 Comch, capabilities */
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_comch_cap_client_is_supported(const struct doca_devinfo *devinfo);
doca_error_t doca_comch_cap_get_max_clients(const struct doca_devinfo *devinfo, uint32_t *num_clients);
doca_error_t doca_comch_cap_get_max_msg_size(const struct doca_devinfo *devinfo, uint32_t *size);
doca_error_t doca_comch_cap_get_max_name_len(const struct doca_devinfo *devinfo, uint32_t *max_name_len);
doca_error_t doca_comch_cap_get_max_recv_queue_size(const struct doca_devinfo *devinfo, uint32_t *size);
doca_error_t doca_comch_cap_get_max_send_tasks(const struct doca_devinfo *devinfo, uint32_t *max_send_tasks);
doca_error_t doca_comch_cap_server_is_supported(const struct doca_devinfo *devinfo);
#endif

/* 2.6 Comch, server */
#if DOCA_EMULATOR_RELEASE >= 30
struct doca_ctx *doca_comch_server_as_ctx(struct doca_comch_server *comch_server);
doca_error_t doca_comch_server_create(struct doca_dev *dev, struct doca_dev_rep *repr, const char *name,
    struct doca_comch_server **comch_server);
doca_error_t doca_comch_server_destroy(struct doca_comch_server *comch_server);
doca_error_t doca_comch_server_disconnect(struct doca_comch_server *comch_server,
    struct doca_comch_connection *connection);
doca_error_t doca_comch_server_event_connection_status_changed_register(struct doca_comch_server *comch_server,
    doca_comch_event_connection_status_changed_cb_t connect_event_cb,
    doca_comch_event_connection_status_changed_cb_t disconnect_event_cb);
doca_error_t doca_comch_server_event_consumer_register(struct doca_comch_server *comch_server,
    doca_comch_event_consumer_cb_t new_consumer_event_cb, doca_comch_event_consumer_cb_t expired_consumer_event_cb);
doca_error_t doca_comch_server_event_msg_recv_register(struct doca_comch_server *comch_server,
    doca_comch_event_msg_recv_cb_t recv_event_cb);
doca_error_t doca_comch_server_get_device(const struct doca_comch_server *comch_server, struct doca_dev **dev);
doca_error_t doca_comch_server_get_device_rep(const struct doca_comch_server *comch_server,
    struct doca_dev_rep **rep);
doca_error_t doca_comch_server_get_max_msg_size(const struct doca_comch_server *comch_server, uint32_t *size);
doca_error_t doca_comch_server_get_recv_queue_size(const struct doca_comch_server *comch_server, uint32_t *size);
struct doca_comch_server *doca_comch_server_get_server_ctx(const struct doca_comch_connection *connection);
doca_error_t doca_comch_server_set_max_msg_size(struct doca_comch_server *comch_server, uint32_t size);
doca_error_t doca_comch_server_set_recv_queue_size(struct doca_comch_server *comch_server, uint32_t size);
doca_error_t doca_comch_server_task_send_alloc_init(struct doca_comch_server *comch_server,
    struct doca_comch_connection *peer, const void *msg, uint32_t len, struct doca_comch_task_send **task);
doca_error_t doca_comch_server_task_send_set_conf(struct doca_comch_server *comch_server,
    doca_comch_task_send_completion_cb_t task_completion_cb, doca_comch_task_send_completion_cb_t task_error_cb,
    uint32_t num_send_tasks);
#endif

/* 2.6 Comch, client */
#if DOCA_EMULATOR_RELEASE >= 30
struct doca_ctx *doca_comch_client_as_ctx(struct doca_comch_client *comch_client);
doca_error_t doca_comch_client_create(struct doca_dev *dev, const char *name,
    struct doca_comch_client **comch_client);
doca_error_t doca_comch_client_destroy(struct doca_comch_client *comch_client);
doca_error_t doca_comch_client_event_consumer_register(struct doca_comch_client *comch_client,
    doca_comch_event_consumer_cb_t new_consumer_event_cb, doca_comch_event_consumer_cb_t expired_consumer_event_cb);
doca_error_t doca_comch_client_event_msg_recv_register(struct doca_comch_client *comch_client,
    doca_comch_event_msg_recv_cb_t recv_event_cb);
struct doca_comch_client *doca_comch_client_get_client_ctx(const struct doca_comch_connection *connection);
doca_error_t doca_comch_client_get_connection(const struct doca_comch_client *comch_client,
    struct doca_comch_connection **connection);
doca_error_t doca_comch_client_get_device(const struct doca_comch_client *comch_client, struct doca_dev **dev);
doca_error_t doca_comch_client_get_max_msg_size(const struct doca_comch_client *comch_client, uint32_t *size);
doca_error_t doca_comch_client_get_recv_queue_size(const struct doca_comch_client *comch_client, uint32_t *size);
doca_error_t doca_comch_client_set_max_msg_size(struct doca_comch_client *comch_client, uint32_t size);
doca_error_t doca_comch_client_set_recv_queue_size(struct doca_comch_client *comch_client, uint32_t size);
doca_error_t doca_comch_client_task_send_alloc_init(struct doca_comch_client *comch_client,
    struct doca_comch_connection *peer, const void *msg, uint32_t len, struct doca_comch_task_send **task);
doca_error_t doca_comch_client_task_send_set_conf(struct doca_comch_client *comch_client,
    doca_comch_task_send_completion_cb_t task_completion_cb, doca_comch_task_send_completion_cb_t task_error_cb,
    uint32_t num_send_tasks);
#endif

/* 2.6 Comch, connection / task */
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_comch_connection_get_counter(const struct doca_comch_connection *comch_connection,
    enum doca_comch_counter counter_type, uint64_t *counter_value);
union doca_data doca_comch_connection_get_user_data(const struct doca_comch_connection *connection);
doca_error_t doca_comch_connection_set_user_data(struct doca_comch_connection *connection,
    union doca_data user_data);
doca_error_t doca_comch_connection_update_info(struct doca_comch_connection *comch_connection);
struct doca_task *doca_comch_task_send_as_task(struct doca_comch_task_send *task);
#endif

/* 2.8 GPUNetIO */
#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_gpu_create(const char *gpu_bus_id, struct doca_gpu **gpu_dev);
doca_error_t doca_gpu_destroy(struct doca_gpu *gpu_dev);
doca_error_t doca_gpu_mem_alloc(struct doca_gpu *gpu_dev, size_t size, size_t alignment,
    enum doca_gpu_mem_type mtype, void **memptr_gpu, void **memptr_cpu);
doca_error_t doca_gpu_mem_free(struct doca_gpu *gpu, void *memptr_gpu);
doca_error_t doca_gpu_dmabuf_fd(struct doca_gpu *gpu_dev, void *memptr_gpu, size_t size, int *dmabuf_fd);
#endif

#endif
