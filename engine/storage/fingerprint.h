// A cheap identity of a shard's content: both ends and the size, no times.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"
#include "engine/storage/file_system.h"

namespace widestream {

inline constexpr std::uint64_t kFingerprintEndBytes = 65536;

struct Fingerprint {
  std::uint64_t size_bytes = 0;
  std::uint64_t high64 = 0;
  std::uint64_t low64 = 0;
  // 32 hex digits, high64 first (the canonical form of XXH128).
  std::string Hex() const;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// xxh3-128 (no seed) of the bytes [0, min(size, 65536)) followed by the last min(size, 65536)
// bytes: for files under 128 KiB the two overlap, and an empty file hashes no bytes.
Result<Fingerprint> ShardFingerprint(FileSystem& fs, const std::string& path);
Result<Fingerprint> ShardFingerprint(const RandomAccessFile& file);

}  // namespace widestream
