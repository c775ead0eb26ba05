#include "engine/base/rng.h"

namespace widestream {
namespace {

__extension__ using UInt128 = unsigned __int128;

std::uint32_t Low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t High(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

}  // namespace

std::array<std::uint32_t, 4> Philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = kMultiplier0 * counter[0];
    const std::uint64_t p1 = kMultiplier1 * counter[2];
    counter = {High(p1) ^ counter[1] ^ key[0], Low(p1), High(p0) ^ counter[3] ^ key[1], Low(p0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

RandomSequence::RandomSequence(std::uint64_t seed, std::uint64_t a, std::uint64_t b)
    : x_(Philox4x32({Low(a), High(a), Low(b), High(b)}, {Low(seed), High(seed)})) {}

std::uint64_t RandomSequence::At(std::uint64_t c) const {
  const std::array<std::uint32_t, 4> y =
      Philox4x32({Low(c), High(c), x_[2], x_[3]}, {x_[0], x_[1]});
  return y[0] | (std::uint64_t{y[1]} << 32);
}

std::uint64_t RandomSequence::Below(std::uint64_t n, std::uint64_t c) const {
  return static_cast<std::uint64_t>((UInt128{At(c)} * n) >> 64);
}

double RandomSequence::Uniform(std::uint64_t c) const {
  return static_cast<double>(At(c) >> 11) * 0x1.0p-53;
}

std::uint64_t RandomAt(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return RandomSequence(seed, a, b).At(c);
}

std::uint64_t RandomBelow(std::uint64_t n, std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                          std::uint64_t c) {
  return RandomSequence(seed, a, b).Below(n, c);
}

double RandomUniform(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return RandomSequence(seed, a, b).Uniform(c);
}

}  // namespace widestream
