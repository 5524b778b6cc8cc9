#include "failpoints.hpp"

#ifdef CONDUIT_FAILPOINTS

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

namespace conduit {
namespace {

constexpr int kCount = static_cast<int>(Failpoint::count);
constexpr const char* kNames[kCount] = {
#define X(name) #name,
    CONDUIT_FAILPOINT_LIST(X)
#undef X
};

struct Point {
  std::atomic<long> hits{0};
  std::atomic<long> countdown{0};
  std::atomic<int> action{0};
};
Point points[kCount];
std::atomic<bool> resumed{true};
thread_local bool mortal_thread = false;

int index_of(const std::string& name) {
  for (int i = 0; i < kCount; ++i) {
    if (name == kNames[i]) return i;
  }
  throw std::invalid_argument("unknown failpoint '" + name + "'");
}

}  // namespace

bool failpoint_hit(Failpoint point) {
  Point& p = points[static_cast<int>(point)];
  p.hits.fetch_add(1, std::memory_order_relaxed);
  const int action = p.action.load(std::memory_order_relaxed);
  if (static_cast<FailAction>(action) == FailAction::exit_thread && !mortal_thread) return false;
  if (action == 0 || p.countdown.fetch_sub(1, std::memory_order_relaxed) != 1) return false;
  p.action.store(0, std::memory_order_relaxed);
  switch (static_cast<FailAction>(action)) {
    case FailAction::kill: kill(getpid(), SIGKILL); break;
    case FailAction::stop: kill(getpid(), SIGSTOP); break;
    case FailAction::pause: {
      const timespec nap{0, 200'000};
      while (!resumed.load()) nanosleep(&nap, nullptr);
      break;
    }
    case FailAction::exit_thread: syscall(SYS_exit, 0); break;
    case FailAction::fail: return true;
    case FailAction::none: break;
  }
  return false;
}

void failpoint_arm(const std::string& name, FailAction action, long nth) {
  Point& p = points[index_of(name)];
  if (action == FailAction::pause) resumed = false;
  p.countdown = nth;
  p.action = static_cast<int>(action);
}

void failpoint_resume() { resumed = true; }

void failpoint_mortal(bool mortal) { mortal_thread = mortal; }

long failpoint_hits(const std::string& name) { return points[index_of(name)].hits.load(); }

std::vector<std::string> failpoint_names() { return {kNames, kNames + kCount}; }

}  // namespace conduit

#endif
