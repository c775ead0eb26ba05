#include "engine/formats/jsonl.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <thread>

#include "engine/storage/faulty_file_system.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

// A record outlives its block: compared by value.
struct Found {
  std::string text;
  std::uint64_t offset = 0;
  std::string error;

  friend bool operator==(const Found&, const Found&) = default;
};

std::ostream& operator<<(std::ostream& out, const Found& found) {
  return out << found.offset << ":" << found.text << found.error;
}

void Append(const RecordBlock& block, std::vector<Found>* all) {
  for (const RawRecord& record : block.records) {
    all->push_back({std::string(record.text), record.offset,
                    record.error < 0 ? "" : block.errors[static_cast<std::size_t>(record.error)]});
  }
}

std::string Gzip(std::string_view bytes) {
  z_stream zlib{};
  deflateInit2(&zlib, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&zlib, bytes.size()) + 64, '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  zlib.avail_in = static_cast<uInt>(bytes.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&zlib, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - zlib.avail_out);
  deflateEnd(&zlib);
  return out;
}

std::string Zstd(std::string_view bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
}

class JsonlTest : public testing::Test {
 protected:
  Result<std::shared_ptr<ShardReader>> Open(std::string_view name, std::string_view content,
                                            const ReadOptions& options = {}) {
    return OpenJsonlShard(*fs_, folder_.Write(name, content), options);
  }
  // All records, in blocks of `records` or `bytes`.
  Result<std::vector<Found>> Read(ShardReader& shard, std::uint64_t records = 1000,
                                  std::uint64_t bytes = 1U << 20, std::uint64_t offset = 0) {
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<UnitReader> unit, shard.OpenUnit(0, offset));
    std::vector<Found> all;
    RecordBlock block;
    while (true) {
      WS_RETURN_IF_ERROR(unit->Next(records, bytes, &block));
      EXPECT_TRUE(!block.records.empty() || block.end_of_unit);
      Append(block, &all);
      if (block.end_of_unit) return all;
    }
  }
  std::vector<Found> ReadText(std::string_view content, const ReadOptions& options = {}) {
    const auto shard = Open("a.jsonl", content, options);
    EXPECT_TRUE(shard.ok()) << shard.status().ToString();
    const auto found = Read(**shard);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    return found.ok() ? *found : std::vector<Found>();
  }
  std::string ErrorOf(std::string_view line, const ReadOptions& options = {}) {
    const auto found = ReadText(std::string(line) + "\n", options);
    return found.size() == 1 && found[0].text.empty() ? found[0].error : "not one bad record";
  }

  TemporaryFolder folder_;
  std::shared_ptr<FileSystem> fs_ = LocalFileSystem();
};

TEST_F(JsonlTest, ReadsTextsAndTheirOffsets) {
  EXPECT_EQ(ReadText("{\"text\":\"a\"}\n{\"id\":1,\"text\":\"b\\n\\u00e9\"}\n"),
            (std::vector<Found>{{"a", 0, ""}, {"b\n\xc3\xa9", 13, ""}}));
}

TEST_F(JsonlTest, LineEndsBlankLinesAndALastLineWithoutNewline) {
  EXPECT_EQ(ReadText("\n \t\r\n{\"text\":\"a\"}\r\n\r\n  {\"text\":\"b\"} \n\n{\"text\":\"\"}"),
            (std::vector<Found>{{"a", 5, ""}, {"b", 21, ""}, {"", 38, ""}}));
  EXPECT_EQ(ReadText("{\"text\":\"a\"}\n   ").size(), 1U);
}

TEST_F(JsonlTest, AnEmptyFileHasNoRecords) {
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst"}) {
    const auto shard = Open(name, "");
    ASSERT_TRUE(shard.ok());
    EXPECT_EQ((*shard)->units().size(), 1U);
    EXPECT_EQ((*shard)->units()[0].bytes, 0U);
    EXPECT_FALSE((*shard)->units()[0].records.has_value());
    EXPECT_EQ(Read(**shard)->size(), 0U);
  }
  EXPECT_TRUE(ReadText("\n\n \n").empty());
}

TEST_F(JsonlTest, AByteOrderMarkIsSkippedAtTheStartOnly) {
  EXPECT_EQ(ReadText("\xef\xbb\xbf{\"text\":\"a\"}\n"), (std::vector<Found>{{"a", 3, ""}}));
  EXPECT_TRUE(ReadText("\xef\xbb\xbf").empty());
  const auto found = ReadText("{\"text\":\"a\"}\n\xef\xbb\xbf{\"text\":\"b\"}\n");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].error, "invalid JSON: a byte order mark inside the file");
}

TEST_F(JsonlTest, BadRecordsSayWhy) {
  EXPECT_EQ(ErrorOf("{\"a\":1,\"b\":2}"), "no key 'text' (keys: 'a', 'b')");
  EXPECT_EQ(ErrorOf("{}"), "no key 'text' (no keys)");
  EXPECT_EQ(ErrorOf("{\"text\":null}"), "key 'text' is null, not a string");
  EXPECT_EQ(ErrorOf("{\"text\":[\"a\"]}"), "key 'text' is an array, not a string");
  EXPECT_EQ(ErrorOf("{\"text\":1.5}"), "key 'text' is a number, not a string");
  EXPECT_EQ(ErrorOf("[\"text\"]"), "it is an array, not an object");
  EXPECT_EQ(ErrorOf("\"text\""), "it is a string, not an object");
  EXPECT_EQ(ErrorOf("{\"text\":\"\xff\"}"), "invalid UTF-8");
  EXPECT_EQ(ErrorOf("{\"text\":\"a\",\"other\":\"\xc3\"}"), "invalid UTF-8");
  EXPECT_EQ(ErrorOf("{\"text\":\"a\"} {\"text\":\"b\"}"), "invalid JSON");
  EXPECT_EQ(ErrorOf("{\"text\":\"a\""), "invalid JSON");
  EXPECT_EQ(ErrorOf("{\"text\":\"a"), "invalid JSON: a string is not closed");
  EXPECT_EQ(ErrorOf("{\"text\":\"a\x01\"}"),
            "invalid JSON: a string holds an unescaped control character");
  EXPECT_EQ(ErrorOf("{\"text\":\"\\x\"}"), "invalid JSON: a string holds an invalid escape");
  EXPECT_EQ(ErrorOf("{\"text\":\"a\",\"n\":01}"),
            "invalid JSON: a number is malformed or out of range");
  EXPECT_NE(ErrorOf("{\"text\":\"\\ud800\"}"), "");
  EXPECT_NE(ErrorOf("{\"text\":\"\\udc00\"}"), "");
  EXPECT_NE(ErrorOf("{\"text\":\"\\ud800\\u0041\"}"), "");
  EXPECT_NE(ErrorOf("NaN"), "");
  EXPECT_EQ(ErrorOf("{\"\\u001b\":1}"), "no key 'text' (keys: '\\x1b')");  // no escape codes
}

TEST_F(JsonlTest, ABadLineDoesNotReachTheNextOne) {
  const auto found = ReadText("{\"text\": \"a\n{\"text\":\"b\"}\n{\"a\": 1\n{\"text\":\"c\"}\n");
  ASSERT_EQ(found.size(), 4U);
  EXPECT_NE(found[0].error, "");
  EXPECT_EQ(found[1].text, "b");
  EXPECT_NE(found[2].error, "");
  EXPECT_EQ(found[3].text, "c");
}

TEST_F(JsonlTest, UnicodeAndNulBytesComeThrough) {
  const auto found = ReadText("{\"text\":\"\\ud83d\\ude00\\u0000\xf0\x9f\x98\x80\"}");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].text, std::string("\xf0\x9f\x98\x80\0\xf0\x9f\x98\x80", 9));
}

TEST_F(JsonlTest, NestingIsLimited) {
  const auto nested = [](int depth) {
    return "{\"text\":\"a\",\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(ReadText(nested(100))[0].error, "");
  EXPECT_EQ(ErrorOf(nested(200)), "invalid JSON: nested more than 128 deep");
  EXPECT_NE(ErrorOf("{\"text\":\"a\",\"x\":" + std::string(1000000, '[')), "");
}

TEST_F(JsonlTest, OfEqualKeysTheFirstCounts) {
  EXPECT_EQ(ReadText("{\"text\":\"a\",\"text\":\"b\"}")[0].text, "a");
  EXPECT_EQ(ErrorOf("{\"text\":1,\"text\":\"b\"}"), "key 'text' is a number, not a string");
}

TEST_F(JsonlTest, ADottedKeyIsAKeyOrAPath) {
  const ReadOptions options{.text = "meta.text"};
  EXPECT_EQ(ReadText("{\"meta\":{\"text\":\"a\"}}", options)[0].text, "a");
  EXPECT_EQ(ReadText("{\"meta\":{\"text\":\"a\"},\"meta.text\":\"b\"}", options)[0].text, "b");
  EXPECT_EQ(ErrorOf("{\"meta\":\"x\"}", options), "no key 'meta.text' (keys: 'meta')");
  EXPECT_EQ(ErrorOf("{\"meta\":{\"text\":null}}", options),
            "key 'meta.text' is null, not a string");
}

TEST_F(JsonlTest, BlocksCloseOnRecordsOrOnRawBytes) {
  // Lines of 12 bytes; the carriage return of the third counts, its newline does not.
  const auto shard =
      Open("a.jsonl", "{\"text\":\"a\"}\n\n{\"text\":\"b\"}\n{\"text\":\"c\"}\r\n{\"text\":\"d\"}");
  ASSERT_TRUE(shard.ok());
  const auto unit = (*shard)->OpenUnit(0, 0);
  ASSERT_TRUE(unit.ok());
  RecordBlock block;
  ASSERT_TRUE((*unit)->Next(2, 1000, &block).ok());
  EXPECT_EQ(block.records.size(), 2U);
  EXPECT_EQ(block.raw_bytes, 24U);
  EXPECT_EQ(block.next_offset, 27U);
  EXPECT_FALSE(block.end_of_unit);
  ASSERT_TRUE((*unit)->Next(1000, 13, &block).ok());
  EXPECT_EQ(block.records.size(), 1U);
  EXPECT_EQ(block.raw_bytes, 13U);
  EXPECT_EQ(block.next_offset, 41U);
  ASSERT_TRUE((*unit)->Next(1000, 13, &block).ok());
  EXPECT_EQ(block.records.size(), 1U);
  EXPECT_EQ(block.next_offset, 53U);
  EXPECT_TRUE(block.end_of_unit);
  ASSERT_TRUE((*unit)->Next(1000, 13, &block).ok());
  EXPECT_TRUE(block.records.empty());
  EXPECT_TRUE(block.end_of_unit);
  EXPECT_EQ(block.next_offset, 53U);
  EXPECT_EQ(Read(**shard, 1, 1, 53)->size(), 0U);
}

TEST_F(JsonlTest, ALongLineIsOneBadRecordAndIsNotKept) {
  const ReadOptions options{.record_bytes = 20};
  const std::string exact = "{\"text\":\"" + std::string(9, 'x') + "\"}";  // 20 bytes
  const auto shard =
      Open("a.jsonl", exact + "\n" + exact + " \n" + std::string(5'000'000, 'x') + "\n" + exact,
           options);
  ASSERT_TRUE(shard.ok());
  const auto unit = (*shard)->OpenUnit(0, 0);
  RecordBlock block;
  ASSERT_TRUE((*unit)->Next(1000, 1U << 20, &block).ok());
  ASSERT_EQ(block.records.size(), 3U);
  EXPECT_EQ(block.records[0].error, -1);
  EXPECT_EQ(block.errors.at(0), "the line has 21 bytes, more than errors.record_bytes = 20");
  EXPECT_EQ(block.errors.at(1), "the line has 5000000 bytes, more than errors.record_bytes = 20");
  EXPECT_EQ(block.raw_bytes, 5'000'041U);  // the long line closed the block
  ASSERT_TRUE((*unit)->Next(1000, 1U << 20, &block).ok());
  ASSERT_EQ(block.records.size(), 1U);
  EXPECT_EQ(block.records[0].text, std::string(9, 'x'));
  EXPECT_TRUE(block.end_of_unit);
}

TEST_F(JsonlTest, ALongBlankLineIsNoRecord) {
  const ReadOptions options{.record_bytes = 20};
  const std::string blanks(3'000'000, ' ');
  EXPECT_EQ(ReadText(blanks + "\n{\"text\":\"a\"}\n" + blanks, options),
            (std::vector<Found>{{"a", 3'000'001, ""}}));
  EXPECT_EQ(ReadText(blanks + "{\"text\":\"a\"}", options).size(), 1U);
}

TEST_F(JsonlTest, ALineOfManyMegabytesIsReadWhole) {
  const std::string text(9'000'000, 'y');  // NOLINT(bugprone-string-constructor)
  const auto found = ReadText("{\"text\":\"a\"}\n{\"text\":\"" + text + "\"}\n{\"text\":\"b\"}\n");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_TRUE(found[1].text == text);
  EXPECT_EQ(found[2].text, "b");
}

TEST_F(JsonlTest, AHundredMegabyteLineInGzipStaysSmall) {
  const std::string member =
      Gzip(std::string(10'000'000, 'z'));  // NOLINT(bugprone-string-constructor)
  std::string content;
  for (int i = 0; i < 10; ++i) content += member;
  content += Gzip("\n{\"text\":\"a\"}\n");
  const auto shard = Open("a.jsonl.gz", content, {.record_bytes = 1000});
  const auto found = Read(**shard);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[0].error,
            "the line has 100000000 bytes, more than errors.record_bytes = 1000");
  EXPECT_EQ((*found)[1], (Found{"a", 100000001, ""}));
}

TEST_F(JsonlTest, ConcatenatedMembersAndFramesReadAsOne) {
  const std::string one = "{\"text\":\"a\"}\n{\"te";
  const std::string two = "xt\":\"b\"}\n";
  const std::vector<Found> expected = {{"a", 0, ""}, {"b", 13, ""}};
  EXPECT_EQ(*Read(**Open("a.jsonl.gz", Gzip(one) + Gzip("") + Gzip(two))), expected);
  EXPECT_EQ(*Read(**Open("b.jsonl.gz", Gzip(one) + Gzip(two) + std::string(1000, '\0'))), expected);
  const std::string skippable("\x50\x2a\x4d\x18\x03\0\0\0abc", 11);
  EXPECT_EQ(*Read(**Open("a.jsonl.zst", Zstd(one) + Zstd("") + skippable + Zstd(two))), expected);
  EXPECT_EQ(*Read(**Open("a.JSONL.ZST", Zstd(one) + Zstd(two))), expected);
}

TEST_F(JsonlTest, BrokenCompressionIsAStatusWithFileAndByte) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "{\"text\":\"" + std::to_string(i * 7919) + "\"}\n";
  const std::string gzip = Gzip(lines);
  const std::string zstd = Zstd(lines);
  const auto broken = [&](const char* name, const std::string& content, const char* what) {
    const auto shard = Open(name, content);
    ASSERT_TRUE(shard.ok());
    const Status status = Read(**shard).status();
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(" at byte "), std::string::npos) << status.message();
  };
  broken("a.jsonl.gz", gzip.substr(0, gzip.size() / 2), "ends too early");
  broken("a.jsonl.gz", gzip.substr(0, gzip.size() - 1), "ends too early");
  broken("a.jsonl.gz", gzip.substr(0, 5), "ends too early");
  broken("a.jsonl.gz", lines, "corrupt");
  broken("a.jsonl.gz", gzip + "junk", "corrupt");
  broken("a.jsonl.gz", gzip + std::string("\0\0junk", 6), "follow zero padding");
  broken("a.jsonl.zst", zstd.substr(0, zstd.size() / 2), "ends too early");
  broken("a.jsonl.zst", zstd.substr(0, zstd.size() - 1), "ends too early");
  broken("a.jsonl.zst", zstd.substr(0, 2), "ends too early");
  broken("a.jsonl.zst", lines, "cannot be decompressed");
  broken("a.jsonl.zst", zstd + "junk!", "cannot be decompressed");
  std::string flipped = gzip;
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  broken("a.jsonl.gz", flipped, "incorrect data check");
}

TEST_F(JsonlTest, AZstandardWindowBeyondTheBoundIsRefused) {
  // A frame header with a window of 2^31: 4 bytes magic, descriptor 0, window descriptor 21 << 3.
  const auto shard = Open("a.jsonl.zst", std::string("\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", 9));
  const Status status = Read(**shard).status();
  EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
  EXPECT_NE(status.message().find("memory"), std::string::npos) << status.message();
}

TEST_F(JsonlTest, RecordsBeforeADefectAreDelivered) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "{\"text\":\"" + std::to_string(i * 7919) + "\"}\n";
  const std::string gzip = Gzip(lines);
  const auto shard = Open("a.jsonl.gz", gzip.substr(0, gzip.size() - 1));
  const auto unit = (*shard)->OpenUnit(0, 0);
  RecordBlock block;
  std::size_t read = 0;
  Status status;
  while ((status = (*unit)->Next(100, 1U << 20, &block)).ok()) {
    EXPECT_FALSE(block.end_of_unit);
    read += block.records.size();
  }
  EXPECT_EQ(read, 20000U);
  EXPECT_EQ((*unit)->Next(100, 1U << 20, &block).code(), StatusCode::kDataCorruption);  // stays
}

TEST_F(JsonlTest, ACompressedFileWithoutTheSuffixIsNamed) {
  EXPECT_EQ(Open("a.jsonl", Gzip("{}")).status().code(), StatusCode::kInvalidArgument);
  const Status status = Open("a.jsonl", Zstd("{}")).status();
  EXPECT_NE(status.message().find(".zst"), std::string::npos);
}

TEST_F(JsonlTest, WrongOffsetsAndUnitsAreRefused) {
  const std::string lines = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
  const auto plain = Open("a.jsonl", lines);
  const auto gzip = Open("a.jsonl.gz", Gzip(lines));
  for (const auto& shard : {*plain, *gzip}) {
    EXPECT_EQ(shard->OpenUnit(0, 5).status().code(), StatusCode::kDataCorruption);
    EXPECT_EQ(shard->OpenUnit(0, 1000).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(shard->OpenUnit(0, UINT64_MAX).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(shard->OpenUnit(1, 0).status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(shard->OpenUnit(0, 13).ok());
    EXPECT_TRUE(shard->OpenUnit(0, 26).ok());
  }
}

TEST_F(JsonlTest, OptionsAreChecked) {
  EXPECT_FALSE(Open("a.jsonl", "", {.text = ""}).ok());
  EXPECT_FALSE(Open("a.jsonl", "", {.record_bytes = 0}).ok());
  EXPECT_FALSE(Open("a.jsonl", "", {.record_bytes = 2ULL << 30}).ok());
  EXPECT_EQ(OpenJsonlShard(*fs_, folder_ / "absent.jsonl", {}).status().code(),
            StatusCode::kNotFound);
}

TEST_F(JsonlTest, AFileThatGrowsIsReadToTheSizeFoundAtOpen) {
  const auto shard = Open("a.jsonl", "{\"text\":\"a\"}\n");
  folder_.Write("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n");
  EXPECT_EQ(Read(**shard)->size(), 1U);
}

TEST_F(JsonlTest, AFileThatShrinksIsAStatus) {
  const auto shard = Open("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n");
  folder_.Write("a.jsonl", "{\"text\":\"a\"}\n");
  const Status status = Read(**shard).status();
  EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
  EXPECT_NE(status.message().find("truncated while in use"), std::string::npos);
}

TEST_F(JsonlTest, ReadErrorsKeepErrno) {
  fs_ = std::make_shared<FaultyFileSystem>(LocalFileSystem(), std::vector<Fault>{{.first = 1}});
  const auto shard = Open("a.jsonl", "{\"text\":\"a\"}\n");
  ASSERT_TRUE(shard.ok());
  const Status status = (*shard)->OpenUnit(0, 0).status();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_EQ(status.error_number(), EIO);
}

TEST_F(JsonlTest, UnitsOfOneShardAreReadByManyThreads) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += "{\"text\":\"" + std::to_string(i) + "\"}\n";
  const auto shard = Open("a.jsonl.gz", Gzip(lines));
  const auto expected = Read(**shard);
  std::vector<std::vector<Found>> found(4);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (auto& records : found) {
    threads.emplace_back([&] { records = *Read(**shard, 100); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& records : found) EXPECT_EQ(records, *expected);
}

// Random files: good and bad records, blank lines, both line ends, with or without a last newline.
std::string RandomContent() {
  const auto lines = *rc::gen::container<std::vector<std::string>>(
      rc::gen::oneOf(rc::gen::map(rc::gen::container<std::string>(rc::gen::inRange('a', 'z')),
                                  [](const std::string& s) { return "{\"text\":\"" + s + "\"}"; }),
                     rc::gen::element<std::string>("", " ", "\t\r", "{", "null", "{\"text\":1}",
                                                   "\xff", "{\"text\":\"\\u00e9\"}",
                                                   "{\"text\":\"" + std::string(100, 'x') + "\"}"),
                     rc::gen::arbitrary<std::string>()));
  std::string content = *rc::gen::element<std::string>("", "\xef\xbb\xbf");
  for (const std::string& line : lines) {
    content += line + *rc::gen::element<std::string>("\n", "\r\n");
  }
  if (*rc::gen::arbitrary<bool>()) content += "{\"text\":\"last\"}";
  return content;
}

RC_GTEST_FIXTURE_PROP(JsonlTest, EveryRestartGivesTheSameRecords, ()) {
  const std::string content = RandomContent();
  const ReadOptions options{.record_bytes = 64};
  const auto records = *rc::gen::inRange<std::uint64_t>(1, 8);
  const auto bytes = *rc::gen::inRange<std::uint64_t>(1, 200);
  const std::size_t cut = content.size() / 2;
  const std::vector<std::pair<const char*, std::string>> files = {
      {"p.jsonl", content},
      {"p.jsonl.gz", Gzip(content.substr(0, cut)) + Gzip(content.substr(cut))},
      {"p.jsonl.zst", Zstd(content.substr(0, cut)) + Zstd(content.substr(cut))}};
  std::vector<Found> expected;
  for (const auto& [name, stored] : files) {
    const auto shard = Open(name, stored, options);
    // The plain file may begin like a compressed one by chance.
    if (!shard.ok() && shard.status().code() == StatusCode::kInvalidArgument) RC_DISCARD("magic");
    RC_ASSERT(shard.ok());
    const auto whole = Read(**shard, 1U << 20, 1U << 30);
    RC_ASSERT(whole.ok());
    if (expected.empty()) expected = *whole;
    RC_ASSERT(*whole == expected);
    RC_ASSERT(*Read(**shard, records, bytes) == expected);

    std::vector<Found> pieces;
    std::uint64_t offset = 0;
    while (true) {
      const auto unit = (*shard)->OpenUnit(0, offset);
      RC_ASSERT(unit.ok());
      RecordBlock block;
      RC_ASSERT((*unit)->Next(records, bytes, &block).ok());
      Append(block, &pieces);
      if (block.end_of_unit) break;
      RC_ASSERT(block.next_offset > offset);
      offset = block.next_offset;
    }
    RC_ASSERT(pieces == expected);
  }
}

RC_GTEST_FIXTURE_PROP(JsonlTest, ShortReadsGiveTheSameRecords, ()) {
  const std::string content = RandomContent();
  const std::string gzip = Gzip(content);
  const std::string zstd = Zstd(content);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto bytes = *rc::gen::inRange<std::uint64_t>(1, 30);
  const auto faulty = std::make_shared<FaultyFileSystem>(
      LocalFileSystem(),
      std::vector<Fault>{{.kind = FaultKind::kShortRead, .probability = 0.7, .bytes = bytes}},
      seed);
  for (const auto& [name, stored] : {std::pair<const char*, std::string>{"s.jsonl", content},
                                     {"s.jsonl.gz", gzip},
                                     {"s.jsonl.zst", zstd}}) {
    const auto shard = Open(name, stored);
    if (!shard.ok()) RC_DISCARD("magic");
    const auto expected = Read(**shard);
    const auto disturbed = OpenJsonlShard(*faulty, folder_ / name, {});
    RC_ASSERT(disturbed.ok());
    const auto found = Read(**disturbed, 3, 100);
    RC_ASSERT(found.ok());
    RC_ASSERT(*found == *expected);
  }
}

RC_GTEST_FIXTURE_PROP(JsonlTest, DamagedCompressionNeverCrashes, ()) {
  const std::string content = RandomContent();
  const bool gzip = *rc::gen::arbitrary<bool>();
  std::string stored = gzip ? Gzip(content) : Zstd(content);
  const auto at = *rc::gen::inRange<std::size_t>(0, stored.size());
  stored[at] = static_cast<char>(stored[at] ^ *rc::gen::inRange(1, 256));
  const auto shard = Open(gzip ? "d.jsonl.gz" : "d.jsonl.zst", stored);
  RC_ASSERT(shard.ok());
  const auto found = Read(**shard);
  RC_TAG(found.ok() ? "read" : "refused");
}

}  // namespace
}  // namespace widestream
