/* libcuda: streams and events. Work is lazy: it runs at a synchronization, a query or a blocking copy, so that a program
 * that reads too early reads old bytes. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_internal.h"

enum { XID_ILLEGAL_ADDRESS = 31, XID_EXCEPTION = 13, XID_ECC = 94 };
static atomic_ullong queued;

uint64_t cuda_emulator_queued(void)
{
    return atomic_load(&queued);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* -- queues --------------------------------------------------------------------------------------------------------- */

/* The machine knows whether a process has work outstanding: under MPS its sudden end would harm others. */
void cuda_note_work(struct cuda_context *context)
{
    emu_state()->clients[context->client].queued = context->queued > 0;
}

struct cuda_work *cuda_submit(struct cuda_stream *stream, enum cuda_kind kind)
{
    struct cuda_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return NULL;
    work->kind = kind;
    work->number = ++stream->context->submitted;
    *stream->last = work;
    stream->last = &work->next;
    atomic_fetch_add(&queued, 1);
    stream->context->queued++;
    cuda_note_work(stream->context);
    return work;
}

static void discard(struct cuda_stream *stream)
{
    struct cuda_work *work = stream->first;
    stream->first = work->next;
    if (stream->first == NULL)
        stream->last = &stream->first;
    free(work->staged);
    free(work);
    atomic_fetch_sub(&queued, 1);
    stream->context->queued--;
    cuda_note_work(stream->context);
}

void cuda_drop_work(struct cuda_context *context)
{
    while (context->standard.first != NULL)
        discard(&context->standard);
    for (struct cuda_stream *stream = context->streams; stream != NULL; stream = stream->next)
        while (stream->first != NULL)
            discard(stream);
}

void cuda_free_streams(struct cuda_context *context)
{
    while (context->streams != NULL) {
        struct cuda_stream *stream = context->streams;
        context->streams = stream->next;
        free(stream);
    }
    while (context->events != NULL) {
        struct cuda_event *event = context->events;
        context->events = event->next;
        free(event);
    }
}

/* -- execution ------------------------------------------------------------------------------------------------------ */

static uint64_t xid_of(CUresult code)
{
    if (code == CUDA_ERROR_ECC_UNCORRECTABLE || code == CUDA_ERROR_CONTAINED)
        return XID_ECC;
    return code == CUDA_ERROR_ILLEGAL_ADDRESS ? XID_ILLEGAL_ADDRESS : XID_EXCEPTION;
}

static void set32(void *to, unsigned value, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        memcpy((uint8_t *)to + 4 * i, &value, sizeof value);
}

static CUresult execute(struct cuda_context *context, struct cuda_work *work)
{
    CUresult result = CUDA_SUCCESS;
    switch (work->kind) {
    case CUDA_COPY:
        memmove(work->to, work->from, work->len);
        break;
    case CUDA_SET8:
        memset(work->to, (int)work->value, work->len);
        break;
    case CUDA_SET32:
        set32(work->to, work->value, work->len);
        break;
    case CUDA_KERNEL:
        result = work->fault != 0 ? (CUresult)work->fault : work->kernel->run(context, work->arguments);
        break;
    case CUDA_HOST_FUNCTION:
        cuda_in_host_function = true;
        work->function(work->user_data);
        cuda_in_host_function = false;
        break;
    case CUDA_RECORD:
        if (work->event != NULL && work->event->number == work->number) {
            work->event->is_done = true;
            work->event->time_ns = now_ns();
        }
        break;
    case CUDA_WAIT:
        cuda_run_stream(work->awaited, work->awaited_number);
        break;
    }
    return result;
}

/* The default stream waits for earlier work of all blocking streams, and they for earlier work of it. */
static void run_before(struct cuda_stream *stream, uint64_t number)
{
    struct cuda_context *context = stream->context;
    if (stream != &context->standard) {
        if (stream->is_blocking)
            cuda_run_stream(&context->standard, number - 1);
        return;
    }
    for (struct cuda_stream *other = context->streams; other != NULL; other = other->next)
        if (other->is_blocking)
            cuda_run_stream(other, number - 1);
}

/* Runs what was submitted to the stream up to this number. */
void cuda_run_stream(struct cuda_stream *stream, uint64_t until)
{
    struct cuda_context *context = stream->context;
    while (context->sticky == CUDA_SUCCESS && stream->first != NULL && stream->first->number <= until) {
        run_before(stream, stream->first->number);
        if (context->sticky != CUDA_SUCCESS)
            return;
        struct cuda_work *work = stream->first;
        CUresult result = execute(context, work);
        if (result != CUDA_SUCCESS)
            cuda_fail(context, result, xid_of(result)); /* drops all that is queued, this too */
        else if (context->sticky == CUDA_SUCCESS) /* what a wait ran may have failed */
            discard(stream);
    }
    cuda_show_peers(context);
}

void cuda_run_default(struct cuda_context *context)
{
    for (struct cuda_stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->is_blocking)
            cuda_run_stream(stream, context->submitted);
    cuda_run_stream(&context->standard, context->submitted);
}

void cuda_run_all(struct cuda_context *context)
{
    cuda_run_default(context);
    for (struct cuda_stream *stream = context->streams; stream != NULL; stream = stream->next)
        cuda_run_stream(stream, context->submitted);
}

/* -- streams -------------------------------------------------------------------------------------------------------- */

/* A stream of this context, or one of the two constants for the default stream. */
CUresult cuda_stream(struct cuda_context *context, CUstream handle, struct cuda_stream **stream)
{
    enum { LEGACY = 1, PER_THREAD = 2 };
    *stream = &context->standard;
    if (handle == NULL || (uintptr_t)handle == LEGACY || (uintptr_t)handle == PER_THREAD)
        return CUDA_SUCCESS;
    for (*stream = context->streams; *stream != NULL; *stream = (*stream)->next)
        if (*stream == handle)
            return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamCreate(CUstream *handle, unsigned flags)
{
    enum { NON_BLOCKING = 1 };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (handle == NULL || flags > NON_BLOCKING)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct cuda_stream *stream = malloc(sizeof *stream);
    if (stream == NULL)
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *stream = (struct cuda_stream){context->streams, context, NULL, &stream->first, flags != NON_BLOCKING};
    context->streams = stream;
    *handle = stream;
    return cuda_leave(CUDA_SUCCESS);
}

/* Enters a call that takes a stream. */
static CUresult enter_stream(CUstream handle, struct cuda_context **context, struct cuda_stream **stream)
{
    TRY(cuda_enter_context(context));
    CUresult result = cuda_stream(*context, handle, stream);
    return result == CUDA_SUCCESS ? result : cuda_leave(result);
}

/* Its work is done first, as the real one finishes it in the background. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    ENTER(CUresult);
    TRY(enter_stream(handle, &context, &stream));
    if (stream == &context->standard)
        return cuda_leave(CUDA_ERROR_INVALID_HANDLE);
    cuda_run_all(context);
    struct cuda_stream **at = &context->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    free(stream);
    return cuda_leave(context->sticky);
}

static void run_waited(struct cuda_context *context, struct cuda_stream *stream)
{
    if (stream == &context->standard)
        cuda_run_default(context);
    else
        cuda_run_stream(stream, context->submitted);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    ENTER(CUresult);
    TRY(enter_stream(handle, &context, &stream));
    run_waited(context, stream);
    return cuda_leave(context->sticky);
}

/* Returns NOT_READY if work was queued, and runs it: the next query succeeds. */
CUresult cuStreamQuery(CUstream handle)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    ENTER(CUresult);
    TRY(enter_stream(handle, &context, &stream));
    bool was_ready = stream == &context->standard ? context->queued == 0 : stream->first == NULL;
    run_waited(context, stream);
    if (context->sticky != CUDA_SUCCESS)
        return cuda_leave(context->sticky);
    return cuda_leave(was_ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

/* -- events --------------------------------------------------------------------------------------------------------- */

static CUresult enter_event(CUevent event, struct cuda_context **context)
{
    TRY(cuda_enter_context(context));
    for (struct cuda_event *one = (*context)->events; one != NULL; one = one->next)
        if (one == event)
            return CUDA_SUCCESS;
    return cuda_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2 };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (event == NULL || (flags & ~(unsigned)(BLOCKING_SYNC | DISABLE_TIMING)) != 0)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct cuda_event *made = calloc(1, sizeof *made);
    if (made == NULL)
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    made->context = context;
    made->has_time = (flags & DISABLE_TIMING) == 0;
    made->is_done = true;
    made->next = context->events;
    context->events = made;
    *event = made;
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent event)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(enter_event(event, &context));
    cuda_run_all(context);
    struct cuda_event **at = &context->events;
    while (*at != event)
        at = &(*at)->next;
    *at = event->next;
    free(event);
    return cuda_leave(context->sticky);
}

CUresult cuEventRecord(CUevent event, CUstream handle)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    ENTER(CUresult);
    TRY(enter_event(event, &context));
    CUresult result = cuda_stream(context, handle, &stream);
    struct cuda_work *work = result == CUDA_SUCCESS ? cuda_submit(stream, CUDA_RECORD) : NULL;
    if (work == NULL)
        return cuda_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY);
    work->event = event;
    event->stream = stream;
    event->number = work->number;
    event->is_done = false;
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent event)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(enter_event(event, &context));
    if (!event->is_done)
        cuda_run_stream(event->stream, event->number);
    return cuda_leave(context->sticky);
}

CUresult cuEventQuery(CUevent event)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(enter_event(event, &context));
    bool was_done = event->is_done;
    if (!was_done)
        cuda_run_stream(event->stream, event->number);
    if (context->sticky != CUDA_SUCCESS)
        return cuda_leave(context->sticky);
    return cuda_leave(was_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    ENTER(CUresult);
    TRY(enter_event(event, &context));
    CUresult result = flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuda_stream(context, handle, &stream);
    if (result != CUDA_SUCCESS || event->is_done || event->stream == stream)
        return cuda_leave(result);
    struct cuda_work *work = cuda_submit(stream, CUDA_WAIT);
    if (work == NULL)
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    work->awaited = event->stream;
    work->awaited_number = event->number;
    return cuda_leave(CUDA_SUCCESS);
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    struct cuda_context *context;
    TRY(enter_event(start, &context));
    cuda_leave(CUDA_SUCCESS);
    TRY(enter_event(end, &context));
    if (milliseconds == NULL || !start->has_time || !end->has_time || start->number == 0 || end->number == 0)
        return cuda_leave(milliseconds == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    if (!start->is_done || !end->is_done)
        return cuda_leave(CUDA_ERROR_NOT_READY);
    *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER(CUresult);
    return elapsed(milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    ENTER(CUresult);
    return elapsed(milliseconds, start, end);
}
