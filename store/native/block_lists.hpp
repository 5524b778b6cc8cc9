// Every block of a table is in one of three lists: open (in order of birth, which is the order of eviction), retired (in order
// of retirement) or free. They are chained by two numbers a block, so that a block leaves from the middle of a list as fast
// as from its ends. Derived from the blocks' states. Under the index lock.
#pragma once

#include <cstdint>

#include "layout.hpp"

namespace conduit {

class BlockLinks {
 public:
  BlockLinks() = default;
  explicit BlockLinks(BlockLink* links) : links_(links) {}

  std::uint32_t after(std::uint32_t block) const { return links_[block].after; }
  std::uint32_t before(std::uint32_t block) const { return links_[block].before; }
  void push(BlockList& list, std::uint32_t block) const {
    links_[block] = {list.last, kNoRow};
    (list.last == kNoRow ? list.first : links_[list.last].after) = block;
    list.last = block;
    ++list.count;
  }
  void remove(BlockList& list, std::uint32_t block) const {
    const BlockLink link = links_[block];
    (link.before == kNoRow ? list.first : links_[link.before].after) = link.after;
    (link.after == kNoRow ? list.last : links_[link.after].before) = link.before;
    --list.count;
  }

 private:
  BlockLink* links_ = nullptr;
};

}  // namespace conduit
