#include "sync.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "error.hpp"
#include "process.hpp"

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

namespace {

// Tries before sleeping for a mutex: it is held for about a microsecond, and a sleep costs tens of them.
constexpr int kLockSpins = 100;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

template <class Word>
bool spun_until_moved(const std::atomic<Word>& word, Word seen, std::uint64_t spin_ns) {
  const std::uint64_t until = now_ns() + spin_ns;
  do {
    for (int i = 0; i < 16; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return true;
      relax();
    }
  } while (now_ns() < until);
  return word.load(std::memory_order_acquire) != seen;
}

}  // namespace

void futex_wait_briefly_awake(std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t timeout_ns) {
  constexpr std::uint64_t kAwakeNs = 4'000;  // less than the two switches that a sleep costs
  if (!spun_until_moved(*word, expected, kAwakeNs)) futex_wait(word, expected, timeout_ns);
}

bool spin_until_moved(const std::atomic<std::uint64_t>& word, std::uint64_t seen, std::uint64_t spin_ns) {
  return spun_until_moved(word, seen, spin_ns);
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

namespace {

// Who holds the mutex, in words, as far as can be told.
std::string holder_of(SharedMutex& mutex, const Segments& segments) {
  if (const std::uint32_t holder = mutex.holder.load(std::memory_order_relaxed); holder != 0) {
    return "pid " + std::to_string(segments.process(holder - 1).pid.load(std::memory_order_relaxed)) + " (process slot " + std::to_string(holder - 1) + ")";
  }
#ifdef __GLIBC__
  // Stopped between taking it and saying so. The C library keeps the thread's number in the word that it waits on.
  const auto word = static_cast<std::uint32_t>(std::atomic_ref(mutex.mutex.__data.__lock).load(std::memory_order_relaxed));
  if ((word & FUTEX_TID_MASK) != 0) return "thread " + std::to_string(word & FUTEX_TID_MASK);
#endif
  return "a process that has not said which";
}

bool own(SharedMutex& mutex, std::uint32_t process, int status) {
  FAILPOINT(lock_taken);
  mutex.holder.store(process + 1, std::memory_order_relaxed);
  return status == EOWNERDEAD;
}

}  // namespace

bool mutex_lock(SharedMutex& mutex, const Segments& segments, std::uint32_t process, std::uint64_t timeout_ns, const char* what, const char* name) {
  int status = pthread_mutex_trylock(&mutex.mutex);
  for (int i = 0; status == EBUSY && i < kLockSpins; ++i) {
    relax();
    status = pthread_mutex_trylock(&mutex.mutex);
  }
  if (status == EBUSY) {
    const std::uint64_t until = now_ns() + timeout_ns;
    const timespec t{static_cast<time_t>(until / 1'000'000'000ull), static_cast<long>(until % 1'000'000'000ull)};
    status = pthread_mutex_clocklock(&mutex.mutex, CLOCK_MONOTONIC, &t);
  }
  if (status == ETIMEDOUT) {
    fail(ErrorCode::lock_timeout, "%s '%.63s' not acquired within %.3f s: held by %s. If it is stopped, continue or kill it: the lock passes on", what, name,
         static_cast<double>(timeout_ns) * 1e-9, holder_of(mutex, segments).c_str());
  }
  if (status != 0 && status != EOWNERDEAD) fail(ErrorCode::layout, "%s '%.63s' cannot be locked: %s", what, name, strerror(status));
  return own(mutex, process, status);
}

bool mutex_try(SharedMutex& mutex, std::uint32_t process, bool* orphaned) {
  const int status = pthread_mutex_trylock(&mutex.mutex);
  if (status != 0 && status != EOWNERDEAD) return false;
  *orphaned = own(mutex, process, status);
  return true;
}

#ifdef CONDUIT_FAILPOINTS
namespace {
std::atomic<std::uint64_t> lock_timeout{kLockTimeoutNs};
}
std::uint64_t lock_timeout_ns() { return lock_timeout.load(std::memory_order_relaxed); }
void set_lock_timeout(std::uint64_t ns) { lock_timeout.store(ns, std::memory_order_relaxed); }
#endif

void mutex_repaired(SharedMutex& mutex) { pthread_mutex_consistent(&mutex.mutex); }

void mutex_unlock(SharedMutex& mutex) {
  mutex.holder.store(0, std::memory_order_relaxed);
  pthread_mutex_unlock(&mutex.mutex);
}

}  // namespace conduit
