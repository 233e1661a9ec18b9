/* The module `offpath.bindings._path`: its functions, and what it takes from the Python side. */
#include "path.h"

#ifndef PATH_SOURCES
#define PATH_SOURCES "unknown"
#endif
/* The build hook searches a module's file for this text. */
static const char sources[] = "offpath path sources " PATH_SOURCES;

static const char *const held_names[HELD_COUNT] = {
    [REQUEST_HEADER] = "RequestHeader",
    [ANSWER_HEADER] = "AnswerHeader",
    [STAGES] = "Stages",
    [LAUNCH] = "Launch",
    [RESULT] = "Result",
    [TWIN_TAKE_REQUEST] = "take_request",
    [TWIN_CHECK_REQUEST] = "check_request",
    [TWIN_PACK_REQUEST] = "pack_request",
    [TWIN_PACK_ANSWER] = "pack_answer",
    [TWIN_PARSE_ANSWER] = "parse_answer",
    [TWIN_PARSE_LAUNCH] = "parse_launch",
    [TWIN_PARSE_RESULT] = "parse_result",
    [UNPACK_TENSORS] = "unpack_tensors",
};

/* -- for the other files --------------------------------------------------------------------------------------- */
/* Keep `taken`, a reference that the caller gives away, instead of what was there. */
void path_hold(PyObject **place, PyObject *taken)
{
    PyObject *former = *place;
    *place = taken;
    Py_XDECREF(former);
}

struct path_state *path_ready(PyObject *module)
{
    struct path_state *state = PyModule_GetState(module);
    if (state && !state->is_configured) {
        PyErr_SetString(PyExc_RuntimeError, "offpath.bindings._path is not configured: import offpath.bindings.native");
        return NULL;
    }
    return state;
}

int path_count(const char *name, Py_ssize_t least, Py_ssize_t most, Py_ssize_t given)
{
    if (given >= least && given <= most)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments, %zd were given", name, least, most, given);
    return 0;
}

PyObject *path_twin(struct path_state *state, enum held twin, PyObject *const *args, Py_ssize_t count)
{
    PyObject *packed = PyTuple_New(count);
    if (!packed)
        return NULL;
    for (Py_ssize_t n = 0; n < count; n++)
        PyTuple_SetItem(packed, n, Py_NewRef(args[n]));
    PyObject *result = PyObject_Call(state->held[twin], packed, NULL);
    Py_DECREF(packed);
    return result;
}

/* An instance of a NamedTuple. Takes the items, also on failure; a NULL among them is a failure already reported. */
PyObject *path_named_tuple(struct path_state *state, enum held cls, PyObject **items, Py_ssize_t count)
{
    int is_whole = 1;
    for (Py_ssize_t n = 0; n < count; n++)
        is_whole = is_whole && items[n];
    PyObject *plain = is_whole ? PyTuple_New(count) : NULL;
    if (!plain) {
        for (Py_ssize_t n = 0; n < count; n++)
            Py_XDECREF(items[n]);
        return NULL;
    }
    for (Py_ssize_t n = 0; n < count; n++)
        PyTuple_SetItem(plain, n, items[n]);
    PyObject *args = PyTuple_New(1);
    if (!args) {
        Py_DECREF(plain);
        return NULL;
    }
    PyTuple_SetItem(args, 0, plain);
    /* The slot of tuple itself: the class's own __new__ is Python code. */
    PyObject *made = state->tuple_new((PyTypeObject *)state->held[cls], args, NULL);
    Py_DECREF(args);
    return made;
}

/* -- what it takes from Python -------------------------------------------------------------------------------------- */
static int take_codes(PyObject *twins, const char *name, PyObject **by_number)
{
    PyObject *members = PyObject_GetAttrString(twins, name);
    PyObject *items = members ? PySequence_Tuple(members) : NULL;
    Py_XDECREF(members);
    if (!items)
        return -1;
    for (Py_ssize_t n = 0; n < PyTuple_Size(items); n++) {
        PyObject *member = PyTuple_GetItem(items, n);
        uint64_t number;
        if (!path_uint(member, MOST_CODES - 1, &number)) {
            PyErr_Format(PyExc_ValueError, "%s has the number of %R, above %d", name, member, MOST_CODES - 1);
            Py_DECREF(items);
            return -1;
        }
        path_hold(&by_number[number], Py_NewRef(member));
    }
    Py_DECREF(items);
    return 0;
}

static int is_a_tuple_class(PyObject *cls)
{
    return PyType_Check(cls) && PyType_IsSubtype((PyTypeObject *)cls, &PyTuple_Type);
}

static PyObject *configure(PyObject *module, PyObject *twins)
{
    struct path_state *state = PyModule_GetState(module);
    for (int n = 0; n < HELD_COUNT; n++) {
        PyObject *found = PyObject_GetAttrString(twins, held_names[n]);
        if (!found)
            return NULL;
        if (n <= RESULT && !is_a_tuple_class(found)) {
            Py_DECREF(found);
            return PyErr_Format(PyExc_TypeError, "%s is not a class of tuples", held_names[n]);
        }
        path_hold(&state->held[n], found);
    }
    if (take_codes(twins, "STATUSES", state->statuses) < 0 || take_codes(twins, "REASONS", state->reasons) < 0)
        return NULL;
    state->is_configured = 1;
    Py_RETURN_NONE;
}

/* -- the module ------------------------------------------------------------------------------------------------- */
#define FAST(name)                                                                                                     \
    {                                                                                                                  \
        #name, (PyCFunction)(void (*)(void))path_##name, METH_FASTCALL, "See offpath.bindings.twins."                  \
    }
static PyMethodDef functions[] = {
    {"configure", configure, METH_O, "Take classes, tables and twins from the module of the twins."},
    FAST(configure_journal),
    FAST(take_request),
    FAST(pack_request),
    FAST(pack_answer),
    FAST(parse_answer),
    FAST(parse_launch),
    FAST(parse_result),
    FAST(ring),
    FAST(receive),
    FAST(receive_message),
    FAST(spin),
    FAST(wait),
    FAST(copy),
    FAST(record),
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    struct path_state *state = PyModule_GetState(module);
    state->tuple_new = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    path_crc_tables();
    if (!state->tuple_new)
        return -1;
    if (PyModule_AddStringConstant(module, "LAYOUT", PATH_LAYOUT) < 0)
        return -1;
    if (PyModule_AddStringConstant(module, "JOURNAL_LAYOUT", JOURNAL_LAYOUT) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "SOURCES", sources + sizeof "offpath path sources " - 1);
}

static int visit_all(PyObject *module, visitproc visit, void *arg)
{
    struct path_state *state = PyModule_GetState(module);
    for (int n = 0; n < HELD_COUNT; n++)
        Py_VISIT(state->held[n]);
    for (int n = 0; n < MOST_CODES; n++) {
        Py_VISIT(state->statuses[n]);
        Py_VISIT(state->reasons[n]);
    }
    return path_journal_visit(state, visit, arg);
}

static int clear(PyObject *module)
{
    struct path_state *state = PyModule_GetState(module);
    state->is_configured = 0;
    for (int n = 0; n < HELD_COUNT; n++)
        Py_CLEAR(state->held[n]);
    for (int n = 0; n < MOST_CODES; n++) {
        Py_CLEAR(state->statuses[n]);
        Py_CLEAR(state->reasons[n]);
    }
    path_journal_clear(state);
    return 0;
}

static void release(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "offpath.bindings._path",
    .m_doc = "The request path's mechanics in C. Use offpath.bindings.native, which falls back to Python.",
    .m_size = sizeof(struct path_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = visit_all,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__path(void);
PyMODINIT_FUNC PyInit__path(void)
{
    return PyModuleDef_Init(&definition);
}
