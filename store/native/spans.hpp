// Spans: what took how long, in which process and thread, for people to look at. A ring that all processes share.
//
// Leaving one takes tens of nanoseconds and no lock: a ticket from `head`, then four words. An entry is whole when its first
// word carries its ticket and the check sum of the rest; one that is being written, was left half-written by a killed process, or
// has words of two writers of which one was a whole round behind, is not, and readers skip it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "layout.hpp"

namespace conduit {

class Process;

enum class Stage : std::uint8_t { extend = 1, draw, gather, prepare, wait, handover, update, evict };

struct Span {
  std::uint64_t began_ns, duration_ns;
  std::uint32_t thread, rows;
  std::uint16_t process, table;
  Stage stage;
  bool behind;  // while the caller computed
};

// The calling thread prepares ahead for another: its spans say so while this lives.
class Behind {
 public:
  Behind();
  ~Behind();
  Behind(const Behind&) = delete;
  Behind& operator=(const Behind&) = delete;

 private:
  bool before_;
};

void leave_span(const Process& process, Stage stage, std::uint32_t table, std::uint64_t rows, std::uint64_t began_ns, std::uint64_t ended_ns);
// All whole entries that ended at `since_ns` or later, in the order of their tickets.
std::vector<Span> read_spans(const SpanRing& ring, std::uint64_t since_ns);

}  // namespace conduit
