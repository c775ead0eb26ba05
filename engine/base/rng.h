// Counter-based random numbers: a pure function of a key and a position. There is no generator
// state to store, so random numbers never depend on threads, order of calls, or how often a job was
// resumed.
//
// Definitions (version 1; part of the stream's definition, never change them). All arithmetic is
// on unsigned integers; lo(x) is the low and hi(x) the high 32 bits of a 64-bit x.
//
// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), equal to
// Random123's philox4x32. With M0 = 0xD2511F53, M1 = 0xCD9E8D57, W0 = 0x9E3779B9, W1 = 0xBB67AE85,
// ten times:
//   p0 = 64-bit product M0 * c[0];  p1 = 64-bit product M1 * c[2]
//   c  = {hi(p1) ^ c[1] ^ k[0], lo(p1), hi(p0) ^ c[3] ^ k[1], lo(p0)}
//   k  = {(k[0] + W0) mod 2^32, (k[1] + W1) mod 2^32}
// The result is c after the tenth round.
//
// RandomAt(seed, a, b, c), for any 64-bit seed, a, b, c:
//   x = Philox4x32(counter = {lo(a), hi(a), lo(b), hi(b)}, key = {lo(seed), hi(seed)})
//   y = Philox4x32(counter = {lo(c), hi(c), x[2], x[3]},   key = {x[0], x[1]})
//   result = y[0] + 2^32 * y[1]
// By convention a says what the numbers are for and b and c where (for instance source, then
// index); c is the part that varies fastest. RandomBelow and RandomUniform turn that 64-bit result
// r into
//   RandomBelow:   the integer floor(r * n / 2^64), exact in 128 bits; no value is likelier than
//   another by
//                  more than n / 2^64
//   RandomUniform: floor(r / 2^11) * 2^-53, a double in [0, 1)
#pragma once

#include <array>
#include <cstdint>

namespace widestream {

[[nodiscard]] std::array<std::uint32_t, 4> Philox4x32(std::array<std::uint32_t, 4> counter,
                                                      std::array<std::uint32_t, 2> key);

[[nodiscard]] std::uint64_t RandomAt(std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                                     std::uint64_t c);

// A random integer of [0, n). 0 if n is 0.
[[nodiscard]] std::uint64_t RandomBelow(std::uint64_t n, std::uint64_t seed, std::uint64_t a,
                                        std::uint64_t b, std::uint64_t c);

// A random number of [0, 1), a multiple of 2^-53.
[[nodiscard]] double RandomUniform(std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                                   std::uint64_t c);

// RandomAt(seed, a, b, c) for one (seed, a, b) and many c, at half the cost. A value; immutable, so
// safe to share between threads.
class RandomSequence {
 public:
  RandomSequence(std::uint64_t seed, std::uint64_t a, std::uint64_t b);

  // RandomAt, RandomBelow and RandomUniform at position c.
  [[nodiscard]] std::uint64_t At(std::uint64_t c) const;
  [[nodiscard]] std::uint64_t Below(std::uint64_t n, std::uint64_t c) const;
  [[nodiscard]] double Uniform(std::uint64_t c) const;

 private:
  std::array<std::uint32_t, 4> x_;
};

}  // namespace widestream
