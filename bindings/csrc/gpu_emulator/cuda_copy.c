/* libcuda: copies and memsets. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

enum { D32 = 4 };

static CUresult submit_copy(struct cuda_stream *stream, void *to, const void *from, uint64_t len, bool stages)
{
    void *staged = stages ? malloc(len) : NULL;
    NEEDS(!stages || staged != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    struct cuda_work *work = cuda_submit(stream, CUDA_COPY);
    if (work == NULL) {
        free(staged);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (stages)
        memcpy(staged, from, len);
    work->to = to;
    work->from = stages ? staged : from;
    work->staged = staged;
    work->len = len;
    return CUDA_SUCCESS;
}

/* Enters a call that works on a stream and on device memory. On an error, or with nothing to do, nothing is locked and
 * *bytes is NULL. */
static CUresult enter(CUstream handle, CUdeviceptr ptr, uint64_t len, struct cuda_context **context,
    struct cuda_stream **stream, uint8_t **bytes)
{
    *bytes = NULL;
    TRY(cuda_enter_context(context));
    CUresult result = cuda_stream(*context, handle, stream);
    if (result == CUDA_SUCCESS && len > 0) {
        *bytes = cuda_bytes(*context, ptr, len);
        result = *bytes != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    return *bytes != NULL ? CUDA_SUCCESS : cuda_leave(result);
}

/* -- host and device ------------------------------------------------------------------------------------------------ */

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t len)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    uint8_t *bytes;
    ENTER(CUresult);
    TRY(enter(NULL, to, len, &context, &stream, &bytes));
    NEEDS(bytes != NULL, CUDA_SUCCESS);
    cuda_run_default(context);
    if (context->sticky == CUDA_SUCCESS)
        memcpy(bytes, from, len);
    cuda_show_peers(context);
    return cuda_leave(context->sticky);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t len)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    uint8_t *bytes;
    ENTER(CUresult);
    TRY(enter(NULL, from, len, &context, &stream, &bytes));
    NEEDS(bytes != NULL, CUDA_SUCCESS);
    cuda_run_default(context);
    if (context->sticky == CUDA_SUCCESS)
        memcpy(to, bytes, len);
    return cuda_leave(context->sticky);
}

/* Pageable memory is read before the call returns, pinned memory when the copy runs. */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t len, CUstream handle)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    uint8_t *bytes;
    ENTER(CUresult);
    TRY(enter(handle, to, len, &context, &stream, &bytes));
    NEEDS(bytes != NULL, CUDA_SUCCESS);
    return cuda_leave(submit_copy(stream, bytes, from, len, !cuda_is_pinned(from, len)));
}

/* Into pageable memory the copy is done when the call returns. */
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t len, CUstream handle)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    uint8_t *bytes;
    ENTER(CUresult);
    TRY(enter(handle, from, len, &context, &stream, &bytes));
    NEEDS(bytes != NULL, CUDA_SUCCESS);
    CUresult result = submit_copy(stream, to, bytes, len, false);
    if (result == CUDA_SUCCESS && !cuda_is_pinned(to, len)) {
        cuda_run_stream(stream, context->submitted);
        result = context->sticky;
    }
    return cuda_leave(result);
}

/* -- device to device, and memsets ---------------------------------------------------------------------------------- */

/* Of memory with SYNC_MEMOPS, what is called synchronous is so. */
static CUresult wait_if_synchronous(struct cuda_context *context, CUdeviceptr ptr)
{
    const struct cuda_allocation *one = cuda_allocation_at(context, ptr);
    if (one != NULL && one->is_synchronous)
        cuda_run_default(context);
    return context->sticky;
}

static CUresult copy_on_device(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream handle, bool is_async)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    uint8_t *bytes;
    TRY(enter(handle, to, len, &context, &stream, &bytes));
    NEEDS(bytes != NULL, CUDA_SUCCESS);
    const uint8_t *source = cuda_bytes(context, from, len);
    CUresult result = source != NULL ? submit_copy(stream, bytes, source, len, false) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !is_async)
        result = wait_if_synchronous(context, to);
    return cuda_leave(result);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t len)
{
    ENTER(CUresult);
    return copy_on_device(to, from, len, NULL, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream stream)
{
    ENTER(CUresult);
    return copy_on_device(to, from, len, stream, true);
}

static CUresult set(CUdeviceptr to, unsigned value, size_t count, size_t size, CUstream handle, bool is_async)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    uint8_t *bytes;
    NEEDS(count <= SIZE_MAX / size, CUDA_ERROR_INVALID_VALUE);
    TRY(enter(handle, to, count * size, &context, &stream, &bytes));
    NEEDS(bytes != NULL, CUDA_SUCCESS);
    if (to % size != 0)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct cuda_work *work = cuda_submit(stream, size == D32 ? CUDA_SET32 : CUDA_SET8);
    if (work == NULL)
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    work->to = bytes;
    work->value = value;
    work->len = count;
    return cuda_leave(is_async ? CUDA_SUCCESS : wait_if_synchronous(context, to));
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    ENTER(CUresult);
    return set(to, value, count, 1, NULL, false);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    ENTER(CUresult);
    return set(to, value, count, 1, stream, true);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    ENTER(CUresult);
    return set(to, value, count, D32, stream, true);
}
