#include "sync.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "error.hpp"

namespace conduit {

std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<std::uint64_t>(t.tv_nsec);
}

void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t timeout_ns) {
  const timespec t{static_cast<time_t>(timeout_ns / 1'000'000'000ull), static_cast<long>(timeout_ns % 1'000'000'000ull)};
  // Not FUTEX_PRIVATE_FLAG: the word is found by its page, whatever address each process maps it at.
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void mutex_init(SharedMutex& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex.mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  mutex.holder.store(0, std::memory_order_relaxed);
}

bool mutex_lock(SharedMutex& mutex, std::uint32_t process, std::uint64_t timeout_ns, const char* what) {
  int status = pthread_mutex_trylock(&mutex.mutex);
  if (status == EBUSY) {
    const std::uint64_t until = now_ns() + timeout_ns;
    const timespec t{static_cast<time_t>(until / 1'000'000'000ull), static_cast<long>(until % 1'000'000'000ull)};
    status = pthread_mutex_clocklock(&mutex.mutex, CLOCK_MONOTONIC, &t);
  }
  if (status == ETIMEDOUT) {
    const std::uint32_t holder = mutex.holder.load(std::memory_order_relaxed);
    fail(ErrorCode::lock_timeout, "%s not acquired within %.3f s: held by process slot %ld", what,
         static_cast<double>(timeout_ns) * 1e-9, static_cast<long>(holder) - 1);
  }
  if (status != 0 && status != EOWNERDEAD) fail(ErrorCode::layout, "%s cannot be locked: %s", what, strerror(status));
  mutex.holder.store(process + 1, std::memory_order_relaxed);
  return status == EOWNERDEAD;
}

void mutex_repaired(SharedMutex& mutex) { pthread_mutex_consistent(&mutex.mutex); }

void mutex_unlock(SharedMutex& mutex) {
  mutex.holder.store(0, std::memory_order_relaxed);
  pthread_mutex_unlock(&mutex.mutex);
}

}  // namespace conduit
