/* Tensor descriptors: `offpath.bindings.wire.header.unpack_tensors`, without unpacking. */
#include "path.h"

/* Element size by dtype code, as DTYPES in wire/header.py; 0: no such dtype. */
static const unsigned char element_bytes[256] = {
    [1] = 1, [2] = 1, [3] = 2, [4] = 2, [5] = 4, [6] = 4, [7] = 8, [8] = 8, [9] = 2, [10] = 4, [11] = 8, [12] = 1,
    [13] = 2, [14] = 1, [15] = 1, [16] = 1, [17] = 8, [18] = 16, [19] = 4,
};

/* code, ndim, zero16, zero32, dims[6], offset, nbytes */
enum { NDIM_AT = 1, ZEROS_AT = 2, DIMS_AT = 8, OFFSET_AT = 32, NBYTES_AT = 40, STRINGS = 19, ABSENT = 255 };

static int are_zero(const unsigned char *bytes, int count)
{
    unsigned char any = 0;
    for (int byte = 0; byte < count; byte++)
        any |= bytes[byte];
    return !any;
}

/* Element size times dims. The product of Python integers cannot overflow: this one reports when it would. */
static int product(const unsigned char *dims, int ndim, uint64_t element, uint64_t *into)
{
    uint64_t want = element;
    int fits = 1;
    for (int dim = 0; dim < ndim; dim++) {
        uint64_t length = load(dims + 4 * dim, 4);
        if (!length) {
            *into = 0;
            return 1;
        }
        fits = fits && !__builtin_mul_overflow(want, length, &want);
    }
    *into = want;
    return fits;
}

static int is_tensor(const unsigned char *at, uint64_t total_bytes)
{
    uint64_t element = element_bytes[at[0]], want, end;
    int ndim = at[NDIM_AT];
    if (at[0] == ABSENT)
        return are_zero(at + NDIM_AT, TENSOR_BYTES - NDIM_AT);
    if (!element || ndim > MAX_DIMS || !are_zero(at + DIMS_AT + 4 * ndim, 4 * (MAX_DIMS - ndim)))
        return 0;
    if (!are_zero(at + ZEROS_AT, DIMS_AT - ZEROS_AT))
        return 0;
    uint64_t offset = load(at + OFFSET_AT, 8), nbytes = load(at + NBYTES_AT, 8);
    if (!product(at + DIMS_AT, ndim, element, &want) || __builtin_add_overflow(offset, nbytes, &end) || end > total_bytes)
        return 0;
    if (at[0] == STRINGS) /* an element is its length and so many bytes */
        return want ? want <= nbytes : !nbytes;
    return want == nbytes && offset % element == 0;
}

int path_are_tensors(const unsigned char *packed, unsigned count, uint64_t total_bytes)
{
    for (unsigned n = 0; n < count; n++)
        if (!is_tensor(packed + n * TENSOR_BYTES, total_bytes))
            return 0;
    return 1;
}
