/* A thread that notes for how long it did not run: gaps of a busy loop above 3 ms.
 *
 * start() begins it; take(&longest) returns the milliseconds of all gaps since the last call. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static _Atomic double total, longest;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void *look(void *unused) {
    for (double last = now();;) {
        double at = now(), gap = at - last;
        last = at;
        if (gap > 3.0) {
            atomic_store(&total, atomic_load(&total) + gap);
            if (gap > atomic_load(&longest)) atomic_store(&longest, gap);
        }
    }
    return unused;
}

void start(void) {
    pthread_t thread;
    pthread_create(&thread, 0, look, 0);
}

double take(double *most) {
    *most = atomic_exchange(&longest, 0.0);
    return atomic_exchange(&total, 0.0);
}
