/* Headers of tars and parts of samples. In Python: header.py. */

#include "_tar.h"

static PyObject *KEY, *SUBFLAVORS, *SOURCES;

/* Returns the value of `digits` octal digits that end in NUL or a space, -1 if they do not. */
static int64_t octal(const unsigned char *field, int digits)
{
    int64_t value = 0;
    for (int n = 0; n < digits; n++) {
        if (field[n] < '0' || field[n] > '7')
            return -1;
        value = value * 8 + (field[n] - '0');
    }
    return field[digits] == 0 || field[digits] == ' ' ? value : -1;
}

int parse(const unsigned char *block, Header *header)
{
    uint32_t sum = 8 * ' '; /* the checksum counts its own field as spaces */
    for (int n = 0; n < BLOCK; n++)
        sum += block[n];
    for (int n = 148; n < 156; n++)
        sum -= block[n];
    header->size = octal(block + 124, 11);
    header->kind = (char)block[156];
    if (header->size < 0 || octal(block + 148, 6) != (int64_t)sum)
        return 0;
    if (header->kind != 0 && header->kind != '0' && header->kind != 'x')
        return 0;
    const char *name = (const char *)block, *prefix = (const char *)block + 345;
    size_t length = strnlen(name, NAME);
    if (length >= 2 && memcmp(name, "__", 2) == 0) /* perhaps metadata */
        return 0;
    header->name = name;
    header->length = (Py_ssize_t)length;
    if (*prefix && memcmp(block + 257, "ustar", 6) == 0) { /* GNU tars keep other things there */
        size_t before = strnlen(prefix, PREFIX);
        memcpy(header->joined, prefix, before);
        header->joined[before] = '/';
        memcpy(header->joined + before + 1, name, length);
        header->name = header->joined;
        header->length = (Py_ssize_t)(before + 1 + length);
        return memcmp(header->joined, "__", 2) != 0;
    }
    return 1;
}

int split(const Header *header, Py_ssize_t *key, const char **extension, Py_ssize_t *length)
{
    const char *dot = memchr(header->name, '.', (size_t)header->length);
    if (!dot || dot == header->name)
        return 0;
    *key = dot - header->name;
    *extension = dot + 1;
    *length = header->length - *key - 1;
    return *length && !memchr(*extension, '/', (size_t)*length) &&
           !(*length >= 2 && memcmp(*extension, "__", 2) == 0);
}

PyObject *text_of(const char *text, Py_ssize_t length)
{
    return PyUnicode_DecodeUTF8(text, length, "surrogateescape");
}

int item_at(PyObject *list, Py_ssize_t place, Py_ssize_t *value)
{
    PyObject *item = PyList_GetItem(list, place);
    *value = item ? PyLong_AsSsize_t(item) : -1;
    return !PyErr_Occurred();
}

int span(PyObject *begins, PyObject *ends, Py_ssize_t row, int64_t *begin, int64_t *end)
{
    PyObject *first = PyList_GetItem(begins, row), *behind = first ? PyList_GetItem(ends, row) : NULL;
    if (!behind)
        return 0;
    *begin = PyLong_AsLongLong(first);
    *end = PyLong_AsLongLong(behind);
    if (PyErr_Occurred())
        return 0;
    if (*begin < 0 || *end < *begin) {
        PyErr_SetString(PyExc_ValueError, "no span");
        return 0;
    }
    return 1;
}

PyObject *begun(const char *key, Py_ssize_t length, PyObject *origin, PyObject *source)
{
    PyObject *sample = PyDict_New(), *name = text_of(key, length);
    PyObject *subflavors = PyTuple_GetItem(origin, 1);
    if (!sample || !name || !subflavors || PyDict_SetItem(sample, KEY, name) < 0 ||
        PyDict_SetItem(sample, SUBFLAVORS, subflavors) < 0 ||
        PyDict_SetItem(sample, SOURCES, source) < 0)
        Py_CLEAR(sample);
    Py_XDECREF(name);
    return sample;
}

/* From Python 3.14 on, tuples remember their hash: then this must call tuple.__new__. */
PyObject *record(PyTypeObject *type, PyObject *const *values, Py_ssize_t count)
{
    PyObject *made = PyType_GenericAlloc(type, count);
    for (Py_ssize_t n = 0; n < count; n++) {
        if (!made || !values[n])
            Py_XDECREF(values[n]);
        else if (PyTuple_SetItem(made, n, values[n]) < 0)
            Py_CLEAR(made);
        if (made && !values[n])
            Py_CLEAR(made);
    }
    return made;
}

int prepare_names(void)
{
    KEY = PyUnicode_InternFromString("__key__");
    SUBFLAVORS = PyUnicode_InternFromString("__subflavors__");
    SOURCES = PyUnicode_InternFromString("__sources__");
    return KEY && SUBFLAVORS && SOURCES;
}
