#include "categories.hpp"

#include <string.h>

#include <algorithm>

#include "failpoints.hpp"

namespace conduit {

bool Categories::add(std::uint64_t known, const std::vector<std::string>& values) const {
  std::uint64_t count = this->count();
  std::vector<std::string_view> added;
  for (const std::string& given : values) {
    bool there = std::find(added.begin(), added.end(), given) != added.end();
    for (std::uint64_t i = known; i < count && !there; ++i) there = value(i) == given;
    if (!there) added.push_back(given);
  }
  std::uint64_t bytes = 0;
  for (const std::string_view given : added) bytes += given.size();
  if (added.size() > header_->max_values - count || bytes > header_->max_bytes - ends_[count]) return false;
  for (const std::string_view given : added) {
    if (!given.empty()) memcpy(text() + ends_[count], given.data(), given.size());
    ends_[count + 1] = ends_[count] + given.size();
    FAILPOINT(category_written);
    header_->count.store(++count, std::memory_order_release);
  }
  FAILPOINT(category_added);
  return true;
}

}  // namespace conduit
