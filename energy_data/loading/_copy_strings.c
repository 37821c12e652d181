/* Lists of texts or of bytes, one behind the other in the arena. Its Python: strings.py. */

#include "_copy.h"

/* Returns the bytes of a str (as UTF-8) or of a bytes, which live as long as it; NULL: an error. */
static const char *bytes_in(PyObject *value, int is_text, Py_ssize_t *size)
{
    char *data;
    if (is_text)
        return PyUnicode_AsUTF8AndSize(value, size);
    return PyBytes_AsStringAndSize(value, &data, size) < 0 ? NULL : data;
}

static uint32_t size_at(const Py_buffer *sizes, Py_ssize_t n)
{
    uint32_t size;
    memcpy(&size, (const char *)sizes->buf + n * sizeof size, sizeof size);
    return size;
}

const char sizes_of_doc[] =
"sizes_of(values)\n--\n\n"
"Return the sizes of str, as UTF-8, or of bytes: uint32 in a bytes, and their sum.\n\n"
"None if they are not of one of these types alone, if a text has no UTF-8, or one has 4 GiB.";

PyObject *sizes_of(PyObject *module, PyObject *values)
{
    if (!PyList_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "values must be a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(values);
    PyTypeObject *kind = count ? Py_TYPE(PyList_GetItem(values, 0)) : NULL;
    if (kind != &PyUnicode_Type && kind != &PyBytes_Type)
        Py_RETURN_NONE;
    PyObject *found = PyBytes_FromStringAndSize(NULL, count * sizeof(uint32_t));
    if (!found)
        return NULL;
    char *sizes = PyBytes_AsString(found);
    int64_t sum = 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *value = PyList_GetItem(values, n);
        Py_ssize_t size;
        if (!value) /* a handler of errors of the user's has changed the list */
            goto failed;
        if (Py_TYPE(value) != kind)
            goto none;
        if (!bytes_in(value, kind == &PyUnicode_Type, &size)) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
                goto failed;
            PyErr_Clear();
            goto none;
        }
        if ((uint64_t)size > UINT32_MAX)
            goto none;
        uint32_t said = (uint32_t)size;
        memcpy(sizes + n * sizeof said, &said, sizeof said);
        sum += said;
    }
    return Py_BuildValue("NL", found, (long long)sum);
none:
    Py_DECREF(found);
    Py_RETURN_NONE;
failed:
    Py_DECREF(found);
    return NULL;
}

const char write_strings_doc[] =
"write_strings(into, values, sizes)\n--\n\n"
"Write str, as UTF-8, or bytes one behind the other to a buffer of the size of all. sizes: as\n"
"`sizes_of` gave them; ValueError if they are others now.";

PyObject *write_strings(PyObject *module, PyObject *args)
{
    Py_buffer into, sizes;
    PyObject *values;
    if (!PyArg_ParseTuple(args, "w*O!y*", &into, &PyList_Type, &values, &sizes))
        return NULL;
    Py_ssize_t done = 0, count = PyList_Size(values);
    int fits = sizes.len == count * (Py_ssize_t)sizeof(uint32_t);
    for (Py_ssize_t n = 0; fits && n < count; n++) {
        PyObject *value = PyList_GetItem(values, n);
        Py_ssize_t size;
        const char *data = value ? bytes_in(value, PyUnicode_CheckExact(value), &size) : NULL;
        if (!data)
            goto failed;
        uint32_t said = size_at(&sizes, n);
        fits = size == (int64_t)said && size <= into.len - done;
        if (fits && size)
            memcpy((char *)into.buf + done, data, size);
        done += size;
    }
    if (!fits || done < into.len)
        PyErr_SetString(PyExc_ValueError, "the buffer or the sizes are not of the strings");
failed:
    PyBuffer_Release(&into);
    PyBuffer_Release(&sizes);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

const char strings_of_doc[] =
"strings_of(data, sizes, is_text)\n--\n\n"
"Return what `write_strings` wrote, with the sizes from `sizes_of`.";

PyObject *strings_of(PyObject *module, PyObject *args)
{
    Py_buffer data, sizes;
    int is_text;
    if (!PyArg_ParseTuple(args, "y*y*p", &data, &sizes, &is_text))
        return NULL;
    Py_ssize_t done = 0, count = sizes.len / (Py_ssize_t)sizeof(uint32_t);
    int fits = sizes.len % (Py_ssize_t)sizeof(uint32_t) == 0;
    PyObject *values = PyList_New(count);
    for (Py_ssize_t n = 0; values && n < count; n++) {
        uint32_t size = size_at(&sizes, n);
        fits = fits && size <= (uint64_t)(data.len - done);
        if (!fits)
            break;
        const char *begin = (char *)data.buf + done;
        PyObject *value = is_text ? PyUnicode_DecodeUTF8(begin, size, NULL)
                                  : PyBytes_FromStringAndSize(begin, size);
        if (!value)
            Py_CLEAR(values);
        else
            PyList_SetItem(values, n, value);
        done += size;
    }
    if (values && (!fits || done < data.len)) {
        PyErr_SetString(PyExc_ValueError, "the sizes are not of the strings in the buffer");
        Py_CLEAR(values);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&sizes);
    return values;
}
