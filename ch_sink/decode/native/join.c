/* Joins a list of bytes objects, for which each object has to be looked at only here.

   The functions of Python's stable interface are found in the process that loads the library: no headers are needed.
   Whoever calls must hold the interpreter's lock (ctypes.PyDLL). */

#include <stdint.h>
#include <string.h>

typedef struct _object PyObject;
extern intptr_t PyList_Size(PyObject *);
extern PyObject *PyList_GetItem(PyObject *, intptr_t);
extern int PyBytes_AsStringAndSize(PyObject *, char **, intptr_t *);
extern char *PyBytes_AsString(PyObject *);
extern PyObject *PyBytes_FromStringAndSize(const char *, intptr_t);

/* All texts, one behind the other, and where each ends; NULL with TypeError if one is not a bytes object. */
PyObject *ch_joined(PyObject *texts, int64_t *ends) {
    intptr_t count = PyList_Size(texts), size, sum = 0;
    char *at;
    for (intptr_t i = 0; i < count; i++) {
        if (PyBytes_AsStringAndSize(PyList_GetItem(texts, i), &at, &size) < 0) return NULL;
        ends[i] = sum += size;
    }
    PyObject *all = PyBytes_FromStringAndSize(NULL, sum);
    if (!all) return NULL;
    char *out = PyBytes_AsString(all);
    for (intptr_t i = 0, from = 0; i < count; i++) {
        memcpy(out + from, PyBytes_AsString(PyList_GetItem(texts, i)), (size_t)(ends[i] - from));
        from = (intptr_t)ends[i];
    }
    return all;
}

/* Whether all texts begin with {" and then neither s nor p: none is an envelope of a schema. */
int ch_plain(const uint8_t *data, const int64_t *ends, int64_t count) {
    int64_t from = 0;
    for (int64_t i = 0; i < count; from = ends[i++]) {
        if (ends[i] - from < 3) return 0;
        const uint8_t *at = data + from;
        if (at[0] != '{' || at[1] != '"' || at[2] == 's' || at[2] == 'p') return 0;
    }
    return 1;
}
