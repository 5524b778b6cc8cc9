#include "spans.hpp"

#include <unistd.h>

#include <algorithm>

#include "process.hpp"

namespace conduit {
namespace {

struct Me {
  std::uint32_t thread = 0;  // as the kernel numbers it; 0 = not asked yet
  bool behind = false;
};
constinit thread_local Me me;

// word[0] = ticket + 1 (40 bits) << 24 | check (16) << 8 | behind (1) << 7 | stage (7)
// word[1] = began    word[2] = process (16) << 48 | duration (48)    word[3] = table (8) << 56 | thread (24) << 32 | rows (32)
constexpr std::uint64_t kTicketMask = (std::uint64_t{1} << 40) - 1;
constexpr std::uint64_t kDurationMask = (std::uint64_t{1} << 48) - 1;

std::uint64_t check_of(std::uint64_t head, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t h = head * 0x9e3779b97f4a7c15;
  h = (h ^ a ^ h >> 29) * 0xbf58476d1ce4e5b9;
  h = (h ^ b ^ h >> 32) * 0x94d049bb133111eb;
  h = (h ^ c ^ h >> 31) * 0x9e3779b97f4a7c15;
  return h >> 48;
}

}  // namespace

Behind::Behind() : before_(me.behind) { me.behind = true; }
Behind::~Behind() { me.behind = before_; }

void leave_span(const Process& process, Stage stage, std::uint32_t table, std::uint64_t rows, std::uint64_t began_ns, std::uint64_t ended_ns) {
  SpanRing& ring = process.segments().spans();
  Me& who = me;
  if (who.thread == 0) who.thread = static_cast<std::uint32_t>(gettid());
  const std::uint64_t ticket = ring.head.fetch_add(1, std::memory_order_relaxed);
  auto& word = ring.entries[ticket % kSpans].word;
  const std::uint64_t duration = std::min(ended_ns - std::min(began_ns, ended_ns), kDurationMask);
  const std::uint64_t w2 = std::uint64_t{process.slot() & 0xffffu} << 48 | duration;
  const std::uint64_t w3 = std::uint64_t{table & 0xffu} << 56 | std::uint64_t{who.thread & 0xffffffu} << 32 | std::min<std::uint64_t>(rows, 0xffffffffu);
  const std::uint64_t head = ((ticket + 1) & kTicketMask) << 24 | (who.behind ? 1u << 7 : 0u) | static_cast<std::uint64_t>(stage);
  __builtin_prefetch(&ring.entries[(ticket + 4) % kSpans], 1);  // whose turn comes soon
  word[0].store(0, std::memory_order_relaxed);
  // release fence: a reader that sees a word of this entry below also sees the zero above, or what came after it
  std::atomic_thread_fence(std::memory_order_release);
  word[1].store(began_ns, std::memory_order_relaxed);
  word[2].store(w2, std::memory_order_relaxed);
  word[3].store(w3, std::memory_order_relaxed);
  word[0].store(head | check_of(head, began_ns, w2, w3) << 8, std::memory_order_release);
}

std::vector<Span> read_spans(const SpanRing& ring, std::uint64_t since_ns) {
  std::vector<Span> spans;
  const std::uint64_t end = ring.head.load(std::memory_order_acquire);
  for (std::uint64_t ticket = end - std::min<std::uint64_t>(end, kSpans); ticket < end; ++ticket) {
    const auto& word = ring.entries[ticket % kSpans].word;
    const std::uint64_t w0 = word[0].load(std::memory_order_acquire);
    const std::uint64_t w1 = word[1].load(std::memory_order_relaxed), w2 = word[2].load(std::memory_order_relaxed);
    const std::uint64_t w3 = word[3].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the writer's fence
    const std::uint64_t head = w0 & ~(std::uint64_t{0xffff} << 8);
    if (word[0].load(std::memory_order_relaxed) != w0 || w0 >> 24 != ((ticket + 1) & kTicketMask) || (w0 >> 8 & 0xffff) != check_of(head, w1, w2, w3)) continue;
    const std::uint64_t duration = w2 & kDurationMask;
    if (w1 + duration < since_ns) continue;
    spans.push_back({w1, duration, static_cast<std::uint32_t>(w3 >> 32 & 0xffffff), static_cast<std::uint32_t>(w3), static_cast<std::uint16_t>(w2 >> 48),
                     static_cast<std::uint16_t>(w3 >> 56), static_cast<Stage>(w0 & 0x7f), (w0 >> 7 & 1) != 0});
  }
  return spans;
}

}  // namespace conduit
