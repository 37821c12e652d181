/* What the files of the compiled part of the arena share. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one build for all versions of Python */
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern const char past_caches_doc[]; /* of x86-64 only, as its function */
extern const char sizes_of_doc[], write_strings_doc[], strings_of_doc[];
PyObject *past_caches(PyObject *module, PyObject *args);
PyObject *sizes_of(PyObject *module, PyObject *values);
PyObject *write_strings(PyObject *module, PyObject *args);
PyObject *strings_of(PyObject *module, PyObject *args);
