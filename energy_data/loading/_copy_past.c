/* Copying to the arena past the caches, by one thread or more (copying.py). */

#include "_copy.h"

#ifdef __SSE2__ /* of every x86-64 */
#include <emmintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum {
    UNIT = 16, /* bytes of a register */
    LINE = 64, /* of the cache */
    /* Bytes to ask for before they are needed; to ask behind the end does no harm. */
    AHEAD_PAST = 512,
    AHEAD = 2048,
    CHUNK = 256 << 10, /* bytes that a thread takes at a time, some 20 us */
    SPINS = 2000 /* looks for another thread's last chunk before it is waited for, some 50 us */
};

typedef struct {
    char *into;
    const char *data;
    Py_ssize_t size;
} Chunk;

/* Threads take chunks until there are none, so one that comes late, to a busy core, is not waited
   for: it finds nothing left to do. Whoever lets go of a job last frees it. */
typedef struct {
    atomic_int holders;
    atomic_size_t next, done; /* chunks that were taken, and that are there */
    size_t num_chunks;
    int is_passing;
    Chunk chunks[];
} Job;

/* Copies memory that does not overlap; what is written goes to memory at once, not to a cache, and
   what is read is left out of the larger caches if it is asked for as passing. */
static inline void copy_past(const Chunk *chunk, int is_passing)
{
    char *into = chunk->into;
    const char *data = chunk->data;
    Py_ssize_t size = chunk->size, done = (Py_ssize_t)(-(uintptr_t)into % UNIT);
    if (done > size)
        done = size;
    memcpy(into, data, done);
    for (; size - done >= LINE; done += LINE) {
        const __m128i *from = (const __m128i *)(data + done);
        __m128i *to = (__m128i *)(into + done);
        if (is_passing)
            _mm_prefetch((const char *)((uintptr_t)from + AHEAD_PAST), _MM_HINT_NTA);
        else
            _mm_prefetch((const char *)((uintptr_t)from + AHEAD), _MM_HINT_T0);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy(into + done, data + done, size - done);
    _mm_sfence(); /* whoever is told that it is there must find it */
}

static void take_part(Job *job)
{
    for (size_t n; (n = atomic_fetch_add(&job->next, 1)) < job->num_chunks;) {
        if (job->is_passing)
            copy_past(&job->chunks[n], 1);
        else
            copy_past(&job->chunks[n], 0);
        atomic_fetch_add(&job->done, 1);
    }
}

static void let_go(Job *job)
{
    if (atomic_fetch_sub(&job->holders, 1) == 1)
        free(job);
}

static void *help(void *job)
{
    take_part(job);
    let_go(job);
    return NULL;
}

/* Starts a thread that takes part, if the system gives one: else the others do it all. */
static void start_helper(Job *job)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t ours, before;
    /* Signals are Python's to handle, in its threads; but not errors of this one. */
    sigfillset(&ours);
    const int errors[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (size_t n = 0; n < sizeof errors / sizeof *errors; n++)
        sigdelset(&ours, errors[n]);
    if (pthread_attr_init(&detached))
        return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &ours, &before);
    atomic_fetch_add(&job->holders, 1);
    if (pthread_create(&thread, &detached, help, job))
        atomic_fetch_sub(&job->holders, 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

/* Copies all chunks of a job, and lets go of it. */
static void run(Job *job, int num_threads)
{
    for (int n = 1; n < num_threads && (size_t)n < job->num_chunks; n++)
        start_helper(job);
    take_part(job);
    for (int looks = 0; atomic_load(&job->done) < job->num_chunks; looks++) {
        if (looks < SPINS)
            _mm_pause();
        else
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    let_go(job);
}

/* Looks at (begin, end, data), where begin and end are places in the memory; -1: an error. */
static int open_piece(PyObject *piece, const Py_buffer *memory, Chunk *whole, Py_buffer *data)
{
    Py_ssize_t begin, end;
    if (!PyTuple_Check(piece)) {
        PyErr_SetString(PyExc_TypeError, "a piece must be a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(piece, "nny*", &begin, &end, data))
        return -1;
    if (begin < 0 || end < begin || end > memory->len || end - begin != data->len) {
        PyErr_SetString(PyExc_ValueError, "the piece is not of the size of its place");
        PyBuffer_Release(data);
        return -1;
    }
    *whole = (Chunk){(char *)memory->buf + begin, data->buf, data->len};
    return 0;
}

/* Returns the pieces cut into chunks; NULL: no memory. */
static Job *job_of(const Chunk *wholes, Py_ssize_t num_pieces, int is_passing)
{
    size_t num_chunks = 0;
    for (Py_ssize_t n = 0; n < num_pieces; n++)
        num_chunks += wholes[n].size / CHUNK + 1;
    Job *job = malloc(sizeof *job + num_chunks * sizeof *job->chunks);
    if (!job)
        return NULL;
    atomic_init(&job->holders, 1);
    atomic_init(&job->next, 0);
    atomic_init(&job->done, 0);
    job->is_passing = is_passing;
    job->num_chunks = 0;
    for (Py_ssize_t n = 0; n < num_pieces; n++)
        for (Py_ssize_t at = 0; at < wholes[n].size; at += CHUNK) {
            Py_ssize_t left = wholes[n].size - at;
            job->chunks[job->num_chunks++] =
                (Chunk){wholes[n].into + at, wholes[n].data + at, left < CHUNK ? left : CHUNK};
        }
    return job;
}

const char past_caches_doc[] =
"past_caches(memory, pieces, is_passing, num_threads)\n--\n\n"
"Copy pieces, a tuple of (begin, end, data), to their places in a memory they do not overlap,\n"
"without the caches. is_passing: what is read is not to stay in them either, which is slow on some\n"
"processors. Threads beyond the calling one are started for it, if there are any to be had.";

PyObject *past_caches(PyObject *module, PyObject *args)
{
    Py_buffer memory;
    PyObject *pieces;
    int is_passing, num_threads;
    if (!PyArg_ParseTuple(args, "w*O!pi", &memory, &PyTuple_Type, &pieces, &is_passing, &num_threads))
        return NULL;
    Py_ssize_t count = PyTuple_Size(pieces), open = 0;
    Chunk *wholes = malloc((count + 1) * sizeof *wholes);
    Py_buffer *data = malloc((count + 1) * sizeof *data);
    int is_wrong = !wholes || !data;
    if (is_wrong)
        PyErr_NoMemory();
    for (; open < count && !is_wrong; open += !is_wrong)
        is_wrong = open_piece(PyTuple_GetItem(pieces, open), &memory, &wholes[open], &data[open]);
    Job *job = is_wrong ? NULL : job_of(wholes, count, is_passing);
    const int is_done = job != NULL;
    /* With the GIL: to wait for it again may take 5 ms each time. */
    if (job)
        run(job, num_threads);
    else if (!is_wrong)
        PyErr_NoMemory();
    while (open)
        PyBuffer_Release(&data[--open]);
    free(data);
    free(wholes);
    PyBuffer_Release(&memory);
    return is_done ? Py_NewRef(Py_None) : NULL;
}
#endif
