/* A wall clock that jumps: LD_PRELOAD this, and the nanoseconds in the file named by CHAOS_CLOCK are added
   to what the machine says. Clocks that only go forward (CLOCK_MONOTONIC) are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_ns;
static int64_t none;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *file = getenv("CHAOS_CLOCK");
    int opened = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = opened < 0 ? MAP_FAILED : mmap(0, sizeof none, PROT_READ, MAP_SHARED, opened, 0);
    if (opened >= 0)
        close(opened);
    offset_ns = mapped == MAP_FAILED ? &none : mapped;
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!real)
        begin();
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t at = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *offset_ns;
        now->tv_sec = at / INT64_C(1000000000);
        now->tv_nsec = at % INT64_C(1000000000);
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &at))
        return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (into)
        *into = at.tv_sec;
    return at.tv_sec;
}
