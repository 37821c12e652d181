/* Samples that are one tensor, read into its row of a batch. Its Python: tar_raw.py. */

#include "_tar.h"

#include <sys/uio.h>

enum {
    AT_ONCE = 32, /* samples that are read before the first is looked at */
};

/* One argument of `read_rows`, for the samples whose tensors are rows. */
typedef struct {
    PyObject *begins, *ends, *sources, *origins, *places; /* lists */
    PyObject *is_tensor; /* (origin, extension) -> bool */
    PyTypeObject *row_type;
    PyObject *whole;
    PyObject *origin, *extension; /* of the sample before, if its part is the tensor */
    char text[EXTENSION];
    Py_ssize_t length;
} RowReader;

/* Returns the extension if parts with it are the tensor; NULL if not, or with an error set. */
static PyObject *tensor_part(RowReader *reader, PyObject *origin, const char *text, Py_ssize_t length)
{
    if (reader->origin == origin && reader->length == length &&
        memcmp(reader->text, text, (size_t)length) == 0)
        return reader->extension;
    Py_CLEAR(reader->origin);
    Py_CLEAR(reader->extension);
    if (length > EXTENSION)
        return NULL;
    PyObject *extension = text_of(text, length);
    PyObject *said =
        extension ? PyObject_CallFunctionObjArgs(reader->is_tensor, origin, extension, NULL) : NULL;
    if (said == Py_True) {
        reader->origin = Py_NewRef(origin);
        reader->extension = Py_NewRef(extension);
        reader->length = length;
        memcpy(reader->text, text, (size_t)length);
    }
    Py_XDECREF(said);
    Py_XDECREF(extension);
    return reader->extension;
}

/* Returns a sample that is only a tensor, which was read into its row; None if it is not. */
static PyObject *row_sample(
    RowReader *reader, Py_ssize_t row, const unsigned char *block, int64_t size)
{
    Header header;
    const char *text;
    Py_ssize_t key, length;
    PyObject *origin = PyList_GetItem(reader->origins, row);
    PyObject *source = PyList_GetItem(reader->sources, row);
    PyObject *place = PyList_GetItem(reader->places, row);
    if (!origin || !source || !place)
        return NULL;
    if (!parse(block, &header) || header.kind == 'x' || header.size != size ||
        !split(&header, &key, &text, &length))
        return Py_NewRef(Py_None);
    PyObject *extension = tensor_part(reader, origin, text, length);
    if (!extension)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *sample = begun(header.name, key, origin, source);
    PyObject *values[] = {Py_NewRef(reader->whole), Py_NewRef(place)};
    PyObject *value = record(reader->row_type, values, 2);
    if (!sample || !value || PyDict_SetItem(sample, extension, value) < 0)
        Py_CLEAR(sample);
    Py_XDECREF(value);
    return sample;
}

/* Prepares the read of a row: its header into `block`, its tensor into its place. 0 if it is not
   that of one tensor; -1 with an error set. */
static int aim(RowReader *reader, Py_ssize_t row, const Py_buffer *data, int64_t size,
               unsigned char *block, struct iovec *parts, int64_t *begin)
{
    int64_t end;
    PyObject *place = PyList_GetItem(reader->places, row);
    if (!place || !span(reader->begins, reader->ends, row, begin, &end))
        return -1;
    Py_ssize_t number = size > 0 ? PyLong_AsSsize_t(place) : -1;
    if (number < 0 || number >= data->len / size) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "no such row");
        return -1;
    }
    parts[0] = (struct iovec){block, BLOCK};
    parts[1] = (struct iovec){(char *)data->buf + number * size, (size_t)size};
    return end - *begin == BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
}

const char read_rows_doc[] =
"read_rows(found, fd, begins, ends, sources, origins, places, first, stop, data, size, is_tensor,\n"
"          row_type, whole)\n--\n\n"
"Read the tensors of rows [first, stop), each of `size` bytes, into their places in `data`. Add the\n"
"samples to `found`, None for those that are not a header and the tensor; return how many those are.";

PyObject *read_rows(PyObject *module, PyObject *args)
{
    int fd, good = 1;
    Py_ssize_t row, stop, special = 0;
    long long size;
    PyObject *found;
    Py_buffer data;
    RowReader reader = {0};
    if (!PyArg_ParseTuple(args, "O!iO!O!O!O!O!nnw*LOO!O", &PyList_Type, &found, &fd, &PyList_Type,
                          &reader.begins, &PyList_Type, &reader.ends, &PyList_Type, &reader.sources,
                          &PyList_Type, &reader.origins, &PyList_Type, &reader.places, &row, &stop,
                          &data, &size, &reader.is_tensor, &PyType_Type, &reader.row_type,
                          &reader.whole))
        return NULL;
    while (good && row < stop) {
        unsigned char blocks[AT_ONCE][BLOCK];
        struct iovec parts[AT_ONCE][2];
        int64_t begins[AT_ONCE];
        int fits[AT_ONCE], count = 0;
        for (; good && count < AT_ONCE && row + count < stop; count++) {
            fits[count] = aim(&reader, row + count, &data, size, blocks[count], parts[count],
                              &begins[count]);
            good = fits[count] >= 0;
        }
        if (!good)
            break;
        Py_BEGIN_ALLOW_THREADS
        for (int n = 0; n < count; n++)
            if (fits[n])
                fits[n] = preadv(fd, parts[n], 2, (off_t)begins[n]) == (ssize_t)(BLOCK + size);
        Py_END_ALLOW_THREADS
        for (int n = 0; good && n < count; n++, row++) {
            PyObject *sample =
                fits[n] ? row_sample(&reader, row, blocks[n], size) : Py_NewRef(Py_None);
            special += sample == Py_None;
            good = sample && PyList_Append(found, sample) == 0;
            Py_XDECREF(sample);
        }
        good = good && PyErr_CheckSignals() == 0;
    }
    Py_CLEAR(reader.origin);
    Py_CLEAR(reader.extension);
    PyBuffer_Release(&data);
    return good ? PyLong_FromSsize_t(special) : NULL;
}
