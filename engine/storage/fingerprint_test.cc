#include "engine/storage/fingerprint.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

Fingerprint Of(const TemporaryFolder& folder, std::string_view bytes) {
  return *ShardFingerprint(*LocalFileSystem(), folder.Write("f", bytes));
}

TEST(ShardFingerprint, IsTheHashOfBothEnds) {
  const TemporaryFolder folder;
  for (const std::size_t size : {0, 1, 65535, 65536, 65537, 131072, 200000}) {
    std::string bytes(size, 'x');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 251);
    const std::size_t end = std::min<std::size_t>(size, 65536);
    const std::string ends = bytes.substr(0, end) + bytes.substr(size - end);
    const XXH128_hash_t expected = XXH3_128bits(ends.data(), ends.size());
    const Fingerprint found = Of(folder, bytes);
    EXPECT_EQ(found.size_bytes, size);
    EXPECT_EQ(found.high64, expected.high64);
    EXPECT_EQ(found.low64, expected.low64);
  }
}

TEST(ShardFingerprint, HexIsCanonical) {
  const TemporaryFolder folder;
  EXPECT_EQ(Of(folder, "").Hex(), "99aa06d3014798d86001c324468d497f");  // XXH128 of nothing
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits("aa", 2));
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  EXPECT_EQ(Of(folder, "a").Hex(), hex);
}

TEST(ShardFingerprint, SeesChangesAtBothEndsAndInTheSize) {
  const TemporaryFolder folder;
  std::string bytes(300000, 'x');
  const Fingerprint original = Of(folder, bytes);
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{65535}, bytes.size() - 65536, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[at] = 'y';
    EXPECT_NE(Of(folder, changed), original) << at;
  }
  EXPECT_NE(Of(folder, bytes + "x"), original);
}

}  // namespace
}  // namespace widestream
