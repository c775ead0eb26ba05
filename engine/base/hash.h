// XXH3 of xxHash, 64 and 128 bits, seed 0: the hash of manifests, fingerprints, keys and checksums.
// Fast and stable over versions and machines; not secure against someone who wants a collision.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace widestream {

// A 128-bit hash. Its text is 32 lower-case hexadecimal digits: `high`, then `low`, each most
// significant digit first (xxHash's canonical form; Python's xxhash.xxh3_128_hexdigest). Orders
// like its text.
struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  [[nodiscard]] std::string ToHex() const;
  // The reverse of ToHex; InvalidArgument for any other text (upper case included).
  [[nodiscard]] static Result<Hash128> FromHex(std::string_view text);

  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};

// NOLINTBEGIN(readability-identifier-naming): the hash's own name.
[[nodiscard]] std::uint64_t Xxh3_64(std::string_view bytes);
[[nodiscard]] std::uint64_t Xxh3_64(std::span<const std::byte> bytes);
[[nodiscard]] Hash128 Xxh3_128(std::string_view bytes);
[[nodiscard]] Hash128 Xxh3_128(std::span<const std::byte> bytes);
// NOLINTEND(readability-identifier-naming)

// The same hashes of bytes that come in parts: the digest equals that of the parts joined. Reading
// a digest changes nothing, and more bytes may follow. Move-only; not thread-safe. A moved-from
// digest may only be assigned to or destroyed.
class Xxh3Digest {
 public:
  Xxh3Digest();
  ~Xxh3Digest();
  Xxh3Digest(Xxh3Digest&&) noexcept;
  Xxh3Digest& operator=(Xxh3Digest&&) noexcept;

  void Update(std::string_view bytes);
  void Update(std::span<const std::byte> bytes);
  // The number's eight bytes, little-endian.
  void UpdateU64(std::uint64_t number);
  // Back to the state of a new object.
  void Reset();

  [[nodiscard]] std::uint64_t Digest64() const;
  [[nodiscard]] Hash128 Digest128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace widestream

template <>
struct std::hash<widestream::Hash128> {
  std::size_t operator()(const widestream::Hash128& hash) const noexcept { return hash.low; }
};
