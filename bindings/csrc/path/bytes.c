/* Python values to bytes and back. A value that does not fit is no error here: the twin reports it. */
#include "path.h"

int path_uint(PyObject *number, uint64_t most, uint64_t *into)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    *into = value;
    return value <= most;
}

int path_offset(PyObject *number, Py_ssize_t *into)
{
    Py_ssize_t value = PyLong_AsSsize_t(number);
    if (value < 0) {
        PyErr_Clear();
        return 0;
    }
    *into = value;
    return 1;
}

/* The arguments as integers at their places. False: one does not fit. */
int path_put(unsigned char *fixed, const struct place *places, PyObject *const *args, Py_ssize_t count)
{
    for (Py_ssize_t n = 0; n < count; n++) {
        uint64_t value;
        if (!path_uint(args[n], most_of(places[n].width), &value))
            return 0;
        store(fixed + places[n].at, places[n].width, value);
    }
    return 1;
}

/* Packed descriptors: bytes, whole ones, and no more than a header may have. */
int path_tensors(PyObject *packed, char **tensors, Py_ssize_t *nbytes)
{
    return PyBytes_AsStringAndSize(packed, tensors, nbytes) == 0 && *nbytes % TENSOR_BYTES == 0
        && *nbytes <= MAX_TENSORS * TENSOR_BYTES;
}

PyObject *path_number(const unsigned char *at, int width)
{
    return PyLong_FromUnsignedLongLong(load(at, width));
}

/* A header with its checksum, and its descriptors. */
PyObject *path_sealed(unsigned char *header, const char *tensors, Py_ssize_t tensor_bytes)
{
    uint32_t crc = path_crc(0, header, CRC_AT);
    crc = path_crc(crc, (const unsigned char *)tensors, (size_t)tensor_bytes);
    store(header + CRC_AT, 4, crc);
    PyObject *sealed = PyBytes_FromStringAndSize(NULL, FIXED_BYTES + tensor_bytes);
    if (sealed) {
        char *into = PyBytes_AsString(sealed);
        memcpy(into, header, FIXED_BYTES);
        memcpy(into + FIXED_BYTES, tensors, (size_t)tensor_bytes);
    }
    return sealed;
}
