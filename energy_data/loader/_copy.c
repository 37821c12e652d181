/* The compiled part of the arena: copying to it past the caches (copying.py), and its module. */

#include "_copy.h"

#ifdef __SSE2__ /* of every x86-64 */
#include <emmintrin.h>

enum {
    UNIT = 16, /* bytes of a register */
    LINE = 64, /* of the cache */
    /* Bytes to ask for before they are needed; to ask behind the end does no harm. */
    AHEAD_PAST = 512,
    AHEAD = 2048
};

/* Copies memory that does not overlap; what is written goes to memory at once, not to a cache, and
   what is read is left out of the larger caches if it is asked for as passing. */
static inline void copy_past(char *into, const char *data, Py_ssize_t size, int is_passing)
{
    if (!size)
        return;
    Py_ssize_t done = (Py_ssize_t)(-(uintptr_t)into % UNIT);
    if (done > size)
        done = size;
    memcpy(into, data, done);
    for (; size - done >= LINE; done += LINE) {
        const __m128i *from = (const __m128i *)(data + done);
        __m128i *to = (__m128i *)(into + done);
        if (is_passing)
            _mm_prefetch((const char *)((uintptr_t)from + AHEAD_PAST), _MM_HINT_NTA);
        else
            _mm_prefetch((const char *)((uintptr_t)from + AHEAD), _MM_HINT_T0);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy(into + done, data + done, size - done);
    _mm_sfence(); /* whoever is told that it is there must find it */
}

PyDoc_STRVAR(past_caches_doc,
"past_caches(into, data, is_passing)\n--\n\n"
"Copy bytes to a buffer of their size, which they do not overlap, without the caches. is_passing:\n"
"what is read is not to stay in them either, which is slow on some processors.");

static PyObject *past_caches(PyObject *module, PyObject *args)
{
    Py_buffer into, data;
    int is_passing;
    if (!PyArg_ParseTuple(args, "w*y*p", &into, &data, &is_passing))
        return NULL;
    int fits = into.len == data.len;
    /* With the GIL: to wait for it again may take 5 ms for each of many tensors. */
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "the buffers are of different sizes");
    else if (is_passing)
        copy_past(into.buf, data.buf, data.len, 1);
    else
        copy_past(into.buf, data.buf, data.len, 0);
    PyBuffer_Release(&into);
    PyBuffer_Release(&data);
    return fits ? Py_NewRef(Py_None) : NULL;
}
#endif

static PyMethodDef METHODS[] = {
#ifdef __SSE2__
    {"past_caches", past_caches, METH_VARARGS, past_caches_doc},
#endif
    {"sizes_of", sizes_of, METH_O, sizes_of_doc},
    {"write_strings", write_strings, METH_VARARGS, write_strings_doc},
    {"strings_of", strings_of, METH_VARARGS, strings_of_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "energy_data.loader._copy", "What costs time of copying batches.",
    -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__copy(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    /* Raise it if what is between Python and C changes: compiled.py knows it too. */
    if (module && PyModule_AddIntConstant(module, "VERSION", 4) < 0)
        Py_CLEAR(module);
    return module;
}
