#include "process.hpp"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <vector>

#include "error.hpp"
#include "failpoints.hpp"
#include "pages.hpp"
#include "sync.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit * unit; }

std::uint64_t file_bytes(int fd, const char* what) {
  struct stat info;
  if (fstat(fd, &info) != 0) fail(ErrorCode::layout, "%s segment cannot be examined: %s", what, strerror(errno));
  return static_cast<std::uint64_t>(info.st_size);
}

std::byte* map_segment(int fd, std::uint64_t bytes, int protection, const char* what) {
  if (bytes == 0) return nullptr;
  void* at = map_shared(fd, bytes, protection);
  if (at == MAP_FAILED) {
    fail(ErrorCode::memory, "%s segment of %llu bytes cannot be mapped: %s", what,
         static_cast<unsigned long long>(bytes), strerror(errno));
  }
  return static_cast<std::byte*>(at);
}

// Every Process of this process, for the fork handler.
std::mutex registry_mutex;
std::vector<Process*> registry;

void register_fork_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { registry_mutex.lock(); }, [] { registry_mutex.unlock(); },
                   [] {
                     for (Process* p : registry) p->after_fork_in_child();
                     registry_mutex.unlock();
                   });
  });
}

}  // namespace

std::uint64_t control_fixed_bytes(std::uint32_t max_processes, std::uint32_t max_tables) {
  return round_up(sizeof(Header) + std::uint64_t{max_processes} * sizeof(ProcessSlot) +
                      std::uint64_t{max_tables} * sizeof(Table) + sizeof(SpanRing), kPage);
}

void format_control(int control_fd, std::uint64_t control_bytes, std::uint64_t data_bytes, std::uint32_t max_processes,
                    std::uint32_t max_tables, const std::string& name) {
  if (name.size() >= kNameBytes) fail(ErrorCode::config, "store name of %zu bytes is longer than %u", name.size(), kNameBytes - 1);
  const std::uint64_t fixed = control_fixed_bytes(max_processes, max_tables);
  std::byte* base = map_segment(control_fd, fixed, PROT_READ | PROT_WRITE, "control");
  auto& h = *reinterpret_cast<Header*>(base);
  h.layout_version = kLayoutVersion;
  h.fingerprint = fingerprint();
  h.max_processes = max_processes;
  h.max_tables = max_tables;
  h.control_bytes = control_bytes;
  h.data_bytes = data_bytes;
  memcpy(h.name, name.c_str(), name.size() + 1);
  h.created_ns = now_ns();
  mutex_init(h.directory);
  h.epoch.store(1);
  h.magic = kMagic;
  h.ready.store(1, std::memory_order_release);
  munmap(base, fixed);
}

std::shared_ptr<Segments> Segments::map(int control_fd, int data_fd, bool writable) {
  std::shared_ptr<Segments> s(new Segments);
  const std::uint64_t control_bytes = file_bytes(control_fd, "control");
  const std::uint64_t data_bytes = file_bytes(data_fd, "data");
  if (control_bytes < sizeof(Header)) {
    fail(ErrorCode::layout, "control segment of %llu bytes is no store: a header takes %zu",
         static_cast<unsigned long long>(control_bytes), sizeof(Header));
  }
  s->control_ = map_segment(control_fd, control_bytes, PROT_READ | PROT_WRITE, "control");
  s->control_bytes_ = control_bytes;
  const Header& h = s->header();
  if (h.ready.load(std::memory_order_acquire) != 1 || h.magic != kMagic) fail(ErrorCode::layout, "control segment is no store: magic number missing");
  if (h.layout_version != kLayoutVersion) {
    fail(ErrorCode::layout, "store '%.63s' has layout version %u, this build reads %u: use the same conduit-edp in every process",
         h.name, h.layout_version, kLayoutVersion);
  }
  if (h.fingerprint != fingerprint()) {
    fail(ErrorCode::layout, "store '%.63s' was made by a build with other structure sizes (fingerprint %llx, here %llx): use the same conduit-edp in every process",
         h.name, static_cast<unsigned long long>(h.fingerprint), static_cast<unsigned long long>(fingerprint()));
  }
  if (h.control_bytes > control_bytes || h.data_bytes > data_bytes ||
      control_fixed_bytes(h.max_processes, h.max_tables) > control_bytes) {
    fail(ErrorCode::layout, "store '%.63s' is cut short: segments of %llu and %llu bytes, header says %llu and %llu", h.name,
         static_cast<unsigned long long>(control_bytes), static_cast<unsigned long long>(data_bytes),
         static_cast<unsigned long long>(h.control_bytes), static_cast<unsigned long long>(h.data_bytes));
  }
  const std::string_view name(h.name, strnlen(h.name, kNameBytes));
  const bool readable = name.size() < kNameBytes && std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!readable || h.tables.load(std::memory_order_acquire) > h.max_tables || h.processes_used.load() > h.max_processes) {
    fail(ErrorCode::layout, "control segment is damaged: its header says %u of %u tables, %u of %u processes, or a name that is none",
         h.tables.load(), h.max_tables, h.processes_used.load(), h.max_processes);
  }
  s->data_ = map_segment(data_fd, data_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, "data");
  s->data_bytes_ = data_bytes;
  s->writable_ = writable;
  return s;
}

Segments::~Segments() {
  if (data_ != nullptr) munmap(data_, data_bytes_);
  if (control_ != nullptr) munmap(control_, control_bytes_);
}

ProcessSlot& Segments::process(std::uint32_t i) const {
  return reinterpret_cast<ProcessSlot*>(control_ + sizeof(Header))[i];
}

Table& Segments::table(std::uint32_t i) const {
  return reinterpret_cast<Table*>(control_ + sizeof(Header) + header().max_processes * sizeof(ProcessSlot))[i];
}

SpanRing& Segments::spans() const {
  const Header& h = header();
  return *control_at<SpanRing>(sizeof(Header) + h.max_processes * sizeof(ProcessSlot) + h.max_tables * sizeof(Table));
}

void Segments::populate(std::uint64_t offset, std::uint64_t bytes, bool join) const {
  if (join && writable_) join_pages(data_, offset, bytes);
  touch_pages(data_, data_bytes_, offset, bytes, writable_);
}

Process::Process(std::shared_ptr<Segments> segments, int control_fd) : segments_(std::move(segments)) {
  register_fork_handlers();
  control_fd_ = fcntl(control_fd, F_DUPFD_CLOEXEC, 0);
  if (control_fd_ < 0) fail(ErrorCode::memory, "control descriptor cannot be duplicated: %s", strerror(errno));
  try {
    claim_slot();
  } catch (...) {
    ::close(control_fd_);
    throw;
  }
  std::lock_guard guard(registry_mutex);
  registry.push_back(this);
}

Process::~Process() {
  {
    std::lock_guard guard(registry_mutex);
    registry.erase(std::find(registry.begin(), registry.end(), this));
  }
  if (!forked_.load()) {
    FAILPOINT(detach_begin);
    segments_->process(slot_).attached.store(0, std::memory_order_release);
  }
  if (lock_fd_ >= 0) ::close(lock_fd_);
  if (control_fd_ >= 0) ::close(control_fd_);
}

void Process::after_fork_in_child() {
  if (lock_fd_ >= 0) ::close(lock_fd_);  // else the parent would look alive for as long as this child
  lock_fd_ = -1;
  ++forks_;
  forked_.store(true);
}

void Process::check() {
  if (closed_.load(std::memory_order_relaxed)) {
    fail(ErrorCode::closed, "store '%.63s' is closed in this process: attach again", segments_->header().name);
  }
  // acquire: whoever sees the claim done also sees the slot that was claimed
  if (!forked_.load(std::memory_order_acquire)) return;
  std::lock_guard guard(registry_mutex);
  if (forked_.load()) claim_slot();
}

bool Process::lock_byte(std::uint32_t slot) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  return fcntl(lock_fd_, F_OFD_SETLK, &lock) == 0;
}

void Process::claim_slot() {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", control_fd_);
  lock_fd_ = open(path, O_RDWR | O_CLOEXEC);
  if (lock_fd_ < 0) fail(ErrorCode::platform, "control segment cannot be opened through %s: %s. Conduit needs /proc", path, strerror(errno));
  Header& h = segments_->header();
  for (std::uint32_t i = 0; i < h.max_processes; ++i) {
    if (!lock_byte(i)) {
      if (errno == EINVAL) fail(ErrorCode::platform, "this kernel has no open-file-description locks (F_OFD_SETLK): Linux 3.15 or later is needed");
      continue;
    }
    ProcessSlot& p = segments_->process(i);
    slot_ = i;
    claim_ = p.claim.fetch_add(1, std::memory_order_acq_rel) + 1;
    // acquire: pairs with the predecessor's orderly close. What it read under its epochs comes before the idle slots that we
    // show from now on, as it came before its own.
    p.attached.load(std::memory_order_acquire);
    FAILPOINT(attach_claimed);
    // The dead predecessor's epochs and pins end here; from now on they would be taken for ours.
    for (auto& reader : p.readers) reader.state.store(0, std::memory_order_release);
    for (auto& pin : p.pins) pin.store(0, std::memory_order_release);
    // release: a reclaimer may stop at these marks and look no further
    p.readers_used.store(0, std::memory_order_release);
    p.pins_used.store(0, std::memory_order_release);
    p.pid.store(static_cast<std::uint32_t>(getpid()), std::memory_order_relaxed);
    p.attached.store(1, std::memory_order_release);
    std::uint32_t used = h.processes_used.load();
    while (used < i + 1 && !h.processes_used.compare_exchange_weak(used, i + 1)) {
    }
    FAILPOINT(attach_cleaned);
    forked_.store(false);
    return;
  }
  ::close(lock_fd_);
  lock_fd_ = -1;
  fail(ErrorCode::busy, "store '%.63s' has no free process slot: all %u are held by live processes. Create it with a larger max_processes", h.name, h.max_processes);
}

bool Process::alive(std::uint32_t slot, std::uint32_t claim) const {
  if (segments_->process(slot).claim.load(std::memory_order_acquire) != claim) return false;
  if (slot == slot_ && claim == claim_) return true;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  if (fcntl(lock_fd_, F_OFD_GETLK, &lock) != 0) return true;  // cannot tell: never take from the living
  return lock.l_type != F_UNLCK;
}

std::unique_ptr<ReaderEpoch> Process::enter() { return std::make_unique<ReaderEpoch>(*segments_, slot_, entries_); }

std::uint32_t Process::pin(std::uint32_t table, std::uint32_t block) {
  ProcessSlot& p = segments_->process(slot_);
  const std::uint64_t value = std::uint64_t{table + 1} << 32 | block;
  for (std::uint32_t i = 0; i < kPinsPerProcess; ++i) {
    std::uint64_t empty = 0;
    if (!p.pins[i].compare_exchange_strong(empty, value, std::memory_order_acq_rel)) continue;
    std::uint32_t used = p.pins_used.load();
    while (used < i + 1 && !p.pins_used.compare_exchange_weak(used, i + 1)) {
    }
    return i;
  }
  fail(ErrorCode::busy, "this process already holds %u zero-copy views of blocks: drop some before taking more", kPinsPerProcess);
}

void Process::unpin(std::uint32_t entry, std::uint32_t forks) {
  if (forks != forks_) return;  // the parent's pin: only the parent gives it back
  // release: our reads through the view come before the reclaimer's acquire load of this entry
  segments_->process(slot_).pins[entry].store(0, std::memory_order_release);
  FAILPOINT(pin_released);
}

ReaderEpoch::ReaderEpoch(Segments& segments, std::uint32_t process, std::atomic<std::uint32_t>& entries) {
  ProcessSlot& p = segments.process(process);
  for (;;) {
    for (std::uint32_t i = 0; i < kReadersPerProcess; ++i) {
      std::uint64_t idle = 0;
      if (p.readers[i].state.load(std::memory_order_relaxed) != 0) continue;
      const std::uint64_t entry = entries.fetch_add(1, std::memory_order_relaxed) % 0xfffffe + 1;
      // The epoch may be stale by the time it is stored: a smaller one only makes the reclaimer wait longer.
      const std::uint64_t epoch = segments.header().epoch.load(std::memory_order_acquire) & kEpochMask;
      state_ = entry << kEpochBits | epoch;
      if (!p.readers[i].state.compare_exchange_strong(idle, state_, std::memory_order_acq_rel)) continue;
      std::uint32_t used = p.readers_used.load();
      while (used < i + 1 && !p.readers_used.compare_exchange_weak(used, i + 1)) {
      }
      slot_ = &p.readers[i];
      FAILPOINT(reader_entered);
      return;
    }
    const timespec nap{0, 50'000};  // every reader slot of this process is busy: threads wait their turn
    nanosleep(&nap, nullptr);
  }
}

bool ReaderEpoch::progress() {
  if (!valid_) return false;
  const std::uint64_t entry = (state_ >> kEpochBits) % 0xfffffe + 1;
  const std::uint64_t next = entry << kEpochBits | (state_ & kEpochMask);
  std::uint64_t expected = state_;
  valid_ = slot_->state.compare_exchange_strong(expected, next, std::memory_order_acq_rel);
  if (valid_) state_ = next;
  return valid_;
}

bool ReaderEpoch::leave() {
  if (slot_ == nullptr) return valid_;
  std::uint64_t expected = state_;
  // release: every copy made under this epoch is complete before the reclaimer sees the slot idle
  if (!slot_->state.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) {
    valid_ = false;
    slot_->state.store(0, std::memory_order_release);
  }
  slot_ = nullptr;
  FAILPOINT(reader_left);
  return valid_;
}

}  // namespace conduit
