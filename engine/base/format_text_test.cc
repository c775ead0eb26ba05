#include "engine/base/format_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace widestream {
namespace {

TEST(FormatTextTest, JoinsTextAndNumbersOfEveryKind) {
  const std::string text = "shard";
  EXPECT_EQ(StrCat(text, ' ', 7, "/", std::uint64_t{8}, " at ", -3.5, " ok=", true),
            "shard 7/8 at -3.5 ok=true");
  EXPECT_EQ(StrCat(std::numeric_limits<std::int64_t>::min(), "..",
                   std::numeric_limits<std::uint64_t>::max()),
            "-9223372036854775808..18446744073709551615");
  EXPECT_EQ(StrCat(std::uint8_t{200}, " ", std::int8_t{-5}), "200 -5");
  EXPECT_EQ(StrCat(), "");
}

TEST(FormatTextTest, DoublesReadBackToTheSameValue) {
  for (const double value : {0.1, 1.0 / 3.0, 1e300, -2.5e-300}) {
    EXPECT_EQ(std::stod(StrCat(value)), value);
  }
}

TEST(FormatTextTest, HexAndNull) {
  const char* missing = nullptr;
  EXPECT_EQ(StrCat(Hex{0}, " ", Hex{0xdeadbeef}), "0x0 0xdeadbeef");
  EXPECT_EQ(StrCat(Hex{std::numeric_limits<std::uint64_t>::max()}), "0xffffffffffffffff");
  EXPECT_EQ(StrCat(missing), "(null)");
}

TEST(FormatTextTest, QuotedMakesHostileTextSafeAndShort) {
  EXPECT_EQ(Quoted("plain name.jsonl"), "\"plain name.jsonl\"");
  EXPECT_EQ(Quoted("a\n\"\\\x1b\xff"), "\"a\\x0a\\x22\\x5c\\x1b\\xff\"");
  EXPECT_EQ(Quoted(std::string(100, 'x'), 3), "\"xxx\"...");
}

}  // namespace
}  // namespace widestream
