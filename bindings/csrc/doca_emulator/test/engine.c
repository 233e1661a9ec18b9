/* The progress engine, contexts and tasks: states, pools, notification, and nothing outside doca_pe_progress. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

static char bytes[4096];

static void ignore(struct doca_dma_task_memcpy *task, union doca_data mark, union doca_data of)
{
    (void)task, (void)mark, (void)of;
}

static void a_context_goes_through_its_states_in_order(void)
{
    struct doca_dev *dpu = device("dpu");
    struct doca_dma *dma;
    struct doca_pe *pe, *other;
    uint32_t most;
    OK(doca_dma_create(dpu, &dma));
    struct doca_ctx *ctx = doca_dma_as_ctx(dma);
    OK(doca_pe_create(&pe));
    OK(doca_pe_create(&other));
    CHECK(is_idle(ctx));
    EXPECT(doca_ctx_start(ctx), DOCA_ERROR_NOT_CONNECTED);
    EXPECT(doca_ctx_stop(ctx), DOCA_ERROR_BAD_STATE);
    OK(doca_pe_connect_ctx(pe, ctx));
    EXPECT(doca_pe_connect_ctx(pe, ctx), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_pe_connect_ctx(other, ctx), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_ctx_start(ctx), DOCA_ERROR_INITIALIZATION); /* set_conf was not called */
    EXPECT(doca_dma_task_memcpy_set_conf(dma, NULL, ignore, 1), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_dma_task_memcpy_set_conf(dma, ignore, ignore, 0), DOCA_ERROR_INVALID_VALUE);
    OK(doca_dma_cap_get_max_num_tasks(dma, &most));
    EXPECT(doca_dma_task_memcpy_set_conf(dma, ignore, ignore, most + 1), DOCA_ERROR_INVALID_VALUE);
    OK(doca_dma_task_memcpy_set_conf(dma, ignore, ignore, most));
    OK(doca_ctx_start(ctx));
    CHECK(is_running(ctx));
    EXPECT(doca_ctx_start(ctx), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_dma_task_memcpy_set_conf(dma, ignore, ignore, 1), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_dma_destroy(dma), DOCA_ERROR_IN_USE);
    EXPECT(doca_pe_destroy(pe), DOCA_ERROR_IN_USE);
    EXPECT(doca_pe_connect_ctx(other, ctx), DOCA_ERROR_BAD_STATE);
    OK(doca_ctx_stop(ctx));
    CHECK(is_idle(ctx));
    EXPECT(doca_pe_destroy(pe), DOCA_ERROR_IN_USE);
    OK(doca_ctx_start(ctx)); /* and once more */
    OK(doca_ctx_stop(ctx));
    EXPECT(doca_dev_close(dpu), DOCA_ERROR_IN_USE);
    OK(doca_dma_destroy(dma));
    OK(doca_pe_destroy(pe));
    OK(doca_pe_destroy(other));
    OK(doca_dev_close(dpu));
}

struct copies {
    struct rig rig;
    struct doca_mmap *mmap;
    struct doca_buf *src, *dst;
};

static void copies_open(struct copies *of, uint32_t tasks)
{
    rig_open(&of->rig, device("dpu"), tasks);
    of->mmap = map(of->rig.dev, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    of->src = buf(of->rig.inventory, of->mmap, bytes, 4, 4);
    of->dst = buf(of->rig.inventory, of->mmap, bytes + 64, 4000, 0);
}

static void copies_close(struct copies *of)
{
    OK(doca_buf_dec_refcount(of->src, NULL));
    OK(doca_buf_dec_refcount(of->dst, NULL));
    OK(doca_mmap_destroy(of->mmap));
    struct doca_dev *dev = of->rig.dev;
    rig_close(&of->rig);
    OK(doca_dev_close(dev));
}

static struct doca_task *submit(struct copies *of, uint64_t mark)
{
    struct doca_task *task = doca_dma_task_memcpy_as_task(copy(&of->rig, of->src, of->dst, mark));
    OK(doca_task_submit(task));
    return task;
}

static void nothing_completes_outside_progress_and_one_task_in_each_call(void)
{
    struct copies of;
    copies_open(&of, 3);
    size_t in_flight;
    for (uint64_t mark = 1; mark <= 3; mark++)
        submit(&of, mark);
    struct doca_dma_task_memcpy *fourth;
    EXPECT(doca_dma_task_memcpy_alloc_init(of.rig.dma, of.src, of.dst, (union doca_data){0}, &fourth),
        DOCA_ERROR_NO_MEMORY);
    usleep(20000);
    CHECK(of.rig.done_count == 0 && bytes[64] == 0);
    strcpy(bytes, "abc");
    for (size_t done = 1; done <= 3; done++) {
        OK(doca_pe_get_num_inflight_tasks(of.rig.pe, &in_flight));
        CHECK(in_flight == 4 - done);
        CHECK(doca_pe_progress(of.rig.pe) == 1);
        CHECK(of.rig.done_count == done && of.rig.done[done - 1] == done);
    }
    CHECK(doca_pe_progress(of.rig.pe) == 0);
    CHECK(memcmp(bytes + 64, "abc\0abc\0abc", 12) == 0);
    struct doca_dma_task_memcpy *again = copy(&of.rig, of.src, of.dst, 9);
    CHECK(doca_task_get_ctx(doca_dma_task_memcpy_as_task(again)) == of.rig.ctx);
    CHECK(doca_dma_task_memcpy_get_src(again) == of.src && doca_dma_task_memcpy_get_dst(again) == of.dst);
    doca_task_set_user_data(doca_dma_task_memcpy_as_task(again), (union doca_data){.u64 = 10});
    CHECK(doca_task_get_user_data(doca_dma_task_memcpy_as_task(again)).u64 == 10);
    OK(doca_task_submit_ex(doca_dma_task_memcpy_as_task(again), DOCA_TASK_SUBMIT_FLAG_FLUSH));
    CHECK(doca_pe_progress(of.rig.pe) == 1 && of.rig.done[3] == 10);
    copies_close(&of);
}

static void a_context_stops_when_its_tasks_are_done_and_freed(void)
{
    struct copies of;
    copies_open(&of, 2);
    of.rig.keeps_tasks = true;
    submit(&of, 1);
    struct doca_dma_task_memcpy *unsubmitted = copy(&of.rig, of.src, of.dst, 2);
    EXPECT(doca_ctx_stop(of.rig.ctx), DOCA_ERROR_IN_PROGRESS);
    EXPECT(doca_ctx_stop(of.rig.ctx), DOCA_ERROR_IN_PROGRESS);
    CHECK(state(of.rig.ctx) == DOCA_CTX_STATE_STOPPING);
    EXPECT(doca_task_submit(doca_dma_task_memcpy_as_task(unsubmitted)), DOCA_ERROR_BAD_STATE);
    struct doca_dma_task_memcpy *late;
    EXPECT(doca_dma_task_memcpy_alloc_init(of.rig.dma, of.src, of.dst, (union doca_data){0}, &late),
        DOCA_ERROR_BAD_STATE);
    until(of.rig.pe, all_done, &of.rig);
    for (int i = 0; i < 100; i++)
        CHECK(doca_pe_progress(of.rig.pe) == 0 && state(of.rig.ctx) == DOCA_CTX_STATE_STOPPING);
    doca_task_free(of.rig.kept[0]);
    CHECK(doca_pe_progress(of.rig.pe) == 0);
    doca_task_free(doca_dma_task_memcpy_as_task(unsubmitted));
    CHECK(state(of.rig.ctx) == DOCA_CTX_STATE_STOPPING);
    CHECK(doca_pe_progress(of.rig.pe) == 1 && is_idle(of.rig.ctx));
    CHECK(of.rig.state_count == 3 && of.rig.states[1] == DOCA_CTX_STATE_STOPPING &&
              of.rig.states[2] == DOCA_CTX_STATE_IDLE);
    copies_close(&of);
}

static void one_failed_copy_takes_all_others_down(void)
{
    struct copies of;
    copies_open(&of, 4);
    struct doca_buf *empty = buf(of.rig.inventory, of.mmap, bytes, 4, 0);
    submit(&of, 1);
    struct doca_dma_task_memcpy *bad = copy(&of.rig, empty, of.dst, 2);
    EXPECT(doca_task_try_submit(doca_dma_task_memcpy_as_task(bad)), DOCA_ERROR_INVALID_VALUE);
    OK(doca_task_submit(doca_dma_task_memcpy_as_task(bad)));
    submit(&of, 3);
    submit(&of, 4);
    until(of.rig.pe, all_done, &of.rig);
    CHECK(of.rig.done_count == 1 && of.rig.done[0] == 1);
    CHECK(of.rig.failed_count == 3 && of.rig.failed[0] == 2 && of.rig.failed[1] == 3 && of.rig.failed[2] == 4);
    for (int i = 0; i < 3; i++)
        CHECK(of.rig.errors[i] == DOCA_ERROR_IO_FAILED);
    CHECK(of.rig.states[1] == DOCA_CTX_STATE_STOPPING);
    until(of.rig.pe, is_idle, of.rig.ctx);
    OK(doca_ctx_start(of.rig.ctx));
    submit(&of, 5);
    until(of.rig.pe, all_done, &of.rig);
    CHECK(of.rig.done_count == 2);
    OK(doca_buf_dec_refcount(empty, NULL));
    copies_close(&of);
}

/* -- notification -------------------------------------------------------------------------------------------------- */

static void the_handle_is_readable_only_after_a_request_with_something_to_do(void)
{
    struct copies of;
    copies_open(&of, 4);
    doca_notification_handle_t handle;
    OK(doca_pe_get_notification_handle(of.rig.pe, &handle));
    CHECK(handle >= 0 && !readable(handle, 0));
    submit(&of, 1);
    CHECK(!readable(handle, 20)); /* never requested */
    OK(doca_pe_request_notification(of.rig.pe));
    CHECK(readable(handle, 0)); /* something is pending already */
    OK(doca_pe_clear_notification(of.rig.pe, handle));
    CHECK(!readable(handle, 0));
    CHECK(doca_pe_progress(of.rig.pe) == 1 && doca_pe_progress(of.rig.pe) == 0);
    OK(doca_pe_request_notification(of.rig.pe));
    CHECK(!readable(handle, 20)); /* nothing to do */
    submit(&of, 2);
    CHECK(readable(handle, 0));
    CHECK(doca_pe_progress(of.rig.pe) == 1);
    CHECK(readable(handle, 0)); /* until it is cleared */
    OK(doca_pe_clear_notification(of.rig.pe, handle));
    submit(&of, 3);
    CHECK(!readable(handle, 20)); /* each clear ends the request */
    CHECK(doca_pe_progress(of.rig.pe) == 1);
    fault("delay=40");
    OK(doca_pe_request_notification(of.rig.pe));
    uint64_t begun = now_ms();
    submit(&of, 4);
    CHECK(doca_pe_progress(of.rig.pe) == 0 && !readable(handle, 0));
    CHECK(readable(handle, 5000) && now_ms() - begun >= 39);
    OK(doca_pe_clear_notification(of.rig.pe, handle));
    CHECK(doca_pe_progress(of.rig.pe) == 1);
    EXPECT(doca_pe_clear_notification(of.rig.pe, handle + 100), DOCA_ERROR_INVALID_VALUE);
    copies_close(&of);
}

static void the_last_free_of_a_stopping_context_is_something_to_do(void)
{
    struct copies of;
    copies_open(&of, 1);
    doca_notification_handle_t handle;
    OK(doca_pe_get_notification_handle(of.rig.pe, &handle));
    struct doca_task *task = doca_dma_task_memcpy_as_task(copy(&of.rig, of.src, of.dst, 1));
    EXPECT(doca_ctx_stop(of.rig.ctx), DOCA_ERROR_IN_PROGRESS);
    OK(doca_pe_request_notification(of.rig.pe));
    CHECK(!readable(handle, 0));
    doca_task_free(task);
    CHECK(readable(handle, 0));
    CHECK(doca_pe_progress(of.rig.pe) == 1 && is_idle(of.rig.ctx));
    copies_close(&of);
}

/* -- misuse and threads -------------------------------------------------------------------------------------------- */

static struct doca_pe *engine;

static void progress_again(struct doca_dma_task_memcpy *task, union doca_data mark, union doca_data of)
{
    (void)task, (void)mark, (void)of;
    (void)doca_pe_progress(engine);
}

static void progresses_in_a_callback(void)
{
    struct doca_dev *dpu = device("dpu");
    struct doca_dma *dma;
    OK(doca_dma_create(dpu, &dma));
    OK(doca_dma_task_memcpy_set_conf(dma, progress_again, progress_again, 1));
    OK(doca_pe_create(&engine));
    OK(doca_pe_connect_ctx(engine, doca_dma_as_ctx(dma)));
    OK(doca_ctx_start(doca_dma_as_ctx(dma)));
    struct doca_mmap *mmap = map(dpu, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct doca_buf_inventory *all = inventory(2);
    struct doca_dma_task_memcpy *task;
    OK(doca_dma_task_memcpy_alloc_init(dma, buf(all, mmap, bytes, 4, 4), buf(all, mmap, bytes + 8, 4, 0),
        (union doca_data){0}, &task));
    OK(doca_task_submit(doca_dma_task_memcpy_as_task(task)));
    (void)doca_pe_progress(engine);
}

static void progress_in_a_callback_ends_the_process(void)
{
    aborts(progresses_in_a_callback, "doca_pe_progress: called inside a callback");
}

enum { ROUNDS = 2000, THREADS = 3 };
static struct doca_dev *shared_device;

static void *copy_much(void *at)
{
    struct rig rig;
    char *own = at;
    rig_open(&rig, shared_device, 8);
    struct doca_mmap *mmap = map(shared_device, own, 1024, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    for (int i = 0; i < ROUNDS; i++) {
        memset(own, i, 512);
        OK(copied(&rig, buf(rig.inventory, mmap, own, 512, 512), buf(rig.inventory, mmap, own + 512, 512, 0)));
        CHECK(own[1023] == (char)i);
    }
    OK(doca_mmap_destroy(mmap));
    rig_close(&rig);
    return NULL;
}

static void engines_in_threads_of_their_own_do_not_meet(void)
{
    static char own[THREADS][1024];
    pthread_t threads[THREADS];
    shared_device = device("dpu");
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, copy_much, own[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(doca_dev_close(shared_device));
}

const struct test engine_tests[] = {
    {"a_context_goes_through_its_states_in_order", a_context_goes_through_its_states_in_order},
    {"nothing_completes_outside_progress_and_one_task_in_each_call",
        nothing_completes_outside_progress_and_one_task_in_each_call},
    {"a_context_stops_when_its_tasks_are_done_and_freed", a_context_stops_when_its_tasks_are_done_and_freed},
    {"one_failed_copy_takes_all_others_down", one_failed_copy_takes_all_others_down},
    {"the_handle_is_readable_only_after_a_request_with_something_to_do",
        the_handle_is_readable_only_after_a_request_with_something_to_do},
    {"the_last_free_of_a_stopping_context_is_something_to_do", the_last_free_of_a_stopping_context_is_something_to_do},
    {"progress_in_a_callback_ends_the_process", progress_in_a_callback_ends_the_process},
    {"engines_in_threads_of_their_own_do_not_meet", engines_in_threads_of_their_own_do_not_meet},
    {NULL, NULL},
};
