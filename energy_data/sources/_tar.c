/* Samples out of tars, the plain ones of them: what Python does in `tar_samples` and `tar_raw`.

   Nothing is wrong here: whatever is not as plain as can be, is None, and Python reads it again.
   `tests/sources/test_compiled.py` holds it to what Python makes of the same tars. */

#include "_tar.h"

/* Adds a sample's place; false with an error set. */
static int add_place(PyObject *begins, PyObject *ends, uint64_t begin, uint64_t end)
{
    PyObject *first = PyLong_FromUnsignedLongLong(begin), *behind = PyLong_FromUnsignedLongLong(end);
    int good = first && behind && PyList_Append(begins, first) == 0 &&
               PyList_Append(ends, behind) == 0;
    Py_XDECREF(first);
    Py_XDECREF(behind);
    return good;
}

/* Adds (source_type(path, name, number),); false with an error set. */
static int add_source(
    PyObject *sources, PyTypeObject *source_type, PyObject *path, PyObject *name, int64_t number)
{
    PyObject *values[] = {Py_NewRef(path), Py_NewRef(name), PyLong_FromLongLong(number)};
    PyObject *source = record(source_type, values, 3);
    PyObject *alone = source ? PyTuple_Pack(1, source) : NULL;
    int good = alone && PyList_Append(sources, alone) == 0;
    Py_XDECREF(alone);
    Py_XDECREF(source);
    return good;
}

PyDoc_STRVAR(locate_doc,
"locate(offsets, first, wanted, at, begins, ends, sources, source_type, path, name)\n--\n\n"
"Add to the lists where the samples wanted[at:] of one shard are, as far as they are in it.\n\n"
"offsets: its index, uint64; its sample 0 is sample `first`. Return the place in `wanted` of the\n"
"first one behind the shard; or ~place of one with offsets that cannot be.");

static PyObject *locate(PyObject *module, PyObject *args)
{
    Py_buffer table;
    long long first;
    PyObject *wanted, *begins, *ends, *sources, *path, *name;
    PyTypeObject *source_type;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "y*LO!nO!O!O!O!OO", &table, &first, &PyList_Type, &wanted, &at,
                          &PyList_Type, &begins, &PyList_Type, &ends, &PyList_Type, &sources,
                          &PyType_Type, &source_type, &path, &name))
        return NULL;
    const uint64_t *offsets = table.buf;
    int64_t count = table.len / (Py_ssize_t)sizeof(uint64_t) - 1;
    uint64_t floor = 0, last = count >= 0 ? offsets[count] : 0;
    int good = 1, is_possible = 1;
    Py_ssize_t stop = PyList_Size(wanted);
    for (; good && at < stop; at++) {
        int64_t number = PyLong_AsLongLong(PyList_GetItem(wanted, at)) - first;
        good = !PyErr_Occurred();
        if (!good || number >= count)
            break;
        uint64_t begin = number < 0 ? 1 : offsets[number], end = number < 0 ? 0 : offsets[number + 1];
        /* `floor`: where the next sample may begin, unless it is the same again */
        is_possible = begin < end && end <= last && (begin | end) % BLOCK == 0 &&
                      (begin >= floor || end == floor);
        if (!is_possible)
            break;
        floor = end;
        good = add_place(begins, ends, begin, end) &&
               add_source(sources, source_type, path, name, number);
    }
    PyBuffer_Release(&table);
    return good ? PyLong_FromSsize_t(is_possible ? at : ~at) : NULL;
}

PyDoc_STRVAR(in_order_doc,
"in_order(order, found)\n--\n\nReturn found[n] for each n as item order[n] of a list.");

static PyObject *in_order(PyObject *module, PyObject *args)
{
    PyObject *order, *found;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &order, &PyList_Type, &found))
        return NULL;
    Py_ssize_t count = PyList_Size(found);
    if (PyList_Size(order) != count) {
        PyErr_SetString(PyExc_ValueError, "as many places as items");
        return NULL;
    }
    PyObject *items = PyList_New(count);
    for (Py_ssize_t n = 0; items && n < count; n++) /* no place may stay without an item */
        PyList_SetItem(items, n, Py_NewRef(Py_None));
    for (Py_ssize_t n = 0; items && n < count; n++) {
        Py_ssize_t place;
        if (!item_at(order, n, &place) ||
            PyList_SetItem(items, place, Py_NewRef(PyList_GetItem(found, n))) < 0)
            Py_CLEAR(items);
    }
    return items;
}

static PyMethodDef METHODS[] = {
    {"columns_of", columns_of, METH_VARARGS, columns_of_doc},
    {"in_order", in_order, METH_VARARGS, in_order_doc},
    {"locate", locate, METH_VARARGS, locate_doc},
    {"read_plain", read_plain, METH_VARARGS, read_plain_doc},
    {"read_rows", read_rows, METH_VARARGS, read_rows_doc},
    {"sources_of", sources_of, METH_VARARGS, sources_of_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "energy_data.sources._tar", "What costs time of `tar_samples`, compiled.",
    -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__tar(void)
{
    PyObject *module = prepare_names() ? PyModule_Create(&MODULE) : NULL;
    /* Raise it if what is between Python and C changes: compiled.py knows it too. */
    if (module && PyModule_AddIntConstant(module, "VERSION", 2) < 0)
        Py_CLEAR(module);
    return module;
}
