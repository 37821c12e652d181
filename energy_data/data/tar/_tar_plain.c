/* Samples, decoded. In Python: reader.py. */

#include "_tar.h"

#include <unistd.h>

enum {
    WHOLE = 65536,   /* bytes; larger samples are left to Python */
    GAP = 4096,      /* bytes between two samples that are cheaper to read than to skip */
    SCRATCH = 4 * WHOLE,
    AT_ONCE = 64,    /* reads before the first is looked at */
    REMEMBERED = 8,  /* extensions of a dataset */
};

/* What a dataset does with the parts of one extension. */
typedef struct {
    char text[EXTENSION];
    Py_ssize_t length;
    PyObject *name, *decode;
} Part;

/* The dataset of the sample before: mostly that of the next one too. */
typedef struct {
    PyObject *origin, *known; /* `reader.Origin`, `Decoders.known` */
    PyObject *decode_text;
    Part parts[REMEMBERED];
    int num_parts;
} Dataset;

/* Returns the place behind the pax record at `at`, 0 if it is damaged or says anything of a file. */
static size_t behind_record(const unsigned char *records, size_t size, size_t at)
{
    size_t length = 0, place = at;
    for (; place < size && place < at + 18 && records[place] >= '0' && records[place] <= '9'; place++)
        length = length * 10 + (records[place] - '0');
    if (place == at || place >= size || records[place] != ' ' || length > size - at)
        return 0;
    size_t behind = at + length;
    const unsigned char *key = records + place + 1;
    if (behind <= place + 2 || records[behind - 1] != '\n')
        return 0;
    const unsigned char *equals = memchr(key, '=', (size_t)(records + behind - 1 - key));
    if (!equals)
        return 0;
    size_t key_length = (size_t)(equals - key);
    int is_name = key_length == 4 && (memcmp(key, "path", 4) == 0 || memcmp(key, "size", 4) == 0);
    int is_sparse = key_length >= 10 && memcmp(key, "GNU.sparse", 10) == 0;
    return is_name || is_sparse ? 0 : behind;
}

/* Whether pax records are whole, and leave name and size of their file as its header has them. */
static int are_idle(const unsigned char *records, size_t size)
{
    size_t at = 0;
    while (at < size && records[at]) {
        at = behind_record(records, size, at);
        if (!at)
            return 0;
    }
    return 1;
}

static void forget(Dataset *dataset)
{
    for (int n = 0; n < dataset->num_parts; n++) {
        Py_CLEAR(dataset->parts[n].name);
        Py_CLEAR(dataset->parts[n].decode);
    }
    dataset->num_parts = 0;
    Py_CLEAR(dataset->origin);
    Py_CLEAR(dataset->known);
}

/* Makes `dataset` that of the sample; false with an error set. */
static int turn_to(Dataset *dataset, PyObject *origin)
{
    if (dataset->origin == origin)
        return 1;
    forget(dataset);
    PyObject *decoders = PyTuple_GetItem(origin, 0);
    dataset->known = decoders ? PyObject_GetAttrString(decoders, "known") : NULL;
    if (!dataset->known)
        return 0;
    dataset->origin = Py_NewRef(origin);
    return 1;
}

/* Returns what is known of an extension; NULL if it decodes nothing, or with an error set. */
static const Part *part_of(Dataset *dataset, const char *extension, Py_ssize_t length)
{
    for (int n = 0; n < dataset->num_parts; n++) {
        const Part *part = &dataset->parts[n];
        if (part->length == length && memcmp(part->text, extension, (size_t)length) == 0)
            return part;
    }
    PyObject *name = text_of(extension, length);
    if (!name)
        return NULL;
    PyObject *decode = PyDict_GetItemWithError(dataset->known, name);
    if (decode)
        Py_INCREF(decode);
    else if (!PyErr_Occurred())
        decode = PyObject_CallMethod(PyTuple_GetItem(dataset->origin, 0), "find_sane", "O", name);
    if (!decode || decode == Py_None) {
        Py_XDECREF(decode);
        Py_DECREF(name);
        return NULL;
    }
    if (dataset->num_parts == REMEMBERED) {
        dataset->num_parts--;
        Py_CLEAR(dataset->parts[dataset->num_parts].name);
        Py_CLEAR(dataset->parts[dataset->num_parts].decode);
    }
    Part *part = &dataset->parts[dataset->num_parts++];
    part->length = length <= EXTENSION ? length : -1;
    memcpy(part->text, extension, (size_t)(length <= EXTENSION ? length : 0));
    part->name = name;
    part->decode = decode;
    return part;
}

/* Returns the value of a part; NULL with an error set. */
static PyObject *decoded(const Dataset *dataset, const Part *part, const char *data, Py_ssize_t size)
{
    if (part->decode == dataset->decode_text)
        return PyUnicode_DecodeUTF8(data, size, NULL);
    PyObject *copy = PyBytes_FromStringAndSize(data, size);
    if (!copy || part->decode == (PyObject *)&PyBytes_Type)
        return copy;
    PyObject *value = PyObject_CallFunctionObjArgs(part->decode, copy, NULL);
    Py_DECREF(copy);
    return value;
}

/* Adds a part to a sample: 1, or 0 if that is special, or -1 with an error set. */
static int add_part(
    Dataset *dataset, PyObject *sample, const char *extension, Py_ssize_t length,
    const unsigned char *data, Py_ssize_t size)
{
    const Part *part = part_of(dataset, extension, length);
    if (!part)
        return PyErr_Occurred() ? -1 : 0;
    int done = PyDict_Contains(sample, part->name);
    if (done != 0)
        return done < 0 ? -1 : 0;
    PyObject *value = decoded(dataset, part, (const char *)data, size);
    if (value) {
        done = PyDict_SetItem(sample, part->name, value) < 0 ? -1 : 1;
        Py_DECREF(value);
        return done;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear(); /* read again, which says what is wrong */
    return 0;
}

/* Returns the sample in some bytes; None if anything is special about it; NULL with an error. */
static PyObject *sample_in(
    Dataset *dataset, const unsigned char *data, Py_ssize_t size, PyObject *source)
{
    PyObject *sample = NULL;
    char key[PREFIX + 1 + NAME];
    Py_ssize_t key_length = 0, at = 0;
    int done = 1;
    while (at < size && done == 1) {
        Header header;
        const char *extension;
        Py_ssize_t begin = at + BLOCK, length, extension_length;
        done = 0;
        if (begin > size || !parse(data + at, &header) || header.size > size - begin)
            break;
        at = (begin + (Py_ssize_t)header.size + BLOCK - 1) / BLOCK * BLOCK;
        if (at > size)
            break;
        if (header.kind == 'x') { /* with something behind it */
            done = at < size && are_idle(data + begin, (size_t)header.size);
            continue;
        }
        if (!split(&header, &length, &extension, &extension_length))
            break;
        if (!sample) {
            memcpy(key, header.name, (size_t)length);
            key_length = length;
            sample = begun(key, length, dataset->origin, source);
        }
        else if (length != key_length || memcmp(key, header.name, (size_t)length) != 0)
            break;
        done = sample ? add_part(dataset, sample, extension, extension_length, data + begin,
                                 (Py_ssize_t)header.size)
                      : -1;
    }
    if (done == 1 && sample)
        return sample;
    Py_XDECREF(sample);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* Returns the first row that is not read together with `row`; -1 with an error set.

   range, end: set to the range of bytes that they are in. */
static Py_ssize_t neighbours(
    PyObject *begins, PyObject *ends, Py_ssize_t row, Py_ssize_t stop, int64_t *range, int64_t *end)
{
    int64_t start, begin, behind;
    if (!span(begins, ends, row, &start, end))
        return -1;
    *range = start;
    if (*end - start > WHOLE)
        return row + 1;
    while (++row < stop) {
        if (!span(begins, ends, row, &begin, &behind))
            return -1;
        if (begin < start || begin - *end > GAP || behind - begin > WHOLE || behind - start > SCRATCH)
            break;
        *end = behind > *end ? behind : *end;
    }
    return row;
}

/* Adds the samples of some rows to `found`, None for special ones; returns how many those are, -1
   with an error set. data: of a range of the file; NULL if it could not be read. */
static Py_ssize_t take(
    Dataset *dataset, PyObject *found, PyObject *const *columns, Py_ssize_t row, Py_ssize_t stop,
    const unsigned char *data, int64_t start, int64_t end)
{
    Py_ssize_t special = 0;
    for (; row < stop; row++) {
        int64_t begin, behind;
        PyObject *source = PyList_GetItem(columns[2], row), *origin = PyList_GetItem(columns[3], row);
        if (!source || !origin || !span(columns[0], columns[1], row, &begin, &behind) ||
            !turn_to(dataset, origin))
            return -1;
        int is_here = data && begin >= start && behind <= end;
        PyObject *sample = is_here ? sample_in(dataset, data + (begin - start),
                                               (Py_ssize_t)(behind - begin), source)
                                   : Py_NewRef(Py_None);
        if (!sample)
            return -1;
        special += sample == Py_None;
        int failed = PyList_Append(found, sample);
        Py_DECREF(sample);
        if (failed)
            return -1;
    }
    return special;
}

/* Some rows that are read together. */
typedef struct {
    Py_ssize_t row, stop; /* first, and behind the last */
    int fd;
    int64_t start, end;  /* in the file */
    unsigned char *data; /* NULL: too much, or it could not be read */
} Reading;

/* Prepares what is read next, from `row` on, into scratch: sets `count`; returns the row behind it,
   -1 with an error set. */
static Py_ssize_t prepare(
    Files *files, PyObject *const *columns, Py_ssize_t row, unsigned char *scratch,
    Reading *readings, int *count)
{
    Py_ssize_t used = 0, stop = PyList_Size(columns[0]);
    for (*count = 0; *count < AT_ONCE && row < stop; (*count)++) {
        Reading *one = &readings[*count];
        if (!turn_to_file(files, row))
            return -1;
        Py_ssize_t behind = files->next < files->count ? files->next_row : stop;
        Py_ssize_t next = neighbours(columns[0], columns[1], row, behind, &one->start, &one->end);
        if (next < 0)
            return -1;
        Py_ssize_t size = (Py_ssize_t)(one->end - one->start);
        int fits = next > row + 1 || size <= WHOLE;
        if (fits && size > SCRATCH - used)
            break;
        one->data = fits ? scratch + used : NULL;
        used += fits ? size : 0;
        one->fd = (int)files->fd;
        one->row = row;
        one->stop = row = next;
    }
    return row;
}

const char read_plain_doc[] =
"read_plain(found, fds, file_rows, begins, ends, sources, origins, decode_text)\n--\n\n"
"Add the samples of all rows to `found`, None for special ones; return how many those are.";

PyObject *read_plain(PyObject *module, PyObject *args)
{
    PyObject *found, *columns[4];
    Dataset dataset = {0};
    Files files = {.fd = -1};
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O", &PyList_Type, &found, &PyList_Type, &files.fds,
                          &PyList_Type, &files.rows, &PyList_Type, &columns[0], &PyList_Type,
                          &columns[1], &PyList_Type, &columns[2], &PyList_Type, &columns[3],
                          &dataset.decode_text))
        return NULL;
    files.count = PyList_Size(files.fds);
    unsigned char *scratch = PyMem_Malloc(SCRATCH);
    if (!scratch)
        return PyErr_NoMemory();
    Py_ssize_t special = 0, row = 0;
    while (row >= 0 && row < PyList_Size(columns[0])) {
        Reading readings[AT_ONCE];
        int count;
        row = prepare(&files, columns, row, scratch, readings, &count);
        if (row < 0)
            break;
        Py_BEGIN_ALLOW_THREADS /* once for many: others may keep us waiting for it each time */
        for (Reading *one = readings; one < readings + count; one++) {
            size_t size = (size_t)(one->end - one->start);
            if (one->data && pread(one->fd, one->data, size, (off_t)one->start) != (ssize_t)size)
                one->data = NULL;
        }
        Py_END_ALLOW_THREADS
        for (Reading *one = readings; row >= 0 && one < readings + count; one++) {
            Py_ssize_t added =
                take(&dataset, found, columns, one->row, one->stop, one->data, one->start, one->end);
            special += added;
            row = added < 0 ? -1 : row;
        }
        if (row >= 0 && PyErr_CheckSignals() < 0)
            row = -1;
    }
    forget(&dataset);
    PyMem_Free(scratch);
    return row < 0 ? NULL : PyLong_FromSsize_t(special);
}
