#include "disk_writer.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "crc32c.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kBuffer = 4 << 20;
constexpr std::uint64_t kPiece = 48 << 10;    // summed while it is in the cache from being copied
constexpr std::uint64_t kSector = 4096;       // what direct writes are multiples of, and aligned to
constexpr std::uint64_t kReserve = 32 << 20;  // of the disk at a time: writes that make no file longer do not wait for each other
constexpr std::uint32_t kThreads = 4;         // a disk wants several requests
constexpr std::uint32_t kUnderWay = 4;        // buffers, beside those that are being filled

struct Free {
  void operator()(std::byte* at) const { std::free(at); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

struct File {
  int fd = -1;  // closed
  std::string name;
  bool direct = false;  // past the page cache: whole sectors, from aligned memory
  std::uint32_t crc = 0;
  Buffer buffer;  // being filled
  std::uint64_t filled = 0, sent = 0, reserved = 0;
  std::uint32_t pending = 0;  // jobs; under the mutex, as the next one
  bool whole = false;
};

struct Job {
  File* file;
  Buffer buffer;
  std::uint64_t at, bytes;
};

[[noreturn]] void fail_with(int error) { throw std::system_error(error, std::generic_category()); }

// Where it fails, or cannot be done, the write itself will tell.
void reserve(File& file) {
  if (file.sent + file.filled <= file.reserved) return;
  if (fallocate(file.fd, 0, static_cast<off_t>(file.reserved), kReserve) == 0) file.reserved += kReserve;
}

void put(const Job& job) {
  File& file = *job.file;
  std::atomic_ref<bool> direct(file.direct);
  std::uint64_t bytes = job.bytes;
  if (direct) {
    bytes = (bytes + kSector - 1) / kSector * kSector;  // the file is cut off again in the end
    memset(job.buffer.get() + job.bytes, 0, bytes - job.bytes);
  }
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(file.fd, job.buffer.get() + done, bytes - done, static_cast<off_t>(job.at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && direct) {  // a file system that promised more than it keeps
      fcntl(file.fd, F_SETFL, fcntl(file.fd, F_GETFL) & ~O_DIRECT);
      direct = false;
      continue;
    }
    if (n <= 0) fail_with(n < 0 ? errno : EIO);
    done += static_cast<std::uint64_t>(n);
  }
  if (!direct) sync_file_range(file.fd, static_cast<off_t>(job.at), static_cast<off_t>(job.bytes), SYNC_FILE_RANGE_WRITE);
}

// Cuts off what was reserved or padded, and waits until the file lies on the disk.
void complete(const File& file) {
  if ((file.reserved > file.sent || file.sent % kSector != 0) && ftruncate(file.fd, static_cast<off_t>(file.sent)) != 0) fail_with(errno);
  while (fsync(file.fd) != 0) {
    if (errno != EINTR) fail_with(errno);
  }
}

}  // namespace

struct DiskWriter::Shared {
  std::mutex mutex;
  std::condition_variable wanted, done;
  std::deque<std::unique_ptr<File>> files;
  std::deque<Job> jobs;
  std::vector<Buffer> spare;
  std::vector<std::thread> threads;
  std::uint32_t under_way = 0;  // jobs
  bool stopping = false;
  int error = 0;
  std::string failed;

  void check() const {
    if (error != 0) throw WriteError(error, failed);
  }

  void start() {
    sigset_t all, before;  // signals are for threads that know of them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (std::uint32_t i = 0; i < kThreads; ++i) threads.emplace_back([this] { work(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  Buffer take() {
    std::unique_lock lock(mutex);
    done.wait(lock, [this] { return under_way < kUnderWay || error != 0; });
    check();
    if (spare.empty()) return Buffer(static_cast<std::byte*>(std::aligned_alloc(kSector, kBuffer)));
    Buffer buffer = std::move(spare.back());
    spare.pop_back();
    return buffer;
  }

  void send(File& file, bool whole) {
    if (file.filled == kBuffer) reserve(file);
    if (threads.empty()) start();
    const std::lock_guard lock(mutex);
    check();
    ++file.pending;
    file.whole = whole;
    ++under_way;
    jobs.push_back({&file, std::move(file.buffer), file.sent, file.filled});
    file.sent += file.filled;
    file.filled = 0;
    wanted.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      wanted.wait(lock, [this] { return stopping || !jobs.empty(); });
      if (stopping) return;
      Job job = std::move(jobs.front());
      jobs.pop_front();
      if (job.bytes > 0) try_to(job, lock, [&] { put(job); });
      if (--job.file->pending == 0 && job.file->whole) {
        try_to(job, lock, [&] { complete(*job.file); });
        ::close(job.file->fd);
        job.file->fd = -1;
      }
      if (job.buffer != nullptr) spare.push_back(std::move(job.buffer));
      --under_way;
      done.notify_all();
    }
  }

  template <class F>
  void try_to(const Job& job, std::unique_lock<std::mutex>& lock, F act) {
    if (error != 0) return;  // after a failure nothing more is written
    lock.unlock();
    int failure = 0;
    try {
      act();
    } catch (const std::system_error& thrown) {
      failure = thrown.code().value();
    }
    lock.lock();
    if (failure == 0 || error != 0) return;
    error = failure;
    failed = job.file->name;
  }
};

DiskWriter::DiskWriter() : shared_(new Shared), pid_(getpid()) {}

DiskWriter::~DiskWriter() {
  if (pid_ != getpid()) return;
  stop();
  delete shared_;
}

std::uint32_t DiskWriter::open(int fd, std::string name) {
  File& file = *shared_->files.emplace_back(std::make_unique<File>());
  file.fd = fd;
  file.name = std::move(name);
  file.direct = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT) == 0;
  return static_cast<std::uint32_t>(shared_->files.size() - 1);
}

void DiskWriter::write(std::uint32_t number, const std::byte* from, std::uint64_t bytes) {
  File& file = *shared_->files.at(number);
  while (bytes > 0) {
    if (file.buffer == nullptr) file.buffer = shared_->take();
    if (file.buffer == nullptr) throw std::bad_alloc();
    const std::uint64_t n = std::min({bytes, kPiece, kBuffer - file.filled});
    std::byte* to = file.buffer.get() + file.filled;
    memcpy(to, from, n);
    file.crc = crc32c(file.crc, to, n);
    file.filled += n;
    from += n;
    bytes -= n;
    if (file.filled == kBuffer) shared_->send(file, false);
  }
}

std::uint32_t DiskWriter::close(std::uint32_t number) {
  File& file = *shared_->files.at(number);
  if (!file.whole) shared_->send(file, true);
  return file.crc;
}

void DiskWriter::finish() {
  std::unique_lock lock(shared_->mutex);
  shared_->done.wait(lock, [this] { return shared_->under_way == 0 || shared_->error != 0; });
  shared_->check();
}

void DiskWriter::stop() {
  if (pid_ != getpid()) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->wanted.notify_all();
  }
  for (std::thread& thread : shared_->threads) thread.join();
  shared_->threads.clear();
  for (const std::unique_ptr<File>& file : shared_->files) {
    if (file->fd >= 0) ::close(file->fd);
    file->fd = -1;
  }
}

}  // namespace conduit
