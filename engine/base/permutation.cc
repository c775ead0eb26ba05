#include "engine/base/permutation.h"

#include <cmath>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"

namespace widestream {
namespace {

__extension__ using UInt128 = unsigned __int128;

std::uint64_t Mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  x ^= x >> 31;
  return x;
}

// A number of [0, radix).
std::uint64_t RoundFunction(std::uint64_t round_key, std::uint64_t digit, std::uint64_t radix) {
  return static_cast<std::uint64_t>((UInt128{Mix(digit ^ round_key)} * radix) >> 64);
}

// Both operands and the result are in [0, radix), where a remainder is one conditional step.
std::uint64_t AddModulo(std::uint64_t x, std::uint64_t y, std::uint64_t radix) {
  const std::uint64_t sum = x + y;
  return sum < radix ? sum : sum - radix;
}

std::uint64_t SubtractModulo(std::uint64_t x, std::uint64_t y, std::uint64_t radix) {
  return x < y ? x + radix - y : x - y;
}

std::uint64_t CeilSquareRoot(std::uint64_t n) {
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));
  while (root * root < n) ++root;
  while (root > 0 && (root - 1) * (root - 1) >= n) --root;
  return root;
}

}  // namespace

Key128 DeriveKey(std::uint64_t seed, std::uint64_t source_id, std::uint64_t epoch,
                 std::string_view purpose, std::uint64_t index) {
  std::string bytes;
  bytes.reserve(32 + purpose.size());
  for (const std::uint64_t number : {seed, source_id, epoch, index}) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
  }
  bytes.append(purpose);
  const Hash128 hash = Xxh3_128(bytes);
  return {.high = hash.high, .low = hash.low};
}

Result<Permutation> Permutation::Make(std::uint64_t n, Key128 key) {
  if (n == 0 || n > kMaxSize) {
    return Status::InvalidArgument(
        StrCat("A permutation of ", n, " elements was asked for; it must have 1 to ", kMaxSize));
  }
  return Permutation(n, key);
}

Permutation::Permutation(std::uint64_t n, Key128 key)
    : size_(n), radix_left_(CeilSquareRoot(n)), radix_right_((n + radix_left_ - 1) / radix_left_) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    round_keys_[i] = Mix(Mix(key.low + (i + 1) * kGolden) ^ key.high);
  }
}

std::uint64_t Permutation::At(std::uint64_t i) const {
  if (i >= size_) return i;
  std::uint64_t left = i / radix_right_;
  std::uint64_t right = i % radix_right_;
  std::uint64_t x = 0;
  do {
    for (int round = 0; round < kRounds; round += 2) {
      left = AddModulo(left, RoundFunction(round_keys_[round], right, radix_left_), radix_left_);
      right =
          AddModulo(right, RoundFunction(round_keys_[round + 1], left, radix_right_), radix_right_);
    }
    x = left * radix_right_ + right;
  } while (x >= size_);
  return x;
}

std::uint64_t Permutation::Inverse(std::uint64_t value) const {
  if (value >= size_) return value;
  std::uint64_t left = value / radix_right_;
  std::uint64_t right = value % radix_right_;
  std::uint64_t x = 0;
  do {
    for (int round = kRounds - 2; round >= 0; round -= 2) {
      right = SubtractModulo(right, RoundFunction(round_keys_[round + 1], left, radix_right_),
                             radix_right_);
      left =
          SubtractModulo(left, RoundFunction(round_keys_[round], right, radix_left_), radix_left_);
    }
    x = left * radix_right_ + right;
  } while (x >= size_);
  return x;
}

}  // namespace widestream
