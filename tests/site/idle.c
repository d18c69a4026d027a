/* Lets ranks that wait do so asleep, for tests: LD_PRELOAD this library.
 *
 * MPI waits by calling sched_yield() again and again, which takes a whole core from those who work. After a thousand
 * calls in a row, a millisecond of sleep takes the place of each.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static __thread struct timespec last;
static __thread unsigned in_a_row;

int sched_yield(void)
{
    struct timespec now, wait = {0, 1000000};
    long gap;

    clock_gettime(CLOCK_MONOTONIC, &now);
    gap = (now.tv_sec - last.tv_sec) * 1000000000L + now.tv_nsec - last.tv_nsec;
    in_a_row = gap < 100000 ? in_a_row + 1 : 0; /* who has got something to do comes back later */
    if (in_a_row < 1000) {
        last = now;
        return (int)syscall(SYS_sched_yield);
    }
    nanosleep(&wait, NULL);
    clock_gettime(CLOCK_MONOTONIC, &last);
    return 0;
}
