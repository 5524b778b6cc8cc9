// conduit_harness [--rounds N] [--seed N] [--list] [SCENARIO...]
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "../sync.hpp"
#include "harness.hpp"

namespace conduit::harness {

void fatal(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputc('\n', stderr);
  _exit(1);  // other threads are still running: nothing of theirs may be torn down
}

void Crew::start(const char* role, std::function<void()> body) {
  threads_.emplace_back([role, body = std::move(body)] {
    try {
      body();
    } catch (const std::exception& error) {
      fatal("%s: %s", role, error.what());
    }
  });
}

void Crew::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void nap_us(std::uint32_t microseconds) {
  const timespec t{static_cast<time_t>(microseconds / 1'000'000), static_cast<long>(microseconds % 1'000'000) * 1000};
  nanosleep(&t, nullptr);
}

namespace {

constexpr unsigned kPatience = 600;  // seconds for one scenario and round: what takes longer hangs

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> all;
  for (const auto& part : {unit_scenarios(), stress_scenarios(), special_scenarios(), loader_scenarios(), queue_scenarios(), disk_scenarios(), recovery_scenarios()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::uint64_t number(const char* option, const char* text) {
  char* end = nullptr;
  const unsigned long long value = text == nullptr ? 0 : strtoull(text, &end, 10);
  if (text == nullptr || *text == 0 || *end != 0) fatal("%s needs a number, got '%s'", option, text == nullptr ? "" : text);
  return value;
}

// Nothing may leak up to here. What follows lets threads die, and a dead thread's memory is lost by design.
void check_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  if (__lsan_do_recoverable_leak_check() != 0) fatal("memory has leaked");
#endif
}

void run(const Scenario& scenario, const Options& options) {
  const std::uint64_t began = now_ns();
  alarm(kPatience * options.rounds);
  const std::string counts = scenario.run(options);
  alarm(0);
  std::printf("%-20s %6.1f s  %s\n", scenario.name, static_cast<double>(now_ns() - began) * 1e-9, counts.c_str());
  std::fflush(stdout);
}

int main_of(int argc, char** argv) {
  const std::vector<Scenario> all = all_scenarios();
  std::vector<Scenario> chosen;
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--rounds") == 0) {
      options.rounds = static_cast<std::uint32_t>(number(argv[i], argv[i + 1]));
      ++i;
    } else if (strcmp(argv[i], "--seed") == 0) {
      options.seed = number(argv[i], argv[i + 1]);
      ++i;
    } else if (strcmp(argv[i], "--list") == 0) {
      for (const Scenario& s : all) std::printf("%-20s %s\n", s.name, s.what);
      return 0;
    } else {
      bool found = false;
      for (const Scenario& s : all) {
        if (strcmp(argv[i], s.name) != 0) continue;
        chosen.push_back(s);
        found = true;
      }
      if (!found) fatal("unknown scenario or option '%s': --list shows the scenarios", argv[i]);
    }
  }
  bool deadly = false;
  for (const Scenario& s : chosen.empty() ? all : chosen) {
    if (s.deadly && !deadly) check_leaks();
    deadly = deadly || s.deadly;
    run(s, options);
  }
  if (deadly) _exit(0);  // without the check at exit, which would name each dead thread
  return 0;
}

}  // namespace
}  // namespace conduit::harness

int main(int argc, char** argv) {
  try {
    return conduit::harness::main_of(argc, argv);
  } catch (const std::exception& error) {
    conduit::harness::fatal("%s", error.what());
  }
}
