/* A C extension whose lock is never given back: tests load it with ctypes (needs_job.py). */
#include <pthread.h>

static pthread_mutex_t pool = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) int take_buffer(void) {
    int failed = pthread_mutex_lock(&pool);
    __asm__ volatile("" ::: "memory"); /* no tail call: this function stays on the stack */
    return failed;
}
