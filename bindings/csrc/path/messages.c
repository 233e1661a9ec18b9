/* Launch and Result: `parse_launch` and `parse_result` of offpath/bindings/wire/host.py. */
#include "path.h"

enum { KIND_LAUNCH = 1, KIND_RESULT = 2, RESULT_MORE = 5, LAST_RESULT = 7 };
enum { OF_SEQUENCE = 1, OF_BATCH = 2, ROWS_BYTES = 2, MAX_MEMBERS = 256 };

/* -- launch ------------------------------------------------------------------------------------------------------ */
/* Where the descriptors start, or 0: it is not a launch. */
static Py_ssize_t launch_tensors_at(const unsigned char *message, Py_ssize_t nbytes)
{
    if (nbytes < LAUNCH_BYTES || message[0] != KIND_LAUNCH || message[3] > OF_BATCH || load(message + 30, 2))
        return 0;
    int is_in_sequence = message[3] == OF_SEQUENCE;
    Py_ssize_t at = LAUNCH_BYTES + is_in_sequence * SEQUENCE_BYTES;
    Py_ssize_t rest = nbytes - at - message[2] * TENSOR_BYTES;
    if (message[2] > MAX_TENSORS || rest < 0)
        return 0;
    if (message[3] == OF_BATCH ? !rest || rest % ROWS_BYTES || rest > MAX_MEMBERS * ROWS_BYTES : rest != 0)
        return 0;
    if (is_in_sequence && !(load(message + LAUNCH_BYTES, 8) && load(message + LAUNCH_BYTES + 8, 8)))
        return 0;
    return at;
}

/* message -> Launch */
PyObject *path_parse_launch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    static const unsigned char none[SEQUENCE_BYTES];
    struct path_state *state = path_ready(module);
    if (!state || !path_count("parse_launch", 1, 1, count))
        return NULL;
    char *bytes;
    Py_ssize_t nbytes, at = 0;
    if (PyBytes_AsStringAndSize(args[0], &bytes, &nbytes) == 0)
        at = launch_tensors_at((const unsigned char *)bytes, nbytes);
    if (!at) {
        PyErr_Clear();
        return path_twin(state, TWIN_PARSE_LAUNCH, args, count);
    }
    const unsigned char *message = (const unsigned char *)bytes;
    const unsigned char *sequence = message[3] == OF_SEQUENCE ? message + LAUNCH_BYTES : none;
    Py_ssize_t end = at + message[2] * TENSOR_BYTES;
    PyObject *items[] = {
        path_number(message + 8, 8),
        path_number(message + 16, 8),
        path_number(message + 4, 4),
        path_number(message + 28, 2),
        path_number(message + 1, 1),
        path_number(message + 24, 4),
        path_number(message + 32, 8),
        PyBytes_FromStringAndSize(bytes + at, end - at),
        path_number(sequence, 8),
        path_number(sequence + 8, 8),
        PyBytes_FromStringAndSize(bytes + end, nbytes - end),
    };
    return path_named_tuple(state, LAUNCH, items, sizeof items / sizeof *items);
}

/* -- result ------------------------------------------------------------------------------------------------------ */
/* The rules of `parse_result`. */
static int is_result(const unsigned char *message, Py_ssize_t nbytes)
{
    if (nbytes < RESULT_BYTES || message[0] != KIND_RESULT || message[1] > LAST_RESULT || message[3] > 1)
        return 0;
    if (message[2] > MAX_TENSORS || (message[1] == RESULT_MORE && !load(message + 4, 4)))
        return 0;
    Py_ssize_t left = nbytes - RESULT_BYTES - message[2] * TENSOR_BYTES;
    if (left < 0)
        return 0;
    return message[3] ? (uint64_t)left == load(message + 40, 8) && left <= INLINE_BYTES : left == 0;
}

/* message -> Result */
PyObject *path_parse_result(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct path_state *state = path_ready(module);
    if (!state || !path_count("parse_result", 1, 1, count))
        return NULL;
    char *bytes;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(args[0], &bytes, &nbytes) < 0 || !is_result((unsigned char *)bytes, nbytes)) {
        PyErr_Clear();
        return path_twin(state, TWIN_PARSE_RESULT, args, count);
    }
    const unsigned char *message = (const unsigned char *)bytes;
    Py_ssize_t at = RESULT_BYTES + message[2] * TENSOR_BYTES;
    PyObject *items[] = {
        path_number(message + 24, 8),
        path_number(message + 32, 8),
        path_number(message + 1, 1),
        path_number(message + 8, 8),
        path_number(message + 16, 8),
        path_number(message + 40, 8),
        PyBool_FromLong(message[3]),
        PyBytes_FromStringAndSize(bytes + RESULT_BYTES, at - RESULT_BYTES),
        PyBytes_FromStringAndSize(bytes + at, nbytes - at),
        path_number(message + 4, 4),
    };
    return path_named_tuple(state, RESULT, items, sizeof items / sizeof *items);
}
