/* What the files of `_tar` have in common. See _tar.c. */

#pragma once

#define _GNU_SOURCE /* memmem, preadv */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one build for all versions of Python */
#include <Python.h>

#include <stdint.h>
#include <string.h>

#pragma GCC visibility push(hidden) /* other libraries may have functions of these names */

enum {
    BLOCK = 512,
    NAME = 100, /* bytes of the fields of a header */
    PREFIX = 155,
    EXTENSION = 32, /* bytes; longer ones are looked up each time */
};

typedef struct {
    const char *name; /* in the header, or `joined` */
    Py_ssize_t length;
    int64_t size; /* of the payload */
    char kind;
    char joined[PREFIX + 1 + NAME];
} Header;

/* Parses a header of a file or of pax records; false if it is any other, or not plain. */
int parse(const unsigned char *block, Header *header);

/* Takes a name apart: key, dot, extension. False if that needs a closer look. */
int split(const Header *header, Py_ssize_t *key, const char **extension, Py_ssize_t *length);

/* The files that rows are in, rows in order: file n begins at row `rows[n]`. */
typedef struct {
    PyObject *fds, *rows;             /* lists */
    Py_ssize_t count, next, next_row; /* `next` begins at `next_row` */
    Py_ssize_t fd;                    /* of the file before */
} Files;

/* Everything below returns NULL, or false, with an error set. */

/* Turns to the file of a row, which is not before the one it turned to last. */
int turn_to_file(Files *files, Py_ssize_t row);

/* Returns text as names in tars are decoded. */
PyObject *text_of(const char *text, Py_ssize_t length);

/* Sets `value` to an item. */
int item_at(PyObject *list, Py_ssize_t place, Py_ssize_t *value);

/* Sets where row `row` is. */
int span(PyObject *begins, PyObject *ends, Py_ssize_t row, int64_t *begin, int64_t *end);

/* Returns a sample without parts. origin: its `reader.Origin`; source: its `__sources__`. */
PyObject *begun(const char *key, Py_ssize_t length, PyObject *origin, PyObject *source);

/* Returns an object of a NamedTuple class; takes over the values, of which any may be NULL. */
PyObject *record(PyTypeObject *type, PyObject *const *values, Py_ssize_t count);

/* Prepares this; once. */
int prepare_names(void);

PyObject *read_plain(PyObject *module, PyObject *args);
PyObject *read_rows(PyObject *module, PyObject *args);
extern const char read_plain_doc[], read_rows_doc[];

#pragma GCC visibility pop
