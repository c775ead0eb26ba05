// Permutation: a keyed bijection of [0, n) that needs no stored table, so a shuffled order of any
// size costs a few hundred bytes and any position of it can be asked for directly.
//
// Definitions (version 1; part of the stream's definition, never change them). All arithmetic is on
// unsigned 64-bit integers modulo 2^64 unless said otherwise; // is integer division, % its
// remainder.
//
// Mix(x), the SplitMix64 finaliser (Stafford's variant 13):
//   x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31
//
// A key is 128 bits, {high, low}. DeriveKey(seed, source_id, epoch, purpose, index) is xxh3-128
// (seed 0) of
//   seed, source_id, epoch, index as four little-endian 64-bit integers, in this order, 32 bytes,
//   then the bytes of purpose (no length, no terminator),
// with high and low the upper and lower 64 bits of that hash.
//
// Permutation(n, key) is a generalised Feistel network over pairs of digits (after Black and
// Rogaway, "Ciphers with arbitrary finite domains", 2002):
//   radix_left  = the smallest integer a with a * a >= n
//   radix_right = (n + radix_left - 1) // radix_left
//   round_key[i] = Mix(Mix(key.low + (i + 1) * 0x9E3779B97F4A7C15) ^ key.high), i = 0 .. 7
//   F(i, digit, radix) = (Mix(digit ^ round_key[i]) * radix) >> 64, the product exact in 128 bits
// One pass over x in [0, radix_left * radix_right):
//   left = x // radix_right;  right = x % radix_right
//   for i = 0 .. 7:
//     i even: left  = (left  + F(i, right, radix_left)) % radix_left
//     i odd:  right = (right + F(i, left, radix_right)) % radix_right
//   x = left * radix_right + right
// At(x) makes one pass, then further ones for as long as the result is >= n (cycle walking). The
// domain exceeds n by less than radix_left, so a second pass is rare. Inverse(y) undoes the rounds
// in reverse order, with subtraction for addition, and walks the cycle the other way.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/base/status.h"

namespace widestream {

struct Key128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend bool operator==(const Key128&, const Key128&) = default;
};

// The key for one use of randomness: a different key for each purpose ("units", "records" ...) and
// index within it (for instance the block).
[[nodiscard]] Key128 DeriveKey(std::uint64_t seed, std::uint64_t source_id, std::uint64_t epoch,
                               std::string_view purpose, std::uint64_t index);

// A value, immutable, so safe to share between threads. Not a cipher: it hides nothing from someone
// who tries. Invariant: for i < n, At(i) < n and Inverse(At(i)) == At(Inverse(i)) == i.
class Permutation {
 public:
  static constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 40;

  // InvalidArgument unless 1 <= n <= kMaxSize.
  [[nodiscard]] static Result<Permutation> Make(std::uint64_t n, Key128 key);

  [[nodiscard]] std::uint64_t size() const { return size_; }
  // The value at position i, and the position of a value. Outside [0, n) both return their
  // argument.
  [[nodiscard]] std::uint64_t At(std::uint64_t i) const;
  [[nodiscard]] std::uint64_t Inverse(std::uint64_t value) const;

 private:
  static constexpr int kRounds = 8;

  Permutation(std::uint64_t n, Key128 key);

  std::uint64_t size_;
  std::uint64_t radix_left_;
  std::uint64_t radix_right_;
  std::array<std::uint64_t, kRounds> round_keys_;
};

}  // namespace widestream
