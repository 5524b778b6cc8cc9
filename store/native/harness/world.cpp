#include "world.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

namespace conduit::harness {
namespace {

int make_segment(const char* name, std::uint64_t bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) fatal("memfd of %llu bytes cannot be made", static_cast<unsigned long long>(bytes));
  return fd;
}

}  // namespace

World::World(std::uint64_t control_bytes, std::uint64_t data_bytes, std::uint32_t processes)
    : control_fd_(make_segment("harness-control", control_bytes)), data_fd_(make_segment("harness-data", data_bytes)) {
  format_control(control_fd_, control_bytes, data_bytes, processes, 4, "harness");
  segments_ = Segments::map(control_fd_, data_fd_, true);
}

World::~World() {
  close(control_fd_);
  close(data_fd_);
}

std::shared_ptr<Process> World::attach() const { return std::make_shared<Process>(segments_, control_fd_); }

void reconfigure(TableCore& table, double alpha, double beta, double eps) {
  for (;;) {
    Settings wanted = table.settings_now();
    wanted.views[0] = {alpha, eps, beta};
    if (table.reconfigure(wanted)) return;
  }
}

void expect_consistent(TableCore& table, const char* when) {
  const std::vector<std::string> wrong = table.verify();
  if (wrong.empty()) return;
  for (const std::string& text : wrong) std::fprintf(stderr, "  %s\n", text.c_str());
  fatal("table '%s' is not consistent %s", table.shared().name, when);
}

}  // namespace conduit::harness
