#include "engine/storage/fingerprint.h"

#include <xxhash.h>

#include <algorithm>

namespace widestream {

std::string Fingerprint::Hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(32, '0');
  for (int i = 0; i < 16; ++i) {
    hex[i] = kDigits[(high64 >> (60 - 4 * i)) & 15];
    hex[16 + i] = kDigits[(low64 >> (60 - 4 * i)) & 15];
  }
  return hex;
}

Result<Fingerprint> ShardFingerprint(const RandomAccessFile& file) {
  const std::uint64_t size = file.size_bytes();
  const auto end_bytes = static_cast<std::size_t>(std::min(size, kFingerprintEndBytes));
  std::string bytes(2 * end_bytes, '\0');
  WS_RETURN_IF_ERROR(ReadExactly(file, 0, end_bytes, bytes.data()));
  WS_RETURN_IF_ERROR(ReadExactly(file, size - end_bytes, end_bytes, bytes.data() + end_bytes));
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return Fingerprint{size, hash.high64, hash.low64};
}

Result<Fingerprint> ShardFingerprint(FileSystem& fs, const std::string& path) {
  WS_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs.Open(path));
  return ShardFingerprint(*file);
}

}  // namespace widestream
