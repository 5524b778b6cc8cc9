// Rows of a queue by the value of a column: which groups are complete, and in which order they became so.
//
// The index is this process's own, made from the rows that wait for one consumer group. What is shared is the truth of each
// row: its delivery word and its stamp. In the order of the stamps the k-th G rows of a value are a group, for every process
// alike. Rows that others take are noticed when they are asked for; when rows have come back, all is made anew.
// Used only under the table's index lock.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "queue.hpp"

namespace conduit {

class GroupIndex {
 public:
  GroupIndex(TableCore& table, std::uint32_t group, std::uint32_t column, std::uint32_t size);

  struct Incomplete {
    std::string value;  // the column's bytes
    std::uint64_t rows, since_ns;
  };

  std::uint32_t size() const { return size_; }
  // Complete groups in order of completion, as many whole ones as fit. Groups with a row that is too stale are dropped.
  Found collect(const Demand& demand);
  std::vector<Incomplete> incomplete();
  // Slots of the rows of incomplete groups whose first row is older.
  std::vector<std::uint32_t> older_than(std::uint64_t stamp);
  std::uint64_t complete() const { return ready_.size(); }

 private:
  using Keys = std::vector<std::uint64_t>;
  enum class Standing { waits, gone, mixed };

  void refresh();
  void rebuild();
  void read(std::vector<std::uint32_t> slots);
  Standing standing(const Keys& keys, std::vector<std::uint32_t>* slots) const;

  TableCore& table_;
  QueueIndex& queue_;
  std::uint32_t group_, column_, size_;
  std::uint64_t row_bytes_;
  std::uint64_t returns_;
  bool anew_ = true;
  struct Seen {
    std::uint64_t generation = 0;
    std::uint32_t rows = 0;
  };
  std::vector<Seen> seen_;  // of each block
  std::unordered_map<std::string, Keys> partial_;
  std::deque<Keys> ready_;
};

}  // namespace conduit
