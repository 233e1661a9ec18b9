/* A copy between two memories, in place: what the loopback copy engine does with small ones. */
#include "path.h"

static int is_inside(Py_ssize_t at, Py_ssize_t nbytes, const Py_buffer *memory)
{
    return nbytes <= memory->len && at <= memory->len - nbytes;
}

/* source, source_offset, target, target_offset, nbytes -> False: it leaves a memory, or one is closed; nothing copied */
PyObject *path_copy(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t from, to, nbytes;
    Py_buffer source, target;
    if (!path_count("copy", 5, 5, count))
        return NULL;
    if (!path_offset(args[1], &from) || !path_offset(args[3], &to) || !path_offset(args[4], &nbytes))
        Py_RETURN_FALSE;
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    int fits = PyObject_GetBuffer(args[2], &target, PyBUF_WRITABLE) == 0;
    if (fits) {
        fits = is_inside(from, nbytes, &source) && is_inside(to, nbytes, &target);
        if (fits)
            memmove((char *)target.buf + to, (const char *)source.buf + from, (size_t)nbytes);
        PyBuffer_Release(&target);
    }
    PyBuffer_Release(&source);
    PyErr_Clear();
    return PyBool_FromLong(fits);
}
