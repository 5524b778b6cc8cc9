#include "codec.hpp"

#include <dlfcn.h>
#include <string.h>

namespace conduit {
namespace {

// The library's function of that name; the last argument is only there for its type.
template <class F>
bool find(void* library, const char* name, F** function) {
  *function = reinterpret_cast<F*>(dlsym(library, name));
  return *function != nullptr;
}

// Both libraries have kept these functions as they are since 1.4 and 1.8 (2019, 2018).
class Lz4 final : public Codec {
 public:
  bool load() {
    void* library = dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != nullptr && find(library, "LZ4F_compressFrameBound", &bound_) && find(library, "LZ4F_compressFrame", &compress_) && find(library, "LZ4F_isError", &failed_) &&
           find(library, "LZ4F_createDecompressionContext", &create_) && find(library, "LZ4F_decompress", &decompress_) && find(library, "LZ4F_freeDecompressionContext", &free_);
  }
  std::size_t bound(std::size_t bytes) const override { return bound_(bytes, nullptr); }
  std::size_t pack(const std::byte* from, std::size_t bytes, std::byte* to, std::size_t room) const override {
    const std::size_t n = compress_(to, room, from, bytes, nullptr);
    return failed_(n) != 0 ? 0 : n;
  }
  bool unpack(const std::byte* from, std::size_t packed, std::byte* to, std::size_t bytes) const override {
    void* context = nullptr;
    if (failed_(create_(&context, kVersion)) != 0) return false;
    std::size_t made = 0, hint = 1;
    while (packed > 0 && hint != 0) {
      std::size_t room = bytes - made, taken = packed;
      hint = decompress_(context, to + made, &room, from, &taken, nullptr);
      if (failed_(hint) != 0 || (room == 0 && taken == 0)) break;
      made += room;
      from += taken;
      packed -= taken;
    }
    free_(context);
    return hint == 0 && packed == 0 && made == bytes;  // 0: the frame is whole
  }

 private:
  static constexpr unsigned kVersion = 100;  // LZ4F_VERSION
  std::size_t (*bound_)(std::size_t, const void*) = nullptr;
  std::size_t (*compress_)(void*, std::size_t, const void*, std::size_t, const void*) = nullptr;
  unsigned (*failed_)(std::size_t) = nullptr;
  std::size_t (*create_)(void**, unsigned) = nullptr;
  std::size_t (*decompress_)(void*, void*, std::size_t*, const void*, std::size_t*, const void*) = nullptr;
  std::size_t (*free_)(void*) = nullptr;
};

class Zstd final : public Codec {
 public:
  bool load() {
    void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != nullptr && find(library, "ZSTD_compressBound", &bound_) && find(library, "ZSTD_compress", &compress_) && find(library, "ZSTD_decompress", &decompress_) &&
           find(library, "ZSTD_isError", &failed_);
  }
  std::size_t bound(std::size_t bytes) const override { return bound_(bytes); }
  std::size_t pack(const std::byte* from, std::size_t bytes, std::byte* to, std::size_t room) const override {
    const std::size_t n = compress_(to, room, from, bytes, kLevel);
    return failed_(n) != 0 ? 0 : n;
  }
  bool unpack(const std::byte* from, std::size_t packed, std::byte* to, std::size_t bytes) const override { return decompress_(to, bytes, from, packed) == bytes; }

 private:
  static constexpr int kLevel = 1;
  std::size_t (*bound_)(std::size_t) = nullptr;
  std::size_t (*compress_)(void*, std::size_t, const void*, std::size_t, int) = nullptr;
  std::size_t (*decompress_)(void*, std::size_t, const void*, std::size_t) = nullptr;
  unsigned (*failed_)(std::size_t) = nullptr;
};

template <class C>
const Codec* loaded() {
  static const C* codec = []() -> const C* {
    auto* made = new C;
    if (made->load()) return made;
    delete made;
    return nullptr;
  }();
  return codec;
}

}  // namespace

const Codec* codec_of(const char* name) {
  if (strcmp(name, "lz4") == 0) return loaded<Lz4>();
  if (strcmp(name, "zstd") == 0) return loaded<Zstd>();
  return nullptr;
}

}  // namespace conduit
