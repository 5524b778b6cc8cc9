// Waiting and locking across processes: clocks, futexes, the robust mutex.
#pragma once

#include <atomic>
#include <cstdint>

#include "failpoints.hpp"
#include "layout.hpp"

namespace conduit {

class Segments;

std::uint64_t now_ns();  // CLOCK_MONOTONIC: the same clock in every process of the node

// Waits until `*word != expected`, a wake, a signal or the timeout; the caller re-checks its condition in every case.
void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t timeout_ns);
// The same after looking for a few microseconds whether the word changes: what is about to come needs no sleep.
void futex_wait_briefly_awake(std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t timeout_ns);
void futex_wake_all(std::atomic<std::uint32_t>* word);
// Looks at `word` for up to `spin_ns` without sleeping; whether it has moved from `seen`.
bool spin_until_moved(const std::atomic<std::uint64_t>& word, std::uint64_t seen, std::uint64_t spin_ns);

// The waiting protocol of layout.hpp. Progress side: one load when nobody waits.
inline void announce(std::atomic<std::uint32_t>& waiting, std::atomic<std::uint32_t>& signal) {
  // seq_cst: the publication before this call and this load must not pass each other (the waiter does the mirror image).
  if (waiting.load(std::memory_order_seq_cst) == 0) return;
  FAILPOINT(announce_begin);
  waiting.store(0, std::memory_order_seq_cst);
  FAILPOINT(announce_cleared);
  signal.fetch_add(1, std::memory_order_seq_cst);
  FAILPOINT(announce_signalled);
  futex_wake_all(&signal);
}

void mutex_init(SharedMutex& mutex);
// True when the previous holder died holding it: the caller must repair what the mutex guards, then call mutex_repaired.
// `process`: the caller's process slot. Throws ErrorCode::lock_timeout, naming `what` of `name` and who holds it, when not
// acquired within `timeout_ns`.
bool mutex_lock(SharedMutex& mutex, const Segments& segments, std::uint32_t process, std::uint64_t timeout_ns, const char* what, const char* name);
// The same without waiting. False: somebody holds it.
bool mutex_try(SharedMutex& mutex, std::uint32_t process, bool* orphaned);
void mutex_repaired(SharedMutex& mutex);
void mutex_unlock(SharedMutex& mutex);

inline constexpr std::uint64_t kLockTimeoutNs = 10'000'000'000ull;  // the lock is held for microseconds
#ifdef CONDUIT_FAILPOINTS
std::uint64_t lock_timeout_ns();
void set_lock_timeout(std::uint64_t ns);  // of this process
#else
constexpr std::uint64_t lock_timeout_ns() { return kLockTimeoutNs; }
#endif

}  // namespace conduit
