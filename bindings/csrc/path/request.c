/* Request headers: `parse_request` and `pack_request` of offpath/bindings/wire/header.py. */
#include "path.h"

enum {
    MAGIC_AT = 0,
    VERSION_AT = 4,
    FLAGS_AT = 6,
    ID_AT = 8,
    KERNEL_AT = 16,
    DEMAND_AT = 20,
    PRIORITY_AT = 22,
    COUNT_AT = 23,
    BUDGET_AT = 24,
    PAYLOAD_CRC_AT = 28,
    PAYLOAD_AT = 32,
    SEQUENCE_AT = 40,
    ZEROS_AT = 48,
    VERSION = 2,
    KNOWN_FLAGS = 63,
    FLAG_PAYLOAD_CRC = 2,
    SEQUENCE_FLAGS = 24,
    FLAG_PARAMETERS = 32,
};
static const uint32_t magic = 0x5152464F; /* b"OFRQ" */

static const unsigned char zeros[CRC_AT - ZEROS_AT];

/* Every rule of `parse_request`, on a private copy with the descriptors that it announces. */
static int is_valid(const unsigned char *copied, uint64_t max_payload_bytes)
{
    unsigned count = copied[COUNT_AT], flags = (unsigned)load(copied + FLAGS_AT, 2);
    if (load(copied + MAGIC_AT, 4) != magic || load(copied + VERSION_AT, 2) != VERSION || count > MAX_TENSORS)
        return 0;
    uint32_t crc = path_crc(0, copied, CRC_AT);
    crc = path_crc(crc, copied + FIXED_BYTES, count * TENSOR_BYTES);
    if (crc != load(copied + CRC_AT, 4))
        return 0;
    if (flags & ~(unsigned)KNOWN_FLAGS || memcmp(copied + ZEROS_AT, zeros, sizeof zeros))
        return 0;
    uint64_t payload_bytes = load(copied + PAYLOAD_AT, 8);
    if (payload_bytes > max_payload_bytes || (!(flags & FLAG_PAYLOAD_CRC) && load(copied + PAYLOAD_CRC_AT, 4)))
        return 0;
    if ((flags & SEQUENCE_FLAGS && !load(copied + SEQUENCE_AT, 8)) || (flags & FLAG_PARAMETERS && !count))
        return 0;
    return load(copied + ID_AT, 8) && path_are_tensors(copied + FIXED_BYTES, count, payload_bytes);
}

static PyObject *header_of(struct path_state *state, const unsigned char *copied)
{
    Py_ssize_t count = copied[COUNT_AT];
    PyObject *items[] = {
        path_number(copied + FLAGS_AT, 2),
        path_number(copied + ID_AT, 8),
        path_number(copied + KERNEL_AT, 4),
        path_number(copied + DEMAND_AT, 2),
        path_number(copied + PRIORITY_AT, 1),
        path_number(copied + BUDGET_AT, 4),
        path_number(copied + PAYLOAD_CRC_AT, 4),
        path_number(copied + PAYLOAD_AT, 8),
        path_number(copied + COUNT_AT, 1),
        PyBytes_FromStringAndSize((const char *)copied + FIXED_BYTES, count * TENSOR_BYTES),
        path_number(copied + SEQUENCE_AT, 8),
    };
    return path_named_tuple(state, REQUEST_HEADER, items, sizeof items / sizeof *items);
}

/* The fixed part, then the descriptors that this copy announces: how many bytes. The peer may write this memory at any
 * time. Without the barriers a compiler may read it again, later. */
static size_t copy_once(unsigned char *copied, const unsigned char *memory)
{
    memcpy(copied, memory, FIXED_BYTES);
    __asm__ volatile("" : : "r"(copied) : "memory");
    size_t count = copied[COUNT_AT] < MAX_TENSORS ? copied[COUNT_AT] : MAX_TENSORS;
    memcpy(copied + FIXED_BYTES, memory + FIXED_BYTES, count * TENSOR_BYTES);
    __asm__ volatile("" : : "r"(copied) : "memory");
    return FIXED_BYTES + count * TENSOR_BYTES;
}

/* memory, offset, max_payload_bytes -> (RequestHeader, its checksum) */
PyObject *path_take_request(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct path_state *state = path_ready(module);
    if (!state || !path_count("take_request", 3, 3, count))
        return NULL;
    unsigned char copied[COPY_BYTES];
    Py_buffer memory;
    Py_ssize_t at;
    uint64_t max_payload_bytes;
    if (PyObject_GetBuffer(args[0], &memory, PyBUF_SIMPLE) < 0)
        return NULL;
    int is_inside = path_offset(args[1], &at) && memory.len >= COPY_BYTES && at <= memory.len - COPY_BYTES
        && path_uint(args[2], UINT64_MAX, &max_payload_bytes);
    size_t copied_bytes = is_inside ? copy_once(copied, (const unsigned char *)memory.buf + at) : 0;
    PyBuffer_Release(&memory);
    if (!is_inside) /* nothing was read */
        return path_twin(state, TWIN_TAKE_REQUEST, args, count);
    if (!is_valid(copied, max_payload_bytes)) {
        PyObject *refused[] = {PyBytes_FromStringAndSize((const char *)copied, (Py_ssize_t)copied_bytes), args[2]};
        PyObject *result = refused[0] ? path_twin(state, TWIN_CHECK_REQUEST, refused, 2) : NULL;
        Py_XDECREF(refused[0]);
        return result;
    }
    PyObject *header = header_of(state, copied), *crc = header ? path_number(copied + CRC_AT, 4) : NULL;
    PyObject *both = crc ? PyTuple_Pack(2, header, crc) : NULL;
    Py_XDECREF(header);
    Py_XDECREF(crc);
    return both;
}

/* request_id, kernel_id, payload_bytes, tensors, flags, demand, priority, budget_ms, payload_crc, sequence_id
 * -> bytes */
PyObject *path_pack_request(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    static const struct place before[] = {{ID_AT, 8}, {KERNEL_AT, 4}, {PAYLOAD_AT, 8}};
    static const struct place after[] = {
        {FLAGS_AT, 2}, {DEMAND_AT, 2}, {PRIORITY_AT, 1}, {BUDGET_AT, 4}, {PAYLOAD_CRC_AT, 4},
        {SEQUENCE_AT, 8},
    };
    enum { TENSORS_ARG = 3, REST = TENSORS_ARG + 1 };
    struct path_state *state = path_ready(module);
    if (!state || !path_count("pack_request", 3, 10, count))
        return NULL;
    unsigned char fixed[FIXED_BYTES] = {0};
    char *tensors = "";
    Py_ssize_t nbytes = 0;
    if (!path_put(fixed, before, args, TENSORS_ARG)
        || (count > TENSORS_ARG && !path_tensors(args[TENSORS_ARG], &tensors, &nbytes))
        || (count > REST && !path_put(fixed, after, args + REST, count - REST))) {
        PyErr_Clear();
        return path_twin(state, TWIN_PACK_REQUEST, args, count);
    }
    store(fixed + MAGIC_AT, 4, magic);
    store(fixed + VERSION_AT, 2, VERSION);
    fixed[COUNT_AT] = (unsigned char)(nbytes / TENSOR_BYTES);
    return path_sealed(fixed, tensors, nbytes);
}
