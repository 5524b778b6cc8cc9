#include "powers.hpp"

#include <bit>
#include <cmath>

#include "clones.hpp"

namespace conduit {
namespace {

constexpr double kLn2 = 0.6931471805599453;
constexpr double kInvLn2 = 1.4426950408889634;
constexpr double kRound = 0x1.8p52;  // adding and subtracting it rounds to the nearest integer

// What is rounded to single precision needs fewer terms: the first one left out is below 1e-9.
enum class Precision { full, single };

// x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172.
template <Precision kPrecision>
inline double log2_of(double x) {
  const bool tiny = x < 0x1p-1022;
  const double scaled = tiny ? x * 0x1p54 : x;
  const auto bits = std::bit_cast<std::int64_t>(scaled);
  constexpr std::int64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  const std::int64_t e = (bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (e << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 11.0;
  if constexpr (kPrecision == Precision::full) {
    p = 1.0 / 23.0;
    p = p * z + 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
  }
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  const double log_m = 2.0 * s + 2.0 * s * z * p;
  return static_cast<double>(e) + (tiny ? -54.0 : 0.0) + log_m * kInvLn2;
}

// 2^y = 2^k * e^(f ln 2), k the nearest integer, |f ln 2| < 0.347; y in (-1022, 1024).
template <Precision kPrecision>
inline double exp2_of(double y) {
  const double k = (y + kRound) - kRound;
  const double x = (y - k) * kLn2;
  double p = 1.0 / 40320.0;
  if constexpr (kPrecision == Precision::full) {
    p = 1.0 / 6227020800.0;
    p = p * x + 1.0 / 479001600.0;
    p = p * x + 1.0 / 39916800.0;
    p = p * x + 1.0 / 3628800.0;
    p = p * x + 1.0 / 362880.0;
    p = p * x + 1.0 / 40320.0;
  }
  p = p * x + 1.0 / 5040.0;
  p = p * x + 1.0 / 720.0;
  p = p * x + 1.0 / 120.0;
  p = p * x + 1.0 / 24.0;
  p = p * x + 1.0 / 6.0;
  p = p * x + 0.5;
  p = p * x + 1.0;
  p = p * x + 1.0;
  // 2^k: the integer k sits in the low bits of k + kRound
  const auto exponent = std::bit_cast<std::int64_t>(k + kRound) << 52;
  return std::bit_cast<double>(std::bit_cast<std::int64_t>(p) + exponent);
}

template <Precision kPrecision>
inline double power_of(double base, double exponent) {
  const double y = exponent * log2_of<kPrecision>(base > 0.0 ? base : 1.0);
  const double bounded = y > -1021.0 ? y : -1021.0;  // smaller masses count as the smallest: never drawn, never zero
  const double value = exp2_of<kPrecision>(bounded);
  return base > 0.0 ? value : 0.0;
}

CONDUIT_CLONES void general(const double* base, double exponent, double* out, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = power_of<Precision::full>(base[i], exponent);
}

CONDUIT_CLONES void general_weights(const double* probabilities, double least, double exponent, float* out, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = static_cast<float>(power_of<Precision::single>(least / probabilities[i], exponent));
}

}  // namespace

void powers(const double* base, double exponent, double* out, std::uint32_t n) {
  if (exponent == 1.0) {
    for (std::uint32_t i = 0; i < n; ++i) out[i] = base[i];
  } else if (exponent == 0.0) {
    for (std::uint32_t i = 0; i < n; ++i) out[i] = base[i] > 0.0 ? 1.0 : 0.0;
  } else if (exponent == 0.5) {
    for (std::uint32_t i = 0; i < n; ++i) out[i] = std::sqrt(base[i]);
  } else {
    general(base, exponent, out, n);
  }
}

void importance_weights(const double* probabilities, double least, double exponent, float* out, std::uint32_t n) {
  if (exponent == 0.0) {
    for (std::uint32_t i = 0; i < n; ++i) out[i] = 1.0f;
  } else if (exponent == 1.0) {
    for (std::uint32_t i = 0; i < n; ++i) out[i] = static_cast<float>(least / probabilities[i]);
  } else {
    general_weights(probabilities, least, exponent, out, n);
  }
}

}  // namespace conduit
