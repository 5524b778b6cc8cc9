#include "disk_file.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "failpoints.hpp"

namespace conduit {

thread_local ReadGuard read_guard __attribute__((tls_model("initial-exec")));

namespace {

constexpr std::uint64_t kPage = 4096;
std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit * unit; }

struct sigaction previous;  // what handled SIGBUS before us

// A page of a mapped file that the disk does not give, or that was cut off, is SIGBUS for who touches it.
void on_sigbus(int signal_number, siginfo_t* info, void* context) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  if (read_guard.active && at >= read_guard.begin && at < read_guard.end) {
    read_guard.active = false;
    siglongjmp(read_guard.back, 1);
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) return previous.sa_sigaction(signal_number, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal_number);
  signal(SIGBUS, SIG_DFL);  // and the access, made again, ends the process
}

// Ours, in front of whatever is there now.
void handle_sigbus() {
  static std::mutex once;
  const std::lock_guard lock(once);
  struct sigaction now;
  sigaction(SIGBUS, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_sigbus) return;
  previous = now;
  struct sigaction ours = {};
  ours.sa_sigaction = on_sigbus;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

int write_all(int fd, iovec* parts, int n, std::uint64_t at) {
  while (n > 0) {
    const ssize_t put = pwritev(fd, parts, n, static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    if (put == 0) return ENOSPC;
    at += static_cast<std::uint64_t>(put);
    for (auto left = static_cast<std::size_t>(put); left > 0;) {
      const std::size_t step = std::min(left, parts->iov_len);
      parts->iov_base = static_cast<char*>(parts->iov_base) + step;
      parts->iov_len -= step;
      left -= step;
      if (parts->iov_len == 0) ++parts, --n;
    }
    while (n > 0 && parts->iov_len == 0) ++parts, --n;
  }
  return 0;
}

// What a slot needs beyond a block's bytes and its message, if none of its buffers becomes smaller.
std::uint64_t packed_spare(const std::optional<Packing>& packing) { return packing ? packing->message.text.size() + packing->buffers.size() * 16 : 0; }

}  // namespace

Packing::Packing(const Codec* codec_, BlockMessage message_) : codec(codec_), message(std::move(message_)) {
  for (const BlockMessage::Number& number : message.numbers) {
    if (number.what == BlockMessage::rows && rows_at == 0) rows_at = number.at;
    if (number.what == BlockMessage::bytes) bytes_at = number.at;
    if (number.what == BlockMessage::offset) buffers.emplace_back(number.at, 0);
    if (number.what == BlockMessage::length && !buffers.empty()) buffers.back().second = number.at;
  }
  if (rows_at == 0 || bytes_at == 0 || buffers.empty()) fail(ErrorCode::config, "the message of a compressed block lacks its numbers");
}

DiskFile::DiskFile(int fd, std::string path, const std::vector<std::byte>& head, BlockMessage message, std::optional<Packing> packing, std::uint64_t block_bytes, std::uint32_t n_blocks,
                   bool writes)
    : fd_(fd), pid_(getpid()), path_(std::move(path)), message_(std::move(message)), packing_(std::move(packing)), block_bytes_(block_bytes), head_bytes_(round_up(std::max<std::size_t>(head.size(), 1), kPage)),
      slot_bytes_(round_up(std::max(message_.text.size(), packed_spare(packing_)) + block_bytes, kPage)), bytes_(slot_at(n_blocks)) {
  const auto failed = [&](const char* what) {
    const int reason = errno;
    close(fd_);
    fail(ErrorCode::disk, "file %s of %llu bytes cannot be %s: %s", path_.c_str(), static_cast<unsigned long long>(bytes_), what, strerror(reason));
  };
  struct stat status;
  if (fstat(fd_, &status) != 0) failed("opened");
  if (static_cast<std::uint64_t>(status.st_size) < bytes_) {  // every process writes the same
    iovec part{const_cast<std::byte*>(head.data()), head.size()};
    if ((errno = write_all(fd_, &part, 1, 0)) != 0) failed("written");
    if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) failed("made as long");
  }
  void* at = mmap(nullptr, bytes_, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) failed("mapped");
  map_ = static_cast<std::byte*>(at);
  madvise(map_, bytes_, MADV_RANDOM);  // rows are drawn from anywhere: what goes with them is asked for by `ahead`
  handle_sigbus();
}

DiskFile::~DiskFile() {
  munmap(map_, bytes_);
  // A forked child shares our lock: it must neither take it nor remove what its parent uses.
  if (pid_ == getpid() && flock(fd_, LOCK_EX | LOCK_NB) == 0) unlink(path_.c_str());
  close(fd_);
}

int DiskFile::write(std::uint32_t block, const std::vector<std::byte>& message, const std::byte* bytes) const {
  iovec parts[] = {{const_cast<std::byte*>(message.data()), message.size()}, {const_cast<std::byte*>(bytes), block_bytes_}};
  return write_all(fd_, parts, bytes == nullptr ? 1 : 2, slot_at(block));
}

int DiskFile::reserve(std::uint32_t block, std::uint32_t blocks) const {
  int error;
  while ((error = posix_fallocate(fd_, static_cast<off_t>(slot_at(block)), static_cast<off_t>(blocks * slot_bytes_))) == EINTR) {
  }
  return error;
}

int DiskFile::read(std::uint32_t block, std::uint32_t blocks, std::byte* bytes) const {
  return read_at(body_at(block), bytes, blocks * block_bytes_);
}

int DiskFile::read_slot(std::uint32_t block, std::uint64_t at, std::byte* to, std::uint64_t bytes) const { return read_at(slot_at(block) + at, to, bytes); }

int DiskFile::write_packed(std::uint32_t block, const std::vector<std::byte>& message, const std::byte* body, std::uint64_t bytes) const {
  iovec parts[] = {{const_cast<std::byte*>(message.data()), message.size()}, {const_cast<std::byte*>(body), bytes}};
  const int error = write_all(fd_, parts, 2, slot_at(block));
  const std::uint64_t end = round_up(message.size() + bytes, kPage);
  // A file system that cannot give it back keeps it: nothing else depends on that.
  if (error == 0 && end < slot_bytes_) (void)!fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(slot_at(block) + end), static_cast<off_t>(slot_bytes_ - end));
  return error;
}

void DiskFile::slot_ahead(std::uint32_t block) const { posix_fadvise(fd_, static_cast<off_t>(slot_at(block)), static_cast<off_t>(slot_bytes_), POSIX_FADV_WILLNEED); }

int DiskFile::read_at(std::uint64_t at, std::byte* to, std::uint64_t bytes) const {
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd_, to + done, bytes - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return EIO;  // somebody has cut the file off
    done += static_cast<std::uint64_t>(got);
  }
  return 0;
}

int DiskFile::sync() const {
  if (FAILPOINT_FAILS(tier_sync)) return EIO;
  return fdatasync(fd_) == 0 ? 0 : errno;
}

void DiskFile::note(const std::byte* at, std::uint64_t bytes, std::vector<Piece>* pieces) const {
  const auto page = [](const std::byte* of) { return reinterpret_cast<std::uintptr_t>(of) / kPage; };
  if (bytes == 0 || !has(at) || (!pieces->empty() && page(at) == page(pieces->back().at) && page(at + bytes - 1) == page(at))) return;
  pieces->push_back({at, bytes});
}

void DiskFile::ahead(const std::byte* at, std::uint64_t bytes) const {
  const auto from = reinterpret_cast<std::uintptr_t>(at) / kPage * kPage;
  madvise(reinterpret_cast<void*>(from), reinterpret_cast<std::uintptr_t>(at) + bytes - from, MADV_WILLNEED);
}

}  // namespace conduit
