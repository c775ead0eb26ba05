#include "engine/formats/text_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

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

class TextFileTest : public testing::Test {
 protected:
  // The text, or "error: " and why there is none.
  std::string Read(const char* name, std::string_view content, std::uint64_t record_bytes = 100) {
    ReadOptions options;
    options.record_bytes = record_bytes;
    const auto shard = OpenTextShard(*LocalFileSystem(), folder_.Write(name, content), options);
    EXPECT_TRUE(shard.ok()) << shard.status().ToString();
    const auto unit = (*shard)->OpenUnit(0, 0);
    RecordBlock block;
    EXPECT_TRUE((*unit)->Next(10, 10, &block).ok());
    EXPECT_TRUE(block.end_of_unit);
    EXPECT_EQ(block.records.size(), 1U);
    EXPECT_EQ(block.next_offset, 1U);
    RecordBlock after;
    EXPECT_TRUE((*(*shard)->OpenUnit(0, 1))->Next(10, 10, &after).ok());
    EXPECT_TRUE(after.records.empty() && after.end_of_unit);
    if (block.records[0].error >= 0) return "error: " + block.errors[0];
    return std::string(block.records[0].text);
  }

  TemporaryFolder folder_;
};

TEST_F(TextFileTest, AFileIsADocument) {
  EXPECT_EQ(Read("a.txt", "one\ntwo\r\n"), "one\ntwo\r\n");
  EXPECT_EQ(Read("empty.txt", ""), "");
  EXPECT_EQ(Read("mark.txt", "\xef\xbb\xbfx"), "x");
  EXPECT_EQ(Read("nul.txt", std::string_view("a\0b", 3)), std::string("a\0b", 3));
  std::string text;
  text.resize(200'000, 'x');
  EXPECT_EQ(Read("long.txt", text, text.size()), text);
  EXPECT_EQ(Read("a.txt.gz", Gzip("packed")), "packed");
}

TEST_F(TextFileTest, BadFilesAreBadRecords) {
  EXPECT_EQ(Read("a.txt", "\xff\xfe"), "error: invalid UTF-8");
  EXPECT_EQ(Read("cut.txt", "\xe2\x82"), "error: invalid UTF-8");
  EXPECT_EQ(Read("long.txt", std::string(101, 'x')),
            "error: the document has more than errors.record_bytes = 100 bytes");
  std::string bomb;
  bomb.resize(10'000'000, 'x');
  // Ten megabytes that are ten kilobytes on disk: no more than the limit is unpacked.
  EXPECT_EQ(Read("bomb.txt.gz", Gzip(bomb)),
            "error: the document has more than errors.record_bytes = 100 bytes");
  const std::string packed = Gzip("packed and cut");
  const std::string cut = Read("cut.txt.gz", std::string_view(packed).substr(0, 15));
  EXPECT_EQ(cut.substr(0, 7), "error: ");
  EXPECT_NE(cut.find("cut.txt.gz"), std::string::npos) << cut;
}

TEST_F(TextFileTest, OtherPlacesAreRefused) {
  const auto shard = OpenTextShard(*LocalFileSystem(), folder_.Write("a.txt", "x"), ReadOptions());
  EXPECT_EQ((*shard)->OpenUnit(1, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*shard)->OpenUnit(0, 2).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace widestream
