// A Triton backend that copies its input to its output, against Triton's C API for backends (tritonbackend.h 1.x,
// declared here: the wheel that brings the server has no headers). Of an output named FIRST it writes one byte only,
// like the kernel of offpath's settings. It refuses nothing: the benchmark's model config fixes types and names.
#include <cstdint>
#include <cstring>
#include <ctime>

extern "C" {
struct TRITONSERVER_Error;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Output;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *message);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *);
TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request *, uint32_t, TRITONBACKEND_Input **);
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *, uint32_t, const char **);
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *, uint32_t flags);
TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *, const char **name, int *datatype,
                                                  const int64_t **shape, uint32_t *dims, uint64_t *nbytes,
                                                  uint32_t *buffers);
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *, uint32_t, const void **, uint64_t *nbytes,
                                              int *memory, int64_t *memory_id);
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **, TRITONBACKEND_Request *);
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *, TRITONBACKEND_Output **, const char *name,
                                                 int datatype, const int64_t *shape, uint32_t dims);
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *, uint32_t flags, TRITONSERVER_Error *);
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *, void **, uint64_t nbytes, int *memory,
                                               int64_t *memory_id);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request *,
                                                                bool success, uint64_t, uint64_t, uint64_t, uint64_t);
}

namespace {
constexpr uint32_t kFinal = 1, kReleaseAll = 1;
constexpr int kInvalidArgument = 3;

uint64_t NowNs() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

// Null, or the error that the client receives: without an answer the request would hang, and its regions stay in use.
TRITONSERVER_Error *Copy(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response) {
    TRITONBACKEND_Input *input;
    TRITONBACKEND_Output *output;
    const char *name, *wanted;
    const int64_t *shape;
    const void *from;
    void *to;
    int datatype, memory = 0;
    uint32_t dims, buffers;
    uint64_t nbytes, in_buffer;
    int64_t memory_id = 0, one = 1;
    TRITONSERVER_Error *error;
    if ((error = TRITONBACKEND_RequestInputByIndex(request, 0, &input)) ||
        (error = TRITONBACKEND_RequestOutputName(request, 0, &wanted)) ||
        (error = TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &nbytes, &buffers)) ||
        (error = TRITONBACKEND_InputBuffer(input, 0, &from, &in_buffer, &memory, &memory_id)))
        return error;
    if (buffers != 1 || in_buffer != nbytes || !nbytes)
        return TRITONSERVER_ErrorNew(kInvalidArgument, "the input is not one buffer");
    bool is_first = !std::strcmp(wanted, "FIRST");
    uint64_t size = is_first ? 1 : nbytes;
    if ((error = TRITONBACKEND_ResponseOutput(response, &output, wanted, datatype, is_first ? &one : shape,
                                              is_first ? 1 : dims)) ||
        (error = TRITONBACKEND_OutputBuffer(output, &to, size, &memory, &memory_id)))
        return error;
    std::memcpy(to, from, size);
    return nullptr;
}
}  // namespace

extern "C" TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                                  TRITONBACKEND_Request **requests, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint64_t begun = NowNs();
        TRITONBACKEND_Response *response;
        TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, requests[i]);
        bool ok = !error;
        if (ok) {
            TRITONSERVER_Error *failed = Copy(requests[i], response);
            ok = !failed;
            error = TRITONBACKEND_ResponseSend(response, kFinal, failed);
            if (failed)
                TRITONSERVER_ErrorDelete(failed);
        }
        if (error)
            TRITONSERVER_ErrorDelete(error);
        uint64_t ended = NowNs();
        TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], ok, begun, begun, ended, ended);
        TRITONBACKEND_RequestRelease(requests[i], kReleaseAll);
    }
    return nullptr;
}
