// In-process stress harness of the core, for sanitizers: threads play processes. Each has a Process of its own (process
// slot, OFD lock, pins, epochs), all over one mapping, so that a sanitizer sees one address for one byte.
// Scenarios are bounded in operations. The first failed check ends the harness with status 1.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace conduit::harness {

struct Options {
  std::uint32_t rounds = 1;  // multiplies the operations of every scenario
  std::uint64_t seed = 1;
};

struct Scenario {
  const char* name;
  const char* what;
  std::string (*run)(const Options& options);  // returns a line of counts
  bool deadly = false;  // threads of it die and leave behind what they held
};

std::vector<Scenario> unit_scenarios();
std::vector<Scenario> stress_scenarios();
std::vector<Scenario> special_scenarios();
std::vector<Scenario> loader_scenarios();
std::vector<Scenario> queue_scenarios();
std::vector<Scenario> disk_scenarios();
std::vector<Scenario> recovery_scenarios();

[[noreturn, gnu::format(printf, 1, 2)]] void fatal(const char* format, ...);

#define EXPECT(holds, ...)                                                          \
  do {                                                                              \
    if (!(holds)) {                                                                 \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #holds);     \
      ::conduit::harness::fatal(__VA_ARGS__);                                       \
    }                                                                               \
  } while (false)

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// SplitMix64: G. L. Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint64_t bits() { return mix(state_ += 0x9e3779b97f4a7c15); }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(bits() % n); }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// Threads of one scenario; joins them all. An exception in one of them is a failed check.
class Crew {
 public:
  ~Crew() { join(); }
  void start(const char* role, std::function<void()> body);
  void join();

 private:
  std::vector<std::thread> threads_;
};

void nap_us(std::uint32_t microseconds);

}  // namespace conduit::harness
