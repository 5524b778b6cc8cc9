// The runtime of ThreadSanitizer that comes with GCC 12 does not know pthread_mutex_clocklock: it would take whatever a
// mutex guards for a race whenever the lock was contended. Here the call becomes one that it knows.
#ifdef __SANITIZE_THREAD__

#include <pthread.h>
#include <time.h>

extern "C" int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* until) noexcept {
  timespec base{}, real{};
  clock_gettime(clock, &base);
  clock_gettime(CLOCK_REALTIME, &real);
  real.tv_sec += until->tv_sec - base.tv_sec;
  real.tv_nsec += until->tv_nsec - base.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_nsec += 1'000'000'000;
    --real.tv_sec;
  } else if (real.tv_nsec >= 1'000'000'000) {
    real.tv_nsec -= 1'000'000'000;
    ++real.tv_sec;
  }
  return pthread_mutex_timedlock(mutex, &real);
}

#endif
