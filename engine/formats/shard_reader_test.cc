#include "engine/formats/shard_reader.h"

#include <gtest/gtest.h>

#include "engine/formats/names.h"

namespace widestream {
namespace {

TEST(FormatFromName, KnowsSuffixesInAnyCase) {
  for (const char* name : {"/d/a.jsonl", "/d/a.ndjson", "/d/A.JSON", "/d/a.jsonl.gz",
                           "/d/a.jsonl.zst", "/d/a.json.ZSTD"}) {
    EXPECT_EQ(*FormatFromName("", name), Format::kJsonl) << name;
  }
  EXPECT_EQ(*FormatFromName("", "/d/a.parquet"), Format::kParquet);
  EXPECT_EQ(*FormatFromName("jsonl", "/d/part-0000"), Format::kJsonl);
  EXPECT_EQ(*FormatFromName("parquet", "/d/part-0000.gz"), Format::kParquet);
  EXPECT_EQ(*FormatFromName("", "/d/a_text_document.IDX"), Format::kMegatron);
  EXPECT_EQ(*FormatFromName("megatron", "/d/a.bin"), Format::kMegatron);
  EXPECT_EQ(*FormatFromName("", "/d/a.txt.gz"), Format::kText);
  EXPECT_EQ(*FormatFromName("", "/d/a-000.tar"), Format::kWebDataset);
  EXPECT_FALSE(FormatFromName("megatron", "/d/README").ok());
  EXPECT_TRUE(CountsAreKnown(Format::kParquet));
  EXPECT_FALSE(CountsAreKnown(Format::kJsonl));
}

TEST(FormatFromName, RefusesTheRestAndListsWhatIsKnown) {
  for (const char* name :
       {"/d/a.csv", "/d/a.bin", "/d/a.idx.gz", "/d/a", "/d/a.gz", "/d/a.parquet.gz", ""}) {
    EXPECT_EQ(FormatFromName("", name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  const Status status = FormatFromName("", "/d/a.csv").status();
  EXPECT_NE(status.message().find(".parquet"), std::string::npos);
  EXPECT_NE(status.message().find("`jsonl`"), std::string::npos);
  EXPECT_FALSE(FormatFromName("csv", "/d/a.jsonl").ok());
}

TEST(RecordBlock, ClearForgetsAll) {
  RecordBlock block;
  block.records.resize(3);
  block.errors = {"x"};
  block.owners.resize(1);
  block.raw_bytes = block.next_offset = 5;
  block.end_of_unit = true;
  block.Clear();
  EXPECT_TRUE(block.records.empty() && block.errors.empty() && block.owners.empty());
  EXPECT_EQ(block.raw_bytes + block.next_offset, 0U);
  EXPECT_FALSE(block.end_of_unit);
}

TEST(Names, QuotedWithoutControlCharacters) {
  EXPECT_EQ(QuoteName("text"), "'text'");
  EXPECT_EQ(QuoteName("a\n\xff"), "'a\\x0a\\xff'");
  EXPECT_EQ(QuoteName(std::string(100, 'a')), "'" + std::string(64, 'a') + "...'");
}

TEST(Names, NearestIsNearOrNothing) {
  const std::vector<std::string> names = {"id", "text", "title", "language"};
  EXPECT_EQ(NearestName("txt", names), "text");
  EXPECT_EQ(NearestName("Text", names), "text");
  EXPECT_EQ(NearestName("langage", names), "language");
  EXPECT_EQ(NearestName("payload", names), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace widestream
