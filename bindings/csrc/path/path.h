/* The request path's mechanics in C: what each function does, and in Python, is in offpath/bindings/twins.py.
 *
 * A C function handles valid input. For anything else it calls its Python twin, which raises the exact error. Bytes of
 * another process are read once, into a private copy; the twin gets that copy. No function decides about a request. */
#ifndef OFFPATH_PATH_H
#define OFFPATH_PATH_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* The formats that this module packs and parses, as offpath/bindings/twins.py and the journal's native.py spell theirs.
 * Functions whose text differs are not used. */
#define PATH_LAYOUT                                                                                                    \
    "<IHHQIHBBIIQQ76xI <IHHQBBHIIIQ6QQIIQ12xI <BBHI6IQQ <BBBBIQQIHHQ <QQ <BBBBIQQQQQ "                               \
    "2 1364346447 1396786767 1 2 4 8 16 32 1 3968 4096 80 6 4080 3072 1 2 5 7 256"
#define JOURNAL_LAYOUT                                                                                                 \
    "<BH <BH <QIQI <QQQIHB?QQQQ <QIQIQIH <QI? <QQHBIQQ6Q <QQHQQ <Q 128 18 22 24 21 64 65 66 "                          \
    "<IQQ136s <IQ144s 255 160 4096"

enum {
    FIXED_BYTES = 128,
    CRC_AT = 124,
    TENSOR_BYTES = 48,
    MAX_TENSORS = 80,
    MAX_DIMS = 6,
    COPY_BYTES = FIXED_BYTES + MAX_TENSORS * TENSOR_BYTES,
    LAUNCH_BYTES = 40,
    SEQUENCE_BYTES = 16,
    RESULT_BYTES = 48,
    INLINE_BYTES = 3072,
    MESSAGE_BYTES = 4080,
};

/* What `configure` takes from the Python side, by name: classes, twins and tables. */
enum held {
    REQUEST_HEADER,
    ANSWER_HEADER,
    STAGES,
    LAUNCH,
    RESULT,
    TWIN_TAKE_REQUEST,
    TWIN_CHECK_REQUEST,
    TWIN_PACK_REQUEST,
    TWIN_PACK_ANSWER,
    TWIN_PARSE_ANSWER,
    TWIN_PARSE_LAUNCH,
    TWIN_PARSE_RESULT,
    UNPACK_TENSORS,
    HELD_COUNT,
};

/* The same for the journal; `configure_journal` takes them. Events, commands, the table of end reasons. */
enum journalled {
    JOB_SUBMITTED,
    COPY_DONE,
    RESULT_ARRIVED,
    CREDIT_RETURNED,
    COPY,
    LAUNCH_COMMAND,
    ANSWER,
    END_REASONS,
    JOURNALLED_COUNT,
    FIRST_COMMAND = COPY,
    SHAPES = END_REASONS,
};
enum { MOST_FIELDS = 11 };

/* One field of an event or command: its name, and what reads it from an instance if that is a slot's descriptor. */
struct reader {
    PyObject *name, *descriptor;
    descrgetfunc get;
};

enum { MOST_CODES = 128 };

struct path_state {
    newfunc tuple_new;
    PyObject *held[HELD_COUNT];
    PyObject *journalled[JOURNALLED_COUNT];
    PyObject *statuses[MOST_CODES]; /* by number; NULL: unknown */
    PyObject *reasons[MOST_CODES];
    struct reader readers[SHAPES][MOST_FIELDS];
    int is_configured, is_journal_configured;
};

/* module.c */
void path_hold(PyObject **place, PyObject *taken);
struct path_state *path_ready(PyObject *module);
int path_count(const char *name, Py_ssize_t least, Py_ssize_t most, Py_ssize_t given);
PyObject *path_twin(struct path_state *state, enum held twin, PyObject *const *args, Py_ssize_t count);
PyObject *path_named_tuple(struct path_state *state, enum held cls, PyObject **items, Py_ssize_t count);

/* bytes.c */
struct place {
    int at, width;
};
int path_put(unsigned char *fixed, const struct place *places, PyObject *const *args, Py_ssize_t count);
int path_tensors(PyObject *packed, char **tensors, Py_ssize_t *nbytes);
PyObject *path_number(const unsigned char *at, int width);
PyObject *path_sealed(unsigned char *header, const char *tensors, Py_ssize_t tensor_bytes);
int path_uint(PyObject *number, uint64_t most, uint64_t *into);
int path_offset(PyObject *number, Py_ssize_t *into);

/* crc.c: CRC-32 as zlib's; begin with 0. */
void path_crc_tables(void);
uint32_t path_crc(uint32_t crc, const unsigned char *bytes, size_t nbytes);

/* descriptors.c */
int path_are_tensors(const unsigned char *packed, unsigned count, uint64_t total_bytes);

/* journal.c */
int path_journal_visit(struct path_state *state, visitproc visit, void *arg);
void path_journal_clear(struct path_state *state);

#define PATH_FUNCTION(name) PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count)
PATH_FUNCTION(path_configure_journal);
PATH_FUNCTION(path_take_request);
PATH_FUNCTION(path_pack_request);
PATH_FUNCTION(path_pack_answer);
PATH_FUNCTION(path_parse_answer);
PATH_FUNCTION(path_parse_launch);
PATH_FUNCTION(path_parse_result);
PATH_FUNCTION(path_ring);
PATH_FUNCTION(path_receive);
PATH_FUNCTION(path_receive_message);
PATH_FUNCTION(path_spin);
PATH_FUNCTION(path_wait);
PATH_FUNCTION(path_copy);
PATH_FUNCTION(path_record);

/* Little-endian integers at any address. Elsewhere than on such a machine, the Python twins do. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the C request path is for little-endian machines");

static inline uint64_t load(const unsigned char *at, int width)
{
    uint64_t value = 0;
    memcpy(&value, at, (size_t)width); /* a constant wherever this is inlined: one instruction */
    return value;
}

static inline void store(unsigned char *at, int width, uint64_t value)
{
    memcpy(at, &value, (size_t)width);
}

static inline uint64_t most_of(int width)
{
    return width == 8 ? UINT64_MAX : ((uint64_t)1 << (8 * width)) - 1;
}

#endif
