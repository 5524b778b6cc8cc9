// One process's attachment to a store: the mapped segments, its process slot, its reader epochs, its pins.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "layout.hpp"

namespace conduit {

// The two segments as mapped here. Shared by every handle and view; unmapped with the last of them.
class Segments {
 public:
  // Checks magic, version, fingerprint and sizes before anything else is believed (throws ErrorCode::layout).
  static std::shared_ptr<Segments> map(int control_fd, int data_fd, bool writable);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  Header& header() const { return *reinterpret_cast<Header*>(control_); }
  ProcessSlot& process(std::uint32_t i) const;
  Table& table(std::uint32_t i) const;
  SpanRing& spans() const;
  template <class T>
  T* control_at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(control_ + offset);
  }
  std::byte* data() const { return data_; }
  bool writable() const { return writable_; }
  // Touches [offset, offset + bytes) of the data segment so that later accesses do not fault; `join`: and puts it into huge
  // pages, see pages.hpp. Blocks; needs no GIL.
  void populate(std::uint64_t offset, std::uint64_t bytes, bool join) const;

 private:
  Segments() = default;
  std::byte* control_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t control_bytes_ = 0, data_bytes_ = 0;
  bool writable_ = false;
};

std::uint64_t control_fixed_bytes(std::uint32_t max_processes, std::uint32_t max_tables);
// Writes the header of an empty store into a zeroed control segment whose fixed part is already backed by memory.
void format_control(int control_fd, std::uint64_t control_bytes, std::uint64_t data_bytes, std::uint32_t max_processes,
                    std::uint32_t max_tables, const std::string& name);

// A reader's stay in an epoch. Between enter and leave no block that was live at the draw is reused, unless the reader
// was expelled, which `progress` and `leave` report as false: what was copied must then be thrown away.
class ReaderEpoch {
 public:
  ReaderEpoch(Segments& segments, std::uint32_t process, std::atomic<std::uint32_t>& entries);
  ~ReaderEpoch() { leave(); }
  ReaderEpoch(const ReaderEpoch&) = delete;
  ReaderEpoch& operator=(const ReaderEpoch&) = delete;
  bool progress();
  // Whether the reader has not been expelled so far: a hint, for it may be at any time. One relaxed load.
  bool held() const { return valid_ && slot_->state.load(std::memory_order_relaxed) == state_; }
  bool leave();

 private:
  ReaderSlot* slot_ = nullptr;
  std::uint64_t state_ = 0;
  bool valid_ = true;
};

class Process {
 public:
  Process(std::shared_ptr<Segments> segments, int control_fd);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Throws ErrorCode::closed after close(). In a forked child the first call claims a process slot of the child's own.
  void check();
  void close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }

  Segments& segments() const { return *segments_; }
  std::uint32_t slot() const { return slot_; }
  std::uint32_t claim() const { return claim_; }
  // Bumped in every forked child: a handle that remembers another value belongs to the parent and is inert.
  std::uint32_t forks() const { return forks_; }
  // In a forked child that has not claimed a process slot yet: slot and claim are the parent's.
  bool inherited() const { return forked_.load(); }

  // Whether the process that took `slot` at `claim` still lives. One system call.
  bool alive(std::uint32_t slot, std::uint32_t claim) const;
  std::unique_ptr<ReaderEpoch> enter();

  // Pins block `block` of table `table`; the caller holds the table's index lock and has seen the block live.
  // Returns the ledger index; throws ErrorCode::busy when the ledger is full.
  std::uint32_t pin(std::uint32_t table, std::uint32_t block);
  void unpin(std::uint32_t entry, std::uint32_t forks);

  void after_fork_in_child();  // async-signal-safe

 private:
  void claim_slot();
  bool lock_byte(std::uint32_t slot);

  std::shared_ptr<Segments> segments_;
  int control_fd_ = -1;
  int lock_fd_ = -1;  // an open file description of our own: its lock dies with us
  std::uint32_t slot_ = 0, claim_ = 0, forks_ = 0;
  std::atomic<bool> closed_{false};
  std::atomic<bool> forked_{false};
  std::atomic<std::uint32_t> entries_{1};
};

}  // namespace conduit
