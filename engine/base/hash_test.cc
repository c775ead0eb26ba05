#include "engine/base/hash.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace widestream {
namespace {

struct KnownAnswer {
  std::string bytes;
  std::uint64_t hash64;
  std::string hash128;
};

// From the Python package xxhash.
std::vector<KnownAnswer> KnownAnswers() {
  std::string long_text;
  for (int i = 0; i < 5 * 256; ++i) long_text.push_back(static_cast<char>(i & 255));
  return {{"", 0x2d06800538d394c2, "99aa06d3014798d86001c324468d497f"},
          {"a", 0xe6c632b61e964e1f, "a96faf705af16834e6c632b61e964e1f"},
          {"widestream", 0xab714a528563c247, "45323b71016ad474b3a64c88bba9c32a"},
          {long_text, 0x4844b009e164352e, "d92ab3a1cb0542a74844b009e164352e"}};
}

TEST(HashTest, EqualsTheXxhashPackage) {
  for (const KnownAnswer& known : KnownAnswers()) {
    EXPECT_EQ(Xxh3_64(known.bytes), known.hash64);
    EXPECT_EQ(Xxh3_128(known.bytes).ToHex(), known.hash128);
    const auto bytes = std::as_bytes(std::span<const char>(known.bytes));
    EXPECT_EQ(Xxh3_64(bytes), known.hash64);
    EXPECT_EQ(Xxh3_128(bytes).ToHex(), known.hash128);
  }
  EXPECT_EQ(Xxh3_64(std::string_view()), KnownAnswers()[0].hash64);
}

RC_GTEST_PROP(HashTest, PartsHashLikeTheWhole, (const std::vector<std::string>& parts)) {
  std::string whole;
  Xxh3Digest digest;
  for (const std::string& part : parts) {
    digest.Update(part);
    whole += part;
    RC_ASSERT(digest.Digest64() == Xxh3_64(whole));
    RC_ASSERT(digest.Digest128() == Xxh3_128(whole));
  }
}

TEST(HashTest, DigestMovesResetsAndTakesNumbers) {
  Xxh3Digest digest;
  digest.Update("some bytes");
  Xxh3Digest moved = std::move(digest);
  EXPECT_EQ(moved.Digest64(), Xxh3_64("some bytes"));
  moved.Reset();
  moved.Update(std::string_view());
  EXPECT_EQ(moved.Digest128(), Xxh3_128(""));
  moved.UpdateU64(0x0807060504030201);
  EXPECT_EQ(moved.Digest128(), Xxh3_128("\x01\x02\x03\x04\x05\x06\x07\x08"));
  const std::string block(100'000, 'x');
  moved.Reset();
  moved.Update(std::as_bytes(std::span<const char>(block)));
  EXPECT_EQ(moved.Digest128(), Xxh3_128(block));
}

RC_GTEST_PROP(HashTest, HexReadsBack, (std::uint64_t high, std::uint64_t low)) {
  const Hash128 hash{.high = high, .low = low};
  const Result<Hash128> read = Hash128::FromHex(hash.ToHex());
  RC_ASSERT(read.ok());
  RC_ASSERT(*read == hash);
}

RC_GTEST_PROP(HashTest, HashesOrderLikeTheirText, (std::uint64_t a, std::uint64_t b)) {
  const Hash128 x{.high = a % 3, .low = b};
  const Hash128 y{.high = b % 3, .low = a};
  RC_ASSERT((x < y) == (x.ToHex() < y.ToHex()));
}

TEST(HashTest, OnlyCanonicalHexIsRead) {
  const std::string good = "99aa06d3014798d86001c324468d497f";
  EXPECT_TRUE(Hash128::FromHex(good).ok());
  for (const std::string& bad :
       std::vector<std::string>{"", good.substr(1), good + "0", "99AA06d3014798d86001c324468d497f",
                                "g9aa06d3014798d86001c324468d497f", std::string(32, ' ')}) {
    EXPECT_EQ(Hash128::FromHex(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace widestream
