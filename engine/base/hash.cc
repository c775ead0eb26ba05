#include "engine/base/hash.h"

#define XXH_STATIC_LINKING_ONLY  // The layout of XXH3_state_t, to own one without a C allocation.
#include <xxhash.h>

#include <array>

#include "engine/base/format_text.h"

namespace widestream {
namespace {

Hash128 FromXxh(XXH128_hash_t hash) { return {.high = hash.high64, .low = hash.low64}; }

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

struct Xxh3Digest::State {
  XXH3_state_t state;
};

std::string Hash128::ToHex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[(high >> (4 * i)) & 15];
    text[31 - i] = kDigits[(low >> (4 * i)) & 15];
  }
  return text;
}

Result<Hash128> Hash128::FromHex(std::string_view text) {
  const Status bad = Status::InvalidArgument(
      StrCat("A 128-bit hash must be 32 lower-case hexadecimal digits, found ", Quoted(text)));
  if (text.size() != 32) return bad;
  Hash128 hash;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    std::uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint64_t>(c - 'a') + 10;
    } else {
      return bad;
    }
    std::uint64_t& word = i < 16 ? hash.high : hash.low;
    word = (word << 4) | digit;
  }
  return hash;
}

// NOLINTBEGIN(readability-identifier-naming)
std::uint64_t Xxh3_64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
std::uint64_t Xxh3_64(std::span<const std::byte> bytes) { return Xxh3_64(Text(bytes)); }
Hash128 Xxh3_128(std::string_view bytes) {
  return FromXxh(XXH3_128bits(bytes.data(), bytes.size()));
}
Hash128 Xxh3_128(std::span<const std::byte> bytes) { return Xxh3_128(Text(bytes)); }
// NOLINTEND(readability-identifier-naming)

Xxh3Digest::Xxh3Digest() : state_(std::make_unique<State>()) { Reset(); }
Xxh3Digest::~Xxh3Digest() = default;
Xxh3Digest::Xxh3Digest(Xxh3Digest&&) noexcept = default;
Xxh3Digest& Xxh3Digest::operator=(Xxh3Digest&&) noexcept = default;

void Xxh3Digest::Update(std::string_view bytes) {
  // xxHash 0.8.1 refuses a null pointer, even with a length of zero. Nothing else can make it fail.
  if (!bytes.empty()) XXH3_128bits_update(&state_->state, bytes.data(), bytes.size());
}

void Xxh3Digest::Update(std::span<const std::byte> bytes) { Update(Text(bytes)); }

void Xxh3Digest::UpdateU64(std::uint64_t number) {
  std::array<char, 8> bytes;
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
  Update(std::string_view(bytes.data(), bytes.size()));
}

// The 64- and the 128-bit hash share one accumulator, so one state serves both digests.
void Xxh3Digest::Reset() { XXH3_128bits_reset(&state_->state); }

std::uint64_t Xxh3Digest::Digest64() const { return XXH3_64bits_digest(&state_->state); }

Hash128 Xxh3Digest::Digest128() const { return FromXxh(XXH3_128bits_digest(&state_->state)); }

}  // namespace widestream
