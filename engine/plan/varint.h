// Integers of 1 to 10 bytes: 7 bits a byte, least significant first, the high bit set on all but
// the last. Signed differences are zigzag-coded: 0, -1, 1, -2 ... become 0, 1, 2, 3 ...
#pragma once

#include <cstdint>

#include "engine/base/wire.h"

namespace widestream {

inline void PutVarint(WireWriter& writer, std::uint64_t value) {
  while (value >= 0x80) {
    writer.U8(static_cast<std::uint8_t>(value) | 0x80);
    value >>= 7;
  }
  writer.U8(static_cast<std::uint8_t>(value));
}

// The difference `value - base`, modulo 2^64.
inline void PutDelta(WireWriter& writer, std::uint64_t value, std::uint64_t base) {
  const std::uint64_t delta = value - base;
  PutVarint(writer, (delta << 1) ^ ((delta >> 63) != 0 ? ~std::uint64_t{0} : 0));
}

// At most `max`.
inline Result<std::uint64_t> GetVarint(WireReader& reader, std::uint64_t max = UINT64_MAX) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    WS_ASSIGN_OR_RETURN(const std::uint8_t byte, reader.U8());
    const std::uint64_t bits = byte & 0x7f;
    if (shift == 63 && bits > 1) break;
    value |= bits << shift;
    if ((byte & 0x80) == 0) {
      if (value > max) return reader.Corrupt("a number exceeds its limit");
      return value;
    }
  }
  return reader.Corrupt("a variable-length number exceeds 64 bits");
}

inline Result<std::uint64_t> GetDelta(WireReader& reader, std::uint64_t base,
                                      std::uint64_t max = UINT64_MAX) {
  WS_ASSIGN_OR_RETURN(const std::uint64_t coded, GetVarint(reader));
  const std::uint64_t value = base + ((coded >> 1) ^ (~(coded & 1) + 1));
  if (value > max) return reader.Corrupt("a number exceeds its limit");
  return value;
}

}  // namespace widestream
