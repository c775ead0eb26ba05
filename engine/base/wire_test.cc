#include "engine/base/wire.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace widestream {
namespace {

constexpr std::uint32_t kMagic = WireMagic("WSTT");
constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

TEST(WireTest, BytesAreLaidOutAsDocumented) {
  WireWriter writer;
  writer.Header(kMagic, 0x0201);
  writer.U8(0xab);
  writer.U64(0x0807060504030201);
  writer.I64(-2);
  writer.Bool(true);
  writer.Bytes("xy");
  writer.Column(std::vector<std::uint16_t>{0x0102, 0xfffe});
  const std::string expected(
      "WSTT\x01\x02"
      "\xab"
      "\x01\x02\x03\x04\x05\x06\x07\x08"
      "\xfe\xff\xff\xff\xff\xff\xff\xff"
      "\x01"
      "\x02\x00\x00\x00\x00\x00\x00\x00xy"
      "\x02\x00\x00\x00\x00\x00\x00\x00\x02\x01\xfe\xff",
      6 + 1 + 8 + 8 + 1 + 10 + 12);
  EXPECT_EQ(writer.bytes(), expected);
  EXPECT_EQ(writer.Take(), expected);
  EXPECT_TRUE(writer.bytes().empty());
}

struct Message {
  std::uint8_t u8;
  std::uint16_t u16;
  std::uint32_t u32;
  std::uint64_t u64;
  std::int64_t i64;
  double f64;
  bool flag;
  std::string text;
  std::vector<std::int64_t> longs;
  std::vector<float> floats;
};

std::string Write(const Message& message) {
  WireWriter writer;
  writer.Header(kMagic, 3);
  writer.U8(message.u8);
  writer.U16(message.u16);
  writer.U32(message.u32);
  writer.U64(message.u64);
  writer.I64(message.i64);
  writer.F64(message.f64);
  writer.Bool(message.flag);
  writer.Bytes(message.text);
  writer.Column(message.longs);
  writer.Column(message.floats);
  return writer.Take();
}

Result<Message> Read(std::string_view bytes, std::uint64_t limit = kNoLimit) {
  WireReader reader(bytes, "test message");
  WS_RETURN_IF_ERROR(reader.Header(kMagic, 2, 4).status());
  Message message;
  WS_ASSIGN_OR_RETURN(message.u8, reader.U8());
  WS_ASSIGN_OR_RETURN(message.u16, reader.U16());
  WS_ASSIGN_OR_RETURN(message.u32, reader.U32());
  WS_ASSIGN_OR_RETURN(message.u64, reader.U64());
  WS_ASSIGN_OR_RETURN(message.i64, reader.I64());
  WS_ASSIGN_OR_RETURN(message.f64, reader.F64());
  WS_ASSIGN_OR_RETURN(message.flag, reader.Bool());
  WS_ASSIGN_OR_RETURN(message.text, reader.Bytes(limit));
  WS_ASSIGN_OR_RETURN(message.longs, reader.Column<std::int64_t>(limit));
  WS_ASSIGN_OR_RETURN(message.floats, reader.Column<float>(limit));
  WS_RETURN_IF_ERROR(reader.Finish());
  return message;
}

Message Example() {
  return {.u8 = 1,
          .u16 = 2,
          .u32 = 3,
          .u64 = 4,
          .i64 = -5,
          .f64 = 0.25,
          .flag = true,
          .text = "shard",
          .longs = {1, -2, 3},
          .floats = {0.5F, -1.5F}};
}

RC_GTEST_PROP(WireTest, WhatWasWrittenIsRead,
              (std::uint8_t u8, std::uint64_t u64, std::int64_t i64, double f64, bool flag,
               const std::string& text, const std::vector<std::int64_t>& longs,
               const std::vector<float>& floats)) {
  const Message message{.u8 = u8,
                        .u16 = static_cast<std::uint16_t>(u64),
                        .u32 = static_cast<std::uint32_t>(u64 >> 7),
                        .u64 = u64,
                        .i64 = i64,
                        .f64 = f64,
                        .flag = flag,
                        .text = text,
                        .longs = longs,
                        .floats = floats};
  const std::string bytes = Write(message);
  const Result<Message> read = Read(bytes);
  RC_ASSERT(read.ok());
  RC_ASSERT(read->longs == longs);
  RC_ASSERT(read->text == text);
  RC_ASSERT(Write(*read) == bytes);
}

TEST(WireTest, EveryCutMessageIsAnErrorThatNamesItAndTheOffset) {
  const std::string bytes = Write(Example());
  ASSERT_TRUE(Read(bytes).ok());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Status status = Read(std::string_view(bytes).substr(0, size)).status();
    ASSERT_EQ(status.code(), StatusCode::kDataCorruption) << "cut to " << size;
    ASSERT_EQ(status.message().rfind("test message, byte ", 0), 0U) << status.ToString();
  }
}

TEST(WireTest, TrailingBytesAreAnError) {
  EXPECT_EQ(Read(Write(Example()) + "x").status().code(), StatusCode::kDataCorruption);
}

RC_GTEST_PROP(WireTest, DamagedBytesNeverCrashTheReader, ()) {
  std::string bytes = Write(Example());
  const auto position = *rc::gen::inRange<std::size_t>(0, bytes.size());
  bytes[position] = *rc::gen::arbitrary<char>();
  const Result<Message> read = Read(bytes);
  if (read.ok()) RC_ASSERT(Write(*read).size() == bytes.size());
}

TEST(WireTest, AbsurdLengthsFailBeforeAllocation) {
  for (const std::uint64_t length : {kNoLimit, kNoLimit / 8 + 1, std::uint64_t{1} << 61,
                                     std::uint64_t{1} << 40, std::uint64_t{9}}) {
    WireWriter writer;
    writer.U64(length);
    writer.U64(0);
    WireReader reader(writer.bytes(), "m");
    EXPECT_EQ(reader.Bytes(kNoLimit).status().code(), StatusCode::kDataCorruption);
    EXPECT_EQ(reader.Column<std::uint64_t>(kNoLimit).status().code(), StatusCode::kDataCorruption);
    EXPECT_EQ(reader.Bytes(8).status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(reader.Column<std::uint8_t>(8).status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(reader.offset_bytes(), 0U);
  }
}

TEST(WireTest, HeaderChecksMagicAndVersion) {
  WireWriter writer;
  writer.Header(kMagic, 5);
  WireReader reader(writer.bytes(), "plan message of step 7");
  EXPECT_EQ(reader.Header(WireMagic("OTHR"), 5, 5).status().code(), StatusCode::kDataCorruption);
  const Status newer = reader.Header(kMagic, 1, 4).status();
  EXPECT_EQ(newer.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(newer.message(),
            "plan message of step 7 has version 5; this build reads versions 1 to 4. Use the same "
            "release on both sides");
  EXPECT_EQ(reader.Header(kMagic, 6, 9).status().code(), StatusCode::kInvalidArgument);
  const Result<std::uint16_t> version = reader.Header(kMagic, 1, 5);
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(*version, 5);
  EXPECT_TRUE(reader.Finish().ok());
}

TEST(WireTest, ABoolIsZeroOrOne) {
  WireReader reader("\x02", "m");
  EXPECT_EQ(reader.Bool().status().code(), StatusCode::kDataCorruption);
  EXPECT_EQ(reader.offset_bytes(), 0U);
  EXPECT_EQ(reader.Corrupt("found an unknown kind").message(), "m, byte 0: found an unknown kind");
}

}  // namespace
}  // namespace widestream
