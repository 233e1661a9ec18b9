/* libcuda: with OFFPATH_GPU_EMULATOR_ASYNC=SEED, a thread runs queued work by itself, one operation at a time, of
 * streams and after delays that the seed determines. Without it, work runs only at a synchronization, a query or a blocking copy. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "cuda_internal.h"

enum { MOST_DELAY_NS = 2000000 };
static uint64_t seed;

static uint64_t next_random(void) /* splitmix64 */
{
    uint64_t z = (seed += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* One of the context's streams that have work; NULL: none has. */
static struct cuda_stream *pick(struct cuda_context *context)
{
    struct cuda_stream *picked = NULL;
    uint64_t count = 0;
    if (context->standard.first != NULL && next_random() % ++count == 0)
        picked = &context->standard;
    for (struct cuda_stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->first != NULL && next_random() % ++count == 0)
            picked = stream;
    return picked;
}

static void run_one(void)
{
    pthread_mutex_lock(&cuda.mutex);
    for (int i = 0; i < cuda.count; i++) {
        struct cuda_context *context = &cuda.contexts[i];
        struct cuda_stream *stream = context->users > 0 && context->sticky == CUDA_SUCCESS ? pick(context) : NULL;
        if (stream != NULL)
            cuda_run_stream(stream, stream->first->number);
    }
    pthread_mutex_unlock(&cuda.mutex);
}

static void *run(void *unused)
{
    (void)unused;
    for (;;) {
        struct timespec delay = {0, (long)(next_random() % MOST_DELAY_NS)};
        nanosleep(&delay, NULL);
        run_one();
    }
    return NULL;
}

CUresult cuda_start_thread(void)
{
    pthread_t thread;
    const char *text = getenv("OFFPATH_GPU_EMULATOR_ASYNC");
    if (text == NULL || *text == '\0')
        return CUDA_SUCCESS;
    seed = emu_number("OFFPATH_GPU_EMULATOR_ASYNC", text, 0, UINT64_MAX);
    NEEDS(pthread_create(&thread, NULL, run, NULL) == 0, CUDA_ERROR_OPERATING_SYSTEM);
    pthread_detach(thread);
    return CUDA_SUCCESS;
}
