// Errors of the core. The code selects the Python class; the text says what, the value, the limit, the next step.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace conduit {

enum class ErrorCode { closed, forked, layout, memory, lock_timeout, config, read_only, stale, name_taken, busy, platform, lease_expired, queue_ended, stale_policy,
                       checkpoint_busy, damaged, checkpoint_lapsed, disk };

struct Error : std::runtime_error {
  ErrorCode code;
  Error(ErrorCode c, const std::string& text) : std::runtime_error(text), code(c) {}
};

[[noreturn, gnu::format(printf, 2, 3)]] inline void fail(ErrorCode code, const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw Error(code, text);
}

}  // namespace conduit
