// One store in two memfds made here, mapped once, and the processes attached to it.
#pragma once

#include <memory>
#include <string>

#include "../sampler.hpp"
#include "../table.hpp"
#include "../writer.hpp"
#include "harness.hpp"

namespace conduit::harness {

class World {
 public:
  explicit World(std::uint64_t control_bytes = 4 << 20, std::uint64_t data_bytes = 8 << 20, std::uint32_t processes = 32);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::shared_ptr<Process> attach() const;
  std::uint32_t create(Process& process, const TableSpec& spec) const { return TableCore::create(process, control_fd_, data_fd_, spec); }

 private:
  int control_fd_, data_fd_;
  std::shared_ptr<Segments> segments_;
};

// Ends `process` as a kill would, but for its threads: its lock goes, its slot is left as it is (epochs, pins, open
// blocks), and its handles become inert. What a forked child does with the handles it inherits is just that.
inline void die(Process& process) {
  // The kernel's lock orders the dead before whoever takes its slot next; a sanitizer sees only atomics.
  process.segments().process(process.slot()).claim.fetch_add(0, std::memory_order_release);
  process.after_fork_in_child();
}

// Puts these in force, whatever others change meanwhile.
void reconfigure(TableCore& table, double alpha, double beta, double eps);

// Fatal, naming what disagrees, unless the table agrees with its re-computation.
void expect_consistent(TableCore& table, const char* when);

}  // namespace conduit::harness
