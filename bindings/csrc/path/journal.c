/* Journal entries: `Journal.record` of offpath/dpu_daemon/durability/journal/log.py for the frequent events and
 * commands, straight into the ring's memory. The layouts are those of codec.py and ring.py beside it. */
#include "path.h"

enum {
    RECORD_BYTES = 160,
    HEADER_PAGE = 4096,
    FIRST_BYTES = 136,
    MORE_BYTES = 144,
    KIND_MORE = 0xFF,
    DECIDED = 0x80,
    MOST_DECIDED = 8,
    STAGE_COUNT = 6,
    HEAD_BYTES = 3,
    ENTRY_BYTES = 512,
    LARGEST = 96, /* no event and no command takes more */
};

/* An attribute of an event or command, in the order of the packed fields. */
struct field {
    const char *name;
    char kind; /* an integer of so many bytes; '?': a truth; 'r': an end reason; 's': the stages */
};
static const struct {
    const char *name;
    int kind; /* in the journal */
    struct field fields[MOST_FIELDS];
} shapes[SHAPES] = {
    [JOB_SUBMITTED] = {"JobSubmitted", 18, {
        {"job", 8}, {"session", 8}, {"request_id", 8}, {"kernel", 4}, {"share", 2}, {"priority", 1},
        {"is_idempotent", '?'}, {"deadline_ns", 8}, {"payload_bytes", 8}, {"origin", 8}, {"credit", 8},
    }},
    [COPY_DONE] = {"CopyDone", 22, {{"job", 8}, {"attempt", 4}, {"error", '?'}}},
    [RESULT_ARRIVED] = {"ResultArrived", 24, {
        {"job", 8}, {"generation", 8}, {"reason", 'r'}, {"started_ns", 8}, {"finished_ns", 8},
    }},
    [CREDIT_RETURNED] = {"CreditReturned", 21, {{"job", 8}}},
    [COPY] = {"Copy", 64, {{"job", 8}, {"attempt", 4}, {"lease", 8}, {"lane", 4}}},
    [LAUNCH_COMMAND] = {"Launch", 65, {
        {"job", 8}, {"attempt", 4}, {"lease", 8}, {"lane", 4}, {"generation", 8}, {"kernel", 4}, {"share", 2},
    }},
    [ANSWER] = {"Answer", 66, {
        {"job", 8}, {"session", 8}, {"reason", 'r'}, {"state", 1}, {"retry_after_ms", 4}, {"lease", 8},
        {"generation", 8}, {"stages", 's'},
    }},
};

/* -- set-up -------------------------------------------------------------------------------------------------------- */
int path_journal_visit(struct path_state *state, visitproc visit, void *arg)
{
    for (int n = 0; n < JOURNALLED_COUNT; n++)
        Py_VISIT(state->journalled[n]);
    for (int shape = 0; shape < SHAPES; shape++)
        for (int n = 0; n < MOST_FIELDS; n++)
            Py_VISIT(state->readers[shape][n].descriptor);
    return 0;
}

void path_journal_clear(struct path_state *state)
{
    state->is_journal_configured = 0;
    for (int n = 0; n < JOURNALLED_COUNT; n++)
        Py_CLEAR(state->journalled[n]);
    for (int shape = 0; shape < SHAPES; shape++)
        for (int n = 0; n < MOST_FIELDS; n++) {
            Py_CLEAR(state->readers[shape][n].name);
            Py_CLEAR(state->readers[shape][n].descriptor);
        }
}

/* How to read one field of a class. A slot's descriptor is called directly: half the cost of a look-up by name. */
static int prepare(struct reader *reader, PyObject *cls, const char *name)
{
    path_hold(&reader->name, PyUnicode_InternFromString(name));
    if (!reader->name)
        return -1;
    path_hold(&reader->descriptor, PyObject_GetAttr(cls, reader->name));
    PyErr_Clear(); /* no such attribute of the class: instances are asked by name */
    reader->get = NULL;
    if (reader->descriptor) {
        PyTypeObject *type = Py_TYPE(reader->descriptor);
        int is_data = PyType_GetSlot(type, Py_tp_descr_set) != NULL;
        reader->get = is_data ? (descrgetfunc)PyType_GetSlot(type, Py_tp_descr_get) : NULL;
    }
    return 0;
}

/* one argument: an object with the classes, and with the end reasons by number */
PyObject *path_configure_journal(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct path_state *state = PyModule_GetState(module);
    if (!state || !path_count("configure_journal", 1, 1, count))
        return NULL;
    state->is_journal_configured = 0;
    for (int n = 0; n < JOURNALLED_COUNT; n++) {
        PyObject *found = PyObject_GetAttrString(args[0], n == END_REASONS ? "END_REASONS" : shapes[n].name);
        if (!found)
            return NULL;
        path_hold(&state->journalled[n], found);
        if (n == END_REASONS ? !PyTuple_Check(found) : !PyType_Check(found))
            return PyErr_Format(PyExc_TypeError, "the journal's classes and end reasons are of another kind");
        for (int field = 0; n < SHAPES && field < MOST_FIELDS && shapes[n].fields[field].name; field++)
            if (prepare(&state->readers[n][field], found, shapes[n].fields[field].name) < 0)
                return NULL;
    }
    state->is_journal_configured = 1;
    Py_RETURN_NONE;
}

/* -- packing ------------------------------------------------------------------------------------------------------- */
static int put_reason(struct path_state *state, PyObject *reason, unsigned char *at)
{
    PyObject *reasons = state->journalled[END_REASONS];
    Py_ssize_t many = PyTuple_Size(reasons);
    for (Py_ssize_t n = 0; n < many; n++)
        if (PyTuple_GetItem(reasons, n) == reason) {
            store(at, 2, (uint64_t)n);
            return 2;
        }
    return 0;
}

static int put_stages(PyObject *stages, unsigned char *at)
{
    if (!PyTuple_Check(stages) || PyTuple_Size(stages) != STAGE_COUNT)
        return 0;
    for (int n = 0; n < STAGE_COUNT; n++) {
        uint64_t ns;
        if (!path_uint(PyTuple_GetItem(stages, n), UINT64_MAX, &ns))
            return 0;
        store(at + 8 * n, 8, ns);
    }
    return 8 * STAGE_COUNT;
}

/* The bytes written for one value; 0: it does not fit. */
static int put(struct path_state *state, PyObject *value, char kind, unsigned char *at)
{
    uint64_t number;
    int truth;
    switch (kind) {
    case 'r':
        return put_reason(state, value, at);
    case 's':
        return put_stages(value, at);
    case '?':
        truth = PyObject_IsTrue(value);
        *at = truth > 0;
        return truth < 0 ? 0 : 1;
    default:
        if (!path_uint(value, most_of(kind), &number))
            return 0;
        store(at, kind, number);
        return kind;
    }
}

/* The packed fields of an event or command; the bytes written, or 0: a field is missing or does not fit. */
static int put_fields(struct path_state *state, PyObject *object, int shape, unsigned char *at)
{
    int written = 0;
    for (int n = 0; n < MOST_FIELDS && shapes[shape].fields[n].name; n++) {
        const struct reader *reader = &state->readers[shape][n];
        PyObject *value = reader->get ? reader->get(reader->descriptor, object, (PyObject *)Py_TYPE(object))
                                      : PyObject_GetAttr(object, reader->name);
        int width = value ? put(state, value, shapes[shape].fields[n].kind, at + written) : 0;
        Py_XDECREF(value);
        if (!width)
            return 0;
        written += width;
    }
    return written;
}

static int shape_of(struct path_state *state, PyObject *object, int first, int end)
{
    PyObject *cls = (PyObject *)Py_TYPE(object);
    while (first < end && state->journalled[first] != cls)
        first++;
    return first < end ? first : -1;
}

/* The entry of an event and its commands, as `pack_decided` makes it; its length, or 0: none of the frequent ones. */
static int put_entry(struct path_state *state, PyObject *event, PyObject *decided, uint64_t times, unsigned char *into,
                     unsigned *kind)
{
    Py_ssize_t count = PyTuple_Size(decided);
    int shape = shape_of(state, event, 0, FIRST_COMMAND), at = 0;
    if (shape < 0 || count > MOST_DECIDED)
        return 0;
    if (count) {
        into[0] = (unsigned char)count;
        store(into + 1, 2, times & 0xFFFF);
        at = HEAD_BYTES;
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *command = PyTuple_GetItem(decided, n);
        int of_command = shape_of(state, command, FIRST_COMMAND, SHAPES);
        if (of_command < 0 || at + HEAD_BYTES + 2 * LARGEST > ENTRY_BYTES)
            return 0;
        int written = put_fields(state, command, of_command, into + at + HEAD_BYTES);
        if (!written)
            return 0;
        into[at] = (unsigned char)shapes[of_command].kind;
        store(into + at + 1, 2, (uint64_t)written);
        at += HEAD_BYTES + written;
    }
    int written = put_fields(state, event, shape, into + at);
    *kind = (unsigned)shapes[shape].kind | (count ? DECIDED : 0);
    return written ? at + written : 0;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */
static void seal(unsigned char *record, unsigned char *place)
{
    store(record, 4, path_crc(0, record + 4, RECORD_BYTES - 4));
    memcpy(place, record, RECORD_BYTES);
}

/* All records of an entry; how many they are. */
static uint64_t append(unsigned char *ring, uint64_t records, uint64_t number, unsigned kind, uint64_t now_ns,
                       const unsigned char *data, int nbytes)
{
    unsigned char record[RECORD_BYTES] = {0};
    store(record + 4, 4, kind | (uint64_t)nbytes << 8);
    store(record + 8, 8, number);
    store(record + 16, 8, now_ns);
    memcpy(record + 24, data, (size_t)(nbytes < FIRST_BYTES ? nbytes : FIRST_BYTES));
    seal(record, ring + HEADER_PAGE + number % records * RECORD_BYTES);
    uint64_t written = 1;
    for (int at = FIRST_BYTES; at < nbytes; at += MORE_BYTES, written++) {
        unsigned char more[RECORD_BYTES] = {0};
        store(more + 4, 4, KIND_MORE);
        store(more + 8, 8, number + written);
        memcpy(more + 16, data + at, (size_t)(nbytes - at < MORE_BYTES ? nbytes - at : MORE_BYTES));
        seal(more, ring + HEADER_PAGE + (number + written) % records * RECORD_BYTES);
    }
    return written;
}

/* ring memory, records, next number, event, commands, times, now_ns -> the records written; 0: none, an entry for the
 * twin */
PyObject *path_record(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct path_state *state = PyModule_GetState(module);
    uint64_t records, number, now_ns, written = 0;
    unsigned char data[ENTRY_BYTES];
    unsigned kind;
    Py_buffer ring;
    if (!state || !path_count("record", 7, 7, count))
        return NULL;
    int is_sound = state->is_journal_configured && path_uint(args[1], UINT32_MAX, &records) && records >= MOST_DECIDED
        && path_uint(args[2], INT64_MAX, &number) && path_uint(args[6], UINT64_MAX, &now_ns)
        && PyTuple_Check(args[4]);
    uint64_t times = is_sound ? PyLong_AsUnsignedLongLongMask(args[5]) : 0;
    int nbytes = is_sound && !PyErr_Occurred() ? put_entry(state, args[3], args[4], times, data, &kind) : 0;
    if (nbytes && PyObject_GetBuffer(args[0], &ring, PyBUF_WRITABLE) == 0) {
        if ((uint64_t)ring.len >= HEADER_PAGE + records * RECORD_BYTES)
            written = append(ring.buf, records, number, kind, now_ns, data, nbytes);
        PyBuffer_Release(&ring);
    }
    PyErr_Clear(); /* the twin reports it */
    return PyLong_FromUnsignedLongLong(written);
}
