/* Reads plain samples of tars, as `reader.py` does.

   Nothing here reports an error: a sample that is not plain is None, and Python reads it again.
   `tests/data/test_compiled.py` compares both on the same tars. */

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

/* What `locate` is given: its lists to add to, and what it is at. */
typedef struct {
    PyObject *files, *fds, *file_rows, *begins, *ends, *sources, *origins; /* lists, to add to */
    PyTypeObject *source_type;
    PyObject *wanted; /* the samples of one request, in order */
    PyObject *dataset, *after, *counts, *shards, *open, *origin; /* see `tar_layout.Layout` */
    long long skipped, length;
    uint64_t num_bytes; /* of the samples of the request that were added */
} Locator;

/* Adds the samples wanted[at:] that are in one block of the index of a shard. `first` is the first
   sample of the block, `before` the number of those before it in the shard. Returns the place of
   the first sample behind the block, ~place of one with invalid offsets, or -1 with an error set
   (~0 is -1 too, without an error). */
static Py_ssize_t add_places(Locator *asked, Py_ssize_t at, const Py_buffer *table, int64_t first,
                             int64_t before, PyObject *name)
{
    const uint64_t *offsets = table->buf;
    int64_t count = table->len / (Py_ssize_t)sizeof(uint64_t) - 1;
    uint64_t floor = 0, last = count >= 0 ? offsets[count] : 0;
    for (Py_ssize_t stop = PyList_Size(asked->wanted); at < stop; at++) {
        int64_t number = PyLong_AsLongLong(PyList_GetItem(asked->wanted, at)) - first;
        if (PyErr_Occurred())
            return -1;
        if (number >= count)
            break;
        uint64_t begin = number < 0 ? 1 : offsets[number], end = number < 0 ? 0 : offsets[number + 1];
        /* `floor`: where the next sample may begin, unless it is the same again */
        if (!(begin < end && end <= last && (begin | end) % BLOCK == 0 &&
              (begin >= floor || end == floor)))
            return ~at;
        floor = end;
        asked->num_bytes += end - begin;
        if (!add_place(asked->begins, asked->ends, begin, end) ||
            !add_source(asked->sources, asked->source_type, asked->dataset, name,
                        before + number) ||
            PyList_Append(asked->origins, asked->origin) < 0)
            return -1;
    }
    return at;
}

/* Sets `shard` to the one with a sample, as `bisect_right`; false with an error set. */
static int find_shard(PyObject *after, Py_ssize_t sample, Py_ssize_t *shard)
{
    Py_ssize_t low = 0, high = PyList_Size(after), behind;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (!item_at(after, middle, &behind))
            return 0;
        if (sample < behind)
            high = middle;
        else
            low = middle + 1;
    }
    *shard = low;
    return 1;
}

/* Adds the samples from place `at` on that are in the same block of the same shard; returns as
   `add_places`. */
static Py_ssize_t add_block(Locator *asked, Py_ssize_t at)
{
    Py_ssize_t sample, shard, behind, count, next = -1;
    if (!item_at(asked->wanted, at, &sample) ||
        !find_shard(asked->after, sample + (Py_ssize_t)asked->skipped, &shard) ||
        !item_at(asked->after, shard, &behind) || !item_at(asked->counts, shard, &count))
        return -1;
    PyObject *name = Py_XNewRef(PyList_GetItem(asked->shards, shard));
    Py_ssize_t first = behind - count - (Py_ssize_t)asked->skipped; /* sample of the shard */
    PyObject *opened =
        name ? PyObject_CallFunction(asked->open, "nn", shard, sample - first) : NULL;
    PyObject *file = opened ? PyTuple_GetItem(opened, 0) : NULL;
    PyObject *fd = file ? PyTuple_GetItem(opened, 3) : NULL;
    PyObject *block = fd ? PyTuple_GetItem(opened, 2) : NULL;
    Py_ssize_t before = block ? PyLong_AsSsize_t(block) : -1;
    PyObject *first_row = before >= 0 ? PyLong_FromSsize_t(PyList_Size(asked->begins)) : NULL;
    Py_buffer table;
    if (first_row && PyList_Append(asked->files, file) == 0 && PyList_Append(asked->fds, fd) == 0 &&
        PyList_Append(asked->file_rows, first_row) == 0 &&
        PyObject_GetBuffer(PyTuple_GetItem(opened, 1), &table, PyBUF_SIMPLE) == 0) {
        next = add_places(asked, at, &table, first + before, before, name);
        PyBuffer_Release(&table);
    }
    Py_XDECREF(first_row);
    Py_XDECREF(opened);
    Py_XDECREF(name);
    return next == at ? ~at : next; /* an index with too few offsets */
}

/* Adds the samples of one request, a layout and sorted numbers; false if one of them is invalid, or
   with an error set. */
static int add_request(Locator *asked, PyObject *request)
{
    PyObject *layout;
    Py_ssize_t at = 0, first = 0, last = -1;
    if (!PyArg_ParseTuple(request, "O!O!", &PyTuple_Type, &layout, &PyList_Type, &asked->wanted) ||
        !PyArg_ParseTuple(layout, "OLLO!O!O!OO", &asked->dataset, &asked->skipped, &asked->length,
                          &PyList_Type, &asked->after, &PyList_Type, &asked->counts, &PyList_Type,
                          &asked->shards, &asked->open, &asked->origin))
        return 0;
    Py_ssize_t stop = PyList_Size(asked->wanted);
    if (stop && (!item_at(asked->wanted, 0, &first) || !item_at(asked->wanted, stop - 1, &last) ||
                 first < 0 || first > last || last >= asked->length || asked->skipped < 0 ||
                 asked->skipped > PY_SSIZE_T_MAX - asked->length))
        return 0;
    asked->num_bytes = 0;
    while (at >= 0 && at < stop)
        at = add_block(asked, at);
    return at >= 0;
}

PyDoc_STRVAR(locate_doc,
"locate(requests, files, fds, file_rows, begins, ends, sources, origins, source_type)\n--\n\n"
"Add to the lists where samples are, request by request. Return of how many bytes those of each\n"
"are; None if one cannot be. As `tar_layout.locate`.");

static PyObject *locate(PyObject *module, PyObject *args)
{
    Locator asked = {.wanted = NULL};
    PyObject *requests;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O!O!", &PyList_Type, &requests, &PyList_Type,
                          &asked.files, &PyList_Type, &asked.fds, &PyList_Type, &asked.file_rows,
                          &PyList_Type, &asked.begins, &PyList_Type, &asked.ends, &PyList_Type,
                          &asked.sources, &PyList_Type, &asked.origins, &PyType_Type,
                          &asked.source_type))
        return NULL;
    PyObject *located = PyList_New(0);
    for (Py_ssize_t n = 0; located && n < PyList_Size(requests); n++) {
        PyObject *request = Py_NewRef(PyList_GetItem(requests, n));
        int good = add_request(&asked, request);
        PyObject *num_bytes = good ? PyLong_FromUnsignedLongLong(asked.num_bytes) : NULL;
        if (!num_bytes || PyList_Append(located, num_bytes) < 0)
            Py_CLEAR(located);
        Py_XDECREF(num_bytes);
        Py_DECREF(request);
    }
    return located || PyErr_Occurred() ? located : Py_NewRef(Py_None);
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

int turn_to_file(Files *files, Py_ssize_t row)
{
    while (files->next < files->count && row >= files->next_row) {
        if (!item_at(files->fds, files->next, &files->fd))
            return 0;
        files->next++;
        if (files->next < files->count && !item_at(files->rows, files->next, &files->next_row))
            return 0;
    }
    return 1;
}

static PyMethodDef METHODS[] = {
    {"in_order", in_order, METH_VARARGS, in_order_doc},
    {"locate", locate, METH_VARARGS, locate_doc},
    {"read_plain", read_plain, METH_VARARGS, read_plain_doc},
    {"read_rows", read_rows, METH_VARARGS, read_rows_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "energy_data.data.tar._tar", "The reader of plain samples, compiled.",
    -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__tar(void)
{
    PyObject *module = prepare_names() ? PyModule_Create(&MODULE) : NULL;
    /* Raise it if the interface between Python and C changes: native.py has the same number. */
    if (module && PyModule_AddIntConstant(module, "VERSION", 5) < 0)
        Py_CLEAR(module);
    return module;
}
