/* The sources of samples as columns, as they travel. In Python: loading/transport/codec.py. */

#include "_tar.h"

enum { FIELDS = 3 }; /* of a `SampleSource` */

const char columns_of_doc[] =
"columns_of(values, source_type)\n--\n\n"
"Return the fields of sources, a tuple for each field; None unless each value is a tuple of one.";

PyObject *columns_of(PyObject *module, PyObject *args)
{
    PyObject *values, *columns[FIELDS];
    PyTypeObject *source_type;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &values, &PyType_Type, &source_type))
        return NULL;
    Py_ssize_t count = PyList_Size(values);
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *value = PyList_GetItem(values, n);
        if (Py_TYPE(value) != &PyTuple_Type || PyTuple_Size(value) != 1 ||
            Py_TYPE(PyTuple_GetItem(value, 0)) != source_type)
            Py_RETURN_NONE;
    }
    for (int field = 0; field < FIELDS; field++) {
        columns[field] = PyTuple_New(count);
        for (Py_ssize_t n = 0; columns[field] && n < count; n++) {
            PyObject *source = PyTuple_GetItem(PyList_GetItem(values, n), 0);
            PyObject *item = PyTuple_GetItem(source, field);
            if (!item)
                Py_CLEAR(columns[field]);
            else
                PyTuple_SetItem(columns[field], n, Py_NewRef(item));
        }
    }
    PyObject *found = NULL;
    if (columns[0] && columns[1] && columns[2])
        found = PyTuple_Pack(FIELDS, columns[0], columns[1], columns[2]);
    for (int field = 0; field < FIELDS; field++)
        Py_XDECREF(columns[field]);
    return found;
}

const char sources_of_doc[] =
"sources_of(source_type, *columns)\n--\n\nReturn what `columns_of` was given.";

PyObject *sources_of(PyObject *module, PyObject *args)
{
    PyObject *columns[FIELDS];
    PyTypeObject *source_type;
    if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyType_Type, &source_type, &PyTuple_Type, &columns[0],
                          &PyTuple_Type, &columns[1], &PyTuple_Type, &columns[2]))
        return NULL;
    PyObject *values = PyList_New(0);
    for (Py_ssize_t n = 0; values && n < PyTuple_Size(columns[0]); n++) {
        PyObject *fields[FIELDS];
        for (int field = 0; field < FIELDS; field++)
            fields[field] = Py_XNewRef(PyTuple_GetItem(columns[field], n));
        PyObject *source = record(source_type, fields, FIELDS);
        PyObject *value = source ? PyTuple_Pack(1, source) : NULL;
        if (!value || PyList_Append(values, value) < 0)
            Py_CLEAR(values);
        Py_XDECREF(value);
        Py_XDECREF(source);
    }
    return values;
}
