// Buffers that batches are gathered into, reused so that a batch does not page-fault its own output.
//
// A buffer goes back to the pool when the last array made from it has died; it is never handed out while one lives.
// Everything here runs with the interpreter's lock held, which is what guards the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <new>
#include <vector>

namespace conduit {

class StagingPool {
 public:
  static constexpr std::size_t kUnit = 4096;
  static constexpr std::size_t kKeepBytes = std::size_t{512} << 20;

  static std::size_t rounded(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit + kUnit * (bytes == 0); }

  std::byte* take(std::size_t bytes) {
    bytes = rounded(bytes);
    auto& free = free_[bytes];
    if (!free.empty()) {
      std::byte* at = free.back();
      free.pop_back();
      kept_ -= bytes;
      return at;
    }
    void* at = std::aligned_alloc(kUnit, bytes);
    if (at == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(at);
  }

  void give(std::byte* at, std::size_t bytes) {
    bytes = rounded(bytes);
    if (kept_ + bytes > kKeepBytes) return std::free(at);
    free_[bytes].push_back(at);
    kept_ += bytes;
  }

  std::size_t kept() const { return kept_; }

 private:
  std::map<std::size_t, std::vector<std::byte*>> free_;
  std::size_t kept_ = 0;
};

inline StagingPool& staging_pool() {
  static auto* pool = new StagingPool;  // never destroyed: arrays may outlive static destruction
  return *pool;
}

// One buffer in use; Python arrays are views of it and keep it alive.
class Staging {
 public:
  explicit Staging(std::size_t bytes) : bytes_(bytes), at_(staging_pool().take(bytes)) {}
  ~Staging() { staging_pool().give(at_, bytes_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  std::byte* data() const { return at_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::byte* at_;
};

}  // namespace conduit
