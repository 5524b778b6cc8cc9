// Waiting and locking across processes: clocks, futexes, the robust mutex.
#pragma once

#include <atomic>
#include <cstdint>

#include "layout.hpp"

namespace conduit {

std::uint64_t now_ns();  // CLOCK_MONOTONIC: the same clock in every process of the node

// Waits until `*word != expected`, a wake, a signal or the timeout; the caller re-checks its condition in every case.
void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t timeout_ns);
void futex_wake_all(std::atomic<std::uint32_t>* word);

// The waiting protocol of layout.hpp. Progress side: one load when nobody waits.
inline void announce(std::atomic<std::uint32_t>& waiting, std::atomic<std::uint32_t>& signal) {
  // seq_cst: the publication before this call and this load must not pass each other (the waiter does the mirror image).
  if (waiting.load(std::memory_order_seq_cst) == 0) return;
  waiting.store(0, std::memory_order_seq_cst);
  signal.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&signal);
}

void mutex_init(SharedMutex& mutex);
// True when the previous holder died holding it: the caller must repair what the mutex guards, then call mutex_repaired.
// Throws ErrorCode::lock_timeout, naming the holder's process slot, when not acquired within `timeout_ns`.
bool mutex_lock(SharedMutex& mutex, std::uint32_t process, std::uint64_t timeout_ns, const char* what);
void mutex_repaired(SharedMutex& mutex);
void mutex_unlock(SharedMutex& mutex);

inline constexpr std::uint64_t kLockTimeoutNs = 10'000'000'000ull;  // the lock is held for microseconds

}  // namespace conduit
