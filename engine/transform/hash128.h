// XXH3_128 over a sequence of fields, each with its length, so that no two sequences run together.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace widestream::internal {

// Not thread-safe. The hash does not depend on the byte order of the machine.
class Hash128 {
 public:
  Hash128() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }

  void AddInteger(std::uint64_t value) {
    unsigned char bytes[8];
    for (unsigned char& b : bytes) {
      b = static_cast<unsigned char>(value & 0xFF);
      value >>= 8;
    }
    XXH3_128bits_update(state_.get(), bytes, sizeof(bytes));
  }
  void AddString(std::string_view text) {
    AddInteger(text.size());
    XXH3_128bits_update(state_.get(), text.data(), text.size());
  }
  // 32 hexadecimal digits.
  std::string Hex() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    std::string hex;
    for (const unsigned char b : canonical.digest) {
      hex += "0123456789abcdef"[b >> 4];
      hex += "0123456789abcdef"[b & 15];
    }
    return hex;
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace widestream::internal
