// Buffers that batches are gathered into, reused so that a batch does not page-fault its own output.
//
// A buffer goes back to its pool when the last array made from it has died; it is never handed out while one lives.
// Safe in any thread, with or without the interpreter's lock.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace conduit {

class StagingPool {
 public:
  static constexpr std::size_t kUnit = 4096;
  static constexpr std::size_t kKeepBytes = std::size_t{512} << 20;
  // Called without the pool's mutex, once a buffer each: after it was allocated (may throw), before it is freed (may not).
  using Hook = std::function<void(std::byte* at, std::size_t bytes)>;

  StagingPool() = default;
  StagingPool(Hook pin, Hook unpin) : pin_(std::move(pin)), unpin_(std::move(unpin)) {}
  ~StagingPool() {
    for (auto& [bytes, buffers] : free_) {
      for (std::byte* at : buffers) release(at, bytes);
    }
  }
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  static std::size_t rounded(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit + kUnit * (bytes == 0); }

  std::byte* take(std::size_t bytes) {
    bytes = rounded(bytes);
    {
      std::lock_guard guard(mutex_);
      auto& free = free_[bytes];
      if (!free.empty()) {
        std::byte* at = free.back();
        free.pop_back();
        kept_ -= bytes;
        return at;
      }
    }
    auto* at = static_cast<std::byte*>(std::aligned_alloc(kUnit, bytes));
    if (at == nullptr) throw std::bad_alloc();
    try {
      if (pin_) pin_(at, bytes);
    } catch (...) {
      std::free(at);
      throw;
    }
    return at;
  }

  void give(std::byte* at, std::size_t bytes) {
    bytes = rounded(bytes);
    {
      std::lock_guard guard(mutex_);
      if (kept_ + bytes <= kKeepBytes) {
        free_[bytes].push_back(at);
        kept_ += bytes;
        return;
      }
    }
    release(at, bytes);
  }

  std::size_t kept() {
    std::lock_guard guard(mutex_);
    return kept_;
  }

  std::mutex& mutex() { return mutex_; }

 private:
  void release(std::byte* at, std::size_t bytes) {
    if (unpin_) unpin_(at, bytes);
    std::free(at);
  }

  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
  std::size_t kept_ = 0;
  Hook pin_, unpin_;
};

// The process's own pool of ordinary memory. A thread may hold its mutex when another forks: the child gets it free.
inline const std::shared_ptr<StagingPool>& staging_pool() {
  static auto* pool = [] {  // never destroyed: arrays may outlive static destruction
    auto* made = new std::shared_ptr<StagingPool>(std::make_shared<StagingPool>());
    static StagingPool* at = made->get();
    pthread_atfork([] { at->mutex().lock(); }, [] { at->mutex().unlock(); }, [] { at->mutex().unlock(); });
    return made;
  }();
  return *pool;
}

// Sizes that differ from batch to batch are rounded up to one of eight for each power of two, so that buffers are of use again.
inline std::size_t staging_class(std::size_t bytes) {
  const std::size_t unit = std::max(StagingPool::kUnit, std::bit_floor(std::max<std::size_t>(bytes, 1)) / 8);
  return (bytes + unit - 1) / unit * unit;
}

// One buffer in use; Python arrays are views of it and keep it alive. Tensors share it without Python's knowledge, and so let go
// of it without the interpreter's lock: hence shared_from_this, by which the bindings find its owners.
class Staging : public std::enable_shared_from_this<Staging> {
 public:
  explicit Staging(std::size_t bytes, std::shared_ptr<StagingPool> pool = staging_pool())
      : pool_(std::move(pool)), bytes_(bytes), at_(pool_->take(bytes)) {}
  ~Staging() { pool_->give(at_, bytes_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  std::byte* data() const { return at_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<StagingPool> pool_;
  std::size_t bytes_;
  std::byte* at_;
};

// Where a batch goes: a buffer that is taken when its size is known, unless there is one that is large enough.
struct Target {
  std::shared_ptr<StagingPool> pool = staging_pool();
  std::shared_ptr<Staging> staging;

  std::byte* room(std::size_t bytes) {
    if (staging == nullptr || staging->bytes() < bytes) {
      staging = nullptr;
      staging = std::make_shared<Staging>(bytes, pool);
    }
    return staging->data();
  }
};

}  // namespace conduit
