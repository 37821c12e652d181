/* Samples that are one tensor, read into its row of a batch. In Python: reader.py. */

#include "_tar.h"

#include <sys/uio.h>

enum {
    AT_ONCE = 32, /* samples that are read before the first is looked at */
};

/* What `read_rows` is given, and where it is. */
typedef struct {
    Files files;
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

/* The read of a sample. */
typedef struct {
    int fd;
    int64_t begin;
    struct iovec parts[2];
    unsigned char header[BLOCK];
    int fits; /* it is a header and the tensor */
} Aim;

/* Prepares the read of a row, its tensor into its place; false with an error set. */
static int aim(RowReader *reader, Py_ssize_t row, const Py_buffer *data, int64_t size, Aim *aimed)
{
    int64_t end;
    PyObject *place = PyList_GetItem(reader->places, row);
    if (!place || !span(reader->begins, reader->ends, row, &aimed->begin, &end) ||
        !turn_to_file(&reader->files, row))
        return 0;
    Py_ssize_t number = size > 0 ? PyLong_AsSsize_t(place) : -1;
    if (number < 0 || number >= data->len / size) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "no such row");
        return 0;
    }
    aimed->fd = (int)reader->files.fd;
    aimed->parts[0] = (struct iovec){aimed->header, BLOCK};
    aimed->parts[1] = (struct iovec){(char *)data->buf + number * size, (size_t)size};
    aimed->fits = end - aimed->begin == BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
    return 1;
}

const char read_rows_doc[] =
"read_rows(found, fds, file_rows, begins, ends, sources, origins, places, data, size, is_tensor,\n"
"          row_type, whole)\n--\n\n"
"Read the tensors of all rows, each of `size` bytes, into their places in `data`. Add the samples\n"
"to `found`, None for those that are not a header and the tensor; return how many those are.";

PyObject *read_rows(PyObject *module, PyObject *args)
{
    int good = 1;
    Py_ssize_t row = 0, special = 0;
    long long size;
    PyObject *found;
    Py_buffer data;
    RowReader reader = {.files = {.fd = -1}};
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O!w*LOO!O", &PyList_Type, &found, &PyList_Type,
                          &reader.files.fds, &PyList_Type, &reader.files.rows, &PyList_Type,
                          &reader.begins, &PyList_Type, &reader.ends, &PyList_Type, &reader.sources,
                          &PyList_Type, &reader.origins, &PyList_Type, &reader.places, &data, &size,
                          &reader.is_tensor, &PyType_Type, &reader.row_type, &reader.whole))
        return NULL;
    Py_ssize_t stop = PyList_Size(reader.begins);
    reader.files.count = PyList_Size(reader.files.fds);
    while (good && row < stop) {
        Aim aims[AT_ONCE];
        int count = 0;
        for (; good && count < AT_ONCE && row + count < stop; count++)
            good = aim(&reader, row + count, &data, size, &aims[count]);
        if (!good)
            break;
        Py_BEGIN_ALLOW_THREADS
        for (Aim *one = aims; one < aims + count; one++)
            one->fits = one->fits && preadv(one->fd, one->parts, 2, (off_t)one->begin) ==
                                         (ssize_t)(BLOCK + size);
        Py_END_ALLOW_THREADS
        for (int n = 0; good && n < count; n++, row++) {
            PyObject *sample = aims[n].fits ? row_sample(&reader, row, aims[n].header, size)
                                            : Py_NewRef(Py_None);
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
