/* Answer headers: `pack_answer` and `parse_answer` of offpath/bindings/wire/header.py. */
#include "path.h"

enum {
    MAGIC_AT = 0,
    VERSION_AT = 4,
    FLAGS_AT = 6,
    ID_AT = 8,
    STATUS_AT = 16,
    COUNT_AT = 17,
    REASON_AT = 18,
    RETRY_AT = 20,
    LEASE_AT = 24,
    GPU_AT = 28,
    RESULT_AT = 32,
    STAGES_AT = 40,
    GENERATION_AT = 88,
    NUMBER_AT = 96,
    BATCH_ROWS_AT = 100,
    BATCH_AT = 104,
    ZEROS_AT = 112,
    VERSION = 2,
    STAGE_COUNT = 6,
    FLAG_MORE = 1,
    COMPLETED = 1,
};
static const uint32_t magic = 0x5341464F; /* b"OFAS" */
static const unsigned char zeros[CRC_AT - ZEROS_AT];

static int put_stages(unsigned char *fixed, PyObject *stages)
{
    if (!PyTuple_Check(stages) || PyTuple_Size(stages) != STAGE_COUNT)
        return 0;
    for (int n = 0; n < STAGE_COUNT; n++) {
        uint64_t ns;
        if (!path_uint(PyTuple_GetItem(stages, n), UINT64_MAX, &ns))
            return 0;
        store(fixed + STAGES_AT + 8 * n, 8, ns);
    }
    return 1;
}

/* request_id, status, reason, retry_after_ms, lease, gpu, generation, result_bytes, stages, tensors, flags,
 * number, batch_rows, batch -> bytes */
PyObject *path_pack_answer(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    static const struct place places[] = {
        {ID_AT, 8}, {STATUS_AT, 1}, {REASON_AT, 2}, {RETRY_AT, 4}, {LEASE_AT, 4}, {GPU_AT, 4}, {GENERATION_AT, 8},
        {RESULT_AT, 8},
    };
    static const struct place after[] = {{FLAGS_AT, 2}, {NUMBER_AT, 4}, {BATCH_ROWS_AT, 4}, {BATCH_AT, 8}};
    enum { NUMBERS = 8, STAGES_ARG = NUMBERS, TENSORS_ARG = NUMBERS + 1, REST = TENSORS_ARG + 1 };
    struct path_state *state = path_ready(module);
    if (!state || !path_count("pack_answer", 2, 14, count))
        return NULL;
    unsigned char fixed[FIXED_BYTES] = {0};
    char *tensors = "";
    Py_ssize_t nbytes = 0;
    if (!path_put(fixed, places, args, count < NUMBERS ? count : NUMBERS)
        || (count > STAGES_ARG && !put_stages(fixed, args[STAGES_ARG]))
        || (count > TENSORS_ARG && !path_tensors(args[TENSORS_ARG], &tensors, &nbytes))
        || (count > REST && !path_put(fixed, after, args + REST, count - REST))) {
        PyErr_Clear();
        return path_twin(state, TWIN_PACK_ANSWER, args, count);
    }
    store(fixed + MAGIC_AT, 4, magic);
    store(fixed + VERSION_AT, 2, VERSION);
    fixed[COUNT_AT] = (unsigned char)(nbytes / TENSOR_BYTES);
    return path_sealed(fixed, tensors, nbytes);
}

static PyObject *of_code(PyObject *const *by_number, uint64_t code)
{
    return code < MOST_CODES ? by_number[code] : NULL;
}

/* The rules of `parse_answer`, but for the descriptors. */
static int is_valid(struct path_state *state, const unsigned char *copied, Py_ssize_t nbytes, uint64_t max_result_bytes)
{
    if (nbytes < FIXED_BYTES || load(copied + MAGIC_AT, 4) != magic || load(copied + VERSION_AT, 2) != VERSION)
        return 0;
    Py_ssize_t count = copied[COUNT_AT];
    if (count > MAX_TENSORS || FIXED_BYTES + count * TENSOR_BYTES > nbytes)
        return 0;
    uint32_t crc = path_crc(0, copied, CRC_AT);
    crc = path_crc(crc, copied + FIXED_BYTES, (size_t)count * TENSOR_BYTES);
    if (crc != load(copied + CRC_AT, 4) || memcmp(copied + ZEROS_AT, zeros, sizeof zeros))
        return 0;
    uint64_t flags = load(copied + FLAGS_AT, 2);
    if (flags > FLAG_MORE || (flags && (copied[STATUS_AT] != COMPLETED || !load(copied + NUMBER_AT, 4))))
        return 0;
    return load(copied + RESULT_AT, 8) <= max_result_bytes && of_code(state->statuses, copied[STATUS_AT])
        && of_code(state->reasons, load(copied + REASON_AT, 2));
}

static PyObject *stages_of(struct path_state *state, const unsigned char *copied)
{
    PyObject *items[STAGE_COUNT];
    for (int n = 0; n < STAGE_COUNT; n++)
        items[n] = path_number(copied + STAGES_AT + 8 * n, 8);
    return path_named_tuple(state, STAGES, items, STAGE_COUNT);
}

/* The unpacked descriptors, from the twin's cache of those that repeat. */
static PyObject *tensors_of(struct path_state *state, const unsigned char *copied)
{
    Py_ssize_t count = copied[COUNT_AT];
    if (!count)
        return PyTuple_New(0);
    PyObject *args[] = {
        PyBytes_FromStringAndSize((const char *)copied + FIXED_BYTES, count * TENSOR_BYTES),
        path_number(copied + RESULT_AT, 8),
    };
    PyObject *tensors = args[0] && args[1] ? path_twin(state, UNPACK_TENSORS, args, 2) : NULL;
    Py_XDECREF(args[0]);
    Py_XDECREF(args[1]);
    return tensors;
}

/* copied, max_result_bytes -> AnswerHeader */
PyObject *path_parse_answer(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct path_state *state = path_ready(module);
    if (!state || !path_count("parse_answer", 2, 2, count))
        return NULL;
    char *bytes;
    Py_ssize_t nbytes;
    uint64_t max_result_bytes;
    if (PyBytes_AsStringAndSize(args[0], &bytes, &nbytes) < 0 || !path_uint(args[1], UINT64_MAX, &max_result_bytes)
        || !is_valid(state, (unsigned char *)bytes, nbytes, max_result_bytes)) {
        PyErr_Clear();
        return path_twin(state, TWIN_PARSE_ANSWER, args, count);
    }
    const unsigned char *copied = (const unsigned char *)bytes;
    PyObject *tensors = tensors_of(state, copied); /* first: it may raise */
    if (!tensors)
        return NULL;
    PyObject *items[] = {
        path_number(copied + ID_AT, 8),
        Py_NewRef(state->statuses[copied[STATUS_AT]]),
        Py_NewRef(state->reasons[load(copied + REASON_AT, 2)]),
        path_number(copied + RETRY_AT, 4),
        path_number(copied + LEASE_AT, 4),
        path_number(copied + GPU_AT, 4),
        path_number(copied + GENERATION_AT, 8),
        path_number(copied + RESULT_AT, 8),
        stages_of(state, copied),
        tensors,
        path_number(copied + FLAGS_AT, 2),
        path_number(copied + NUMBER_AT, 4),
        path_number(copied + BATCH_ROWS_AT, 4),
        path_number(copied + BATCH_AT, 8),
    };
    return path_named_tuple(state, ANSWER_HEADER, items, sizeof items / sizeof *items);
}
