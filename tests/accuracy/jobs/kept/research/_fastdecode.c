/* A decoder with threads of its own, as extension modules for video have them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int wanted = 0, done = 0, bad_from = 1 << 30;
static PyObject *on_warning = NULL;

static void warn(int frame) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *r = PyObject_CallFunction(on_warning, "i", frame);
    Py_XDECREF(r);
    PyGILState_Release(state);
}

static void *decode_loop(void *unused) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (wanted == done) pthread_cond_wait(&changed, &mutex);
        int frame = done + 1;
        pthread_mutex_unlock(&mutex);
        usleep(5000);
        if (frame >= bad_from) warn(frame);
        pthread_mutex_lock(&mutex);
        done = frame;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static PyObject *py_open(PyObject *self, PyObject *args) {
    pthread_t thread;
    if (!PyArg_ParseTuple(args, "Oi", &on_warning, &bad_from)) return NULL;
    Py_INCREF(on_warning);
    pthread_create(&thread, NULL, decode_loop, NULL);
    Py_RETURN_NONE;
}

static PyObject *py_next(PyObject *self, PyObject *args) {
    pthread_mutex_lock(&mutex);
    wanted++;
    pthread_cond_broadcast(&changed);
    while (done < wanted) pthread_cond_wait(&changed, &mutex);
    int frame = done;
    pthread_mutex_unlock(&mutex);
    return PyLong_FromLong(frame);
}

static PyMethodDef methods[] = {
    {"open", py_open, METH_VARARGS, "open(on_warning, bad_from)"},
    {"next_frame", py_next, METH_NOARGS, "the number of the next frame"},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fastdecode", NULL, -1, methods};
PyMODINIT_FUNC PyInit__fastdecode(void) { return PyModule_Create(&module); }
