// The distinct values of one column of categories, numbered in the order in which they were first seen: rows hold the numbers.
//
//   | count | max_values | max_bytes | .. 64 | uint64 ends[max_values + 1] | text |
//
// Value i is the bytes [ends[i], ends[i + 1]) of the text. Values are only ever added, under the table's index lock: text and
// end first, `count` last (release). So a number means the same in every process for as long as the table lives, and whoever has
// loaded `count` (acquire) looks at the values below it without a lock. A row's number is published after its value.
// Ground truth. Crash: a value beyond `count` is nobody's, and the next one is written over it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace conduit {

// In the control segment, at Column::categories.
struct alignas(64) CategoryHeader {
  std::atomic<std::uint64_t> count;
  std::uint64_t max_values, max_bytes;
};
static_assert(sizeof(CategoryHeader) == 64);

class Categories {
 public:
  explicit Categories(std::byte* at) : header_(reinterpret_cast<CategoryHeader*>(at)), ends_(reinterpret_cast<std::uint64_t*>(at + sizeof(CategoryHeader))) {}

  static std::uint64_t bytes(std::uint64_t max_values, std::uint64_t max_bytes) {
    return (sizeof(CategoryHeader) + (max_values + 1) * sizeof(std::uint64_t) + max_bytes + 63) / 64 * 64;
  }
  // Formats memory that is all zeros.
  void create(std::uint64_t max_values, std::uint64_t max_bytes) const {
    header_->max_values = max_values;
    header_->max_bytes = max_bytes;
  }

  std::uint64_t count() const { return header_->count.load(std::memory_order_acquire); }
  std::uint64_t text_bytes(std::uint64_t count) const { return ends_[count]; }
  std::string_view value(std::uint64_t number) const { return {text() + ends_[number], ends_[number + 1] - ends_[number]}; }

  // Adds those of `values` that are not among the values from number `known` on; the caller has looked at those before. All or,
  // where they find no room, none: false. Under the index lock.
  bool add(std::uint64_t known, const std::vector<std::string>& values) const;

 private:
  char* text() const { return reinterpret_cast<char*>(ends_ + header_->max_values + 1); }

  CategoryHeader* header_;
  std::uint64_t* ends_;
};

}  // namespace conduit
