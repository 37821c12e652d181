/* The compiled part of the arena: its module. */

#include "_copy.h"

static PyMethodDef METHODS[] = {
#ifdef __SSE2__
    {"past_caches", past_caches, METH_VARARGS, past_caches_doc},
#endif
    {"sizes_of", sizes_of, METH_O, sizes_of_doc},
    {"write_strings", write_strings, METH_VARARGS, write_strings_doc},
    {"strings_of", strings_of, METH_VARARGS, strings_of_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "energy_data.loading._copy", "What costs time of copying batches.",
    -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__copy(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    /* Raise it if what is between Python and C changes: compiled.py knows it too. */
    if (module && PyModule_AddIntConstant(module, "VERSION", 5) < 0)
        Py_CLEAR(module);
    return module;
}
