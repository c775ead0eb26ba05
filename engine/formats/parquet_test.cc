#include "engine/formats/parquet.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <thread>

#include "engine/storage/faulty_file_system.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

struct Found {
  std::string text;
  bool bad = false;

  friend bool operator==(const Found&, const Found&) = default;
};

std::ostream& operator<<(std::ostream& out, const Found& found) {
  return out << (found.bad ? "(bad)" : found.text.substr(0, 80));
}

void Append(const RecordBlock& block, std::vector<Found>* all) {
  for (const RawRecord& record : block.records) {
    all->push_back({std::string(record.text), record.error >= 0});
  }
}

std::string PathOf(const std::string& name) { return std::string(WS_PARQUET_FILES) + "/" + name; }

ReadOptions OptionsOf(const std::string& name) {
  ReadOptions options;
  if (name == "nested") options.text = "meta.text";
  return options;
}

Result<std::shared_ptr<ShardReader>> Open(const std::string& path, const ReadOptions& options = {},
                                          std::shared_ptr<FileSystem> fs = LocalFileSystem()) {
  return OpenShard(std::move(fs), Format::kParquet, path, options);
}

Result<std::vector<Found>> ReadAll(ShardReader& shard, std::uint64_t records) {
  std::vector<Found> all;
  for (std::uint64_t unit = 0; unit < shard.units().size(); ++unit) {
    EXPECT_EQ(shard.units()[unit].first_record, all.size());
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<UnitReader> reader, shard.OpenUnit(unit, 0));
    RecordBlock block;
    do {
      WS_RETURN_IF_ERROR(reader->Next(records, 1, &block));
      EXPECT_TRUE(block.end_of_unit || block.records.size() == records);
      for (std::size_t i = 0; i < block.records.size(); ++i) {
        EXPECT_EQ(block.records[i].offset, all.size() + i);
      }
      Append(block, &all);
    } while (!block.end_of_unit);
    EXPECT_EQ(shard.units()[unit].first_record + shard.units()[unit].records.value_or(0),
              all.size());
  }
  return all;
}

// The records that the generator wrote beside the file.
std::vector<Found> Expected(const std::string& name) {
  std::vector<Found> all;
  const auto shard = OpenShard(LocalFileSystem(), Format::kJsonl, PathOf(name + ".jsonl"), {});
  EXPECT_TRUE(shard.ok()) << shard.status().ToString();
  const auto reader = (*shard)->OpenUnit(0, 0);
  RecordBlock block;
  do {
    EXPECT_TRUE((*reader)->Next(1U << 20, 1U << 30, &block).ok());
    Append(block, &all);
  } while (!block.end_of_unit);
  return all;
}

std::vector<std::string> FileNames() {
  std::vector<std::string> names;
  const auto files = Glob(*LocalFileSystem(), PathOf("*.jsonl"));
  EXPECT_TRUE(files.ok()) << files.status().ToString();
  for (const FileInfo& file : *files) {
    const std::size_t slash = file.path.rfind('/');
    names.push_back(file.path.substr(slash + 1, file.path.size() - slash - 7));
  }
  return names;
}

TEST(Parquet, FilesOfEveryKindGiveTheirRecords) {
  EXPECT_GE(FileNames().size(), 25U);
  for (const std::string& name : FileNames()) {
    SCOPED_TRACE(name);
    const auto shard = Open(PathOf(name + ".parquet"), OptionsOf(name));
    ASSERT_TRUE(shard.ok()) << shard.status().ToString();
    const std::vector<Found> expected = Expected(name);
    for (const std::uint64_t records : {1U, 10U, 100000U}) {
      const auto found = ReadAll(**shard, records);
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      EXPECT_EQ(*found, expected);
    }
  }
}

TEST(Parquet, UnitsSayRecordsAndBytesOfTheColumn) {
  const auto shard = Open(PathOf("codec_none.parquet"));
  ASSERT_TRUE(shard.ok());
  ASSERT_EQ((*shard)->units().size(), 11U);  // 1000 records in groups of 97
  EXPECT_EQ((*shard)->units()[0].records, 97U);
  EXPECT_EQ((*shard)->units()[10].records, 30U);
  EXPECT_EQ((*shard)->units()[10].first_record, 970U);
  EXPECT_GT((*shard)->units()[0].bytes, 100U);
  const auto compressed = Open(PathOf("codec_zstd.parquet"));
  EXPECT_EQ((*compressed)->units()[0].bytes, (*shard)->units()[0].bytes);
  EXPECT_EQ((*shard)->Schema(), (std::vector<std::string>{"id: int64", "text: string"}));
}

TEST(Parquet, EmptyFilesAndRowGroups) {
  EXPECT_TRUE((*Open(PathOf("no_row_groups.parquet")))->units().empty());
  const auto shard = Open(PathOf("empty_row_groups.parquet"));
  ASSERT_TRUE(shard.ok());
  ASSERT_EQ((*shard)->units().size(), 6U);
  const auto reader = (*shard)->OpenUnit(2, 0);
  ASSERT_TRUE(reader.ok());
  RecordBlock block;
  EXPECT_TRUE((*reader)->Next(10, 10, &block).ok());
  EXPECT_TRUE(block.end_of_unit && block.records.empty());
  EXPECT_TRUE((*reader)->Next(10, 10, &block).ok());
  EXPECT_FALSE((*shard)->OpenUnit(2, 1).ok());
}

RC_GTEST_PROP(Parquet, EveryRestartGivesTheSameRecords, ()) {
  const std::string name = *rc::gen::elementOf(FileNames());
  const auto records = *rc::gen::inRange<std::uint64_t>(1, 40);
  const auto shard = Open(PathOf(name + ".parquet"), OptionsOf(name));
  RC_ASSERT(shard.ok());
  const std::vector<Found> expected = Expected(name);
  std::vector<Found> found;
  for (std::uint64_t unit = 0; unit < (*shard)->units().size(); ++unit) {
    RecordBlock block;
    do {
      const auto reader = (*shard)->OpenUnit(unit, block.next_offset);
      RC_ASSERT(reader.ok());
      RC_ASSERT((*reader)->Next(records, 0, &block).ok());
      Append(block, &found);
    } while (!block.end_of_unit);
    block.Clear();
  }
  RC_ASSERT(found == expected);
}

TEST(Parquet, ShortReadsGiveTheSameRecords) {
  const auto fs = std::make_shared<FaultyFileSystem>(
      LocalFileSystem(), std::vector<Fault>{{.kind = FaultKind::kShortRead, .bytes = 700}});
  const auto shard = Open(PathOf("small_pages.parquet"), {}, fs);
  ASSERT_TRUE(shard.ok()) << shard.status().ToString();
  EXPECT_EQ(*ReadAll(**shard, 100), Expected("small_pages"));
  EXPECT_GT(fs->faults_injected(), 0U);
}

TEST(Parquet, ReadErrorsKeepErrnoWhereverTheyHappen) {
  bool finished = false;
  for (std::uint64_t first = 0; !finished; ++first) {
    ASSERT_LT(first, 100U);
    const auto fs =
        std::make_shared<FaultyFileSystem>(LocalFileSystem(), std::vector<Fault>{{.first = first}});
    const auto shard = Open(PathOf("codec_none.parquet"), {}, fs);
    const auto found =
        shard.ok() ? ReadAll(**shard, 100) : Result<std::vector<Found>>(shard.status());
    finished = found.ok();
    if (finished) continue;
    EXPECT_EQ(found.status().code(), StatusCode::kIoError) << found.status().ToString();
    EXPECT_EQ(found.status().error_number(), EIO);
    EXPECT_NE(found.status().message().find("codec_none.parquet"), std::string::npos);
  }
}

TEST(Parquet, ATextBeyondTheLimitIsOneBadRecord) {
  const auto shard = Open(PathOf("long_text.parquet"), {.record_bytes = 1000});
  ASSERT_TRUE(shard.ok());
  const auto reader = (*shard)->OpenUnit(0, 0);
  RecordBlock block;
  ASSERT_TRUE((*reader)->Next(10, 10, &block).ok());
  ASSERT_EQ(block.records.size(), 3U);
  EXPECT_EQ(block.records[0].text, "short");
  EXPECT_EQ(block.errors.at(0), "the text has 3000000 bytes, more than errors.record_bytes = 1000");
  EXPECT_EQ(block.records[1].offset, 1U);
  EXPECT_EQ(block.records[2].text, "short again");
  EXPECT_EQ(block.raw_bytes, 3'000'016U);
}

TEST(Parquet, BadRecordsSayWhy) {
  RecordBlock block;
  const auto utf8 = Open(PathOf("invalid_utf8.parquet"));
  ASSERT_TRUE((*(*utf8)->OpenUnit(0, 0))->Next(10, 10, &block).ok());
  EXPECT_EQ(block.errors, (std::vector<std::string>{"invalid UTF-8"}));
  const auto null = Open(PathOf("all_null.parquet"));
  ASSERT_TRUE((*(*null)->OpenUnit(0, 0))->Next(10, 10, &block).ok());
  EXPECT_EQ(block.errors, (std::vector<std::string>{"the text is null"}));
  EXPECT_EQ(block.records.size(), 10U);
}

std::string RefusalOf(const std::string& name, const std::string& column) {
  const Status status = Open(PathOf(name + ".parquet"), {.text = column}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(name + ".parquet"), std::string::npos);
  return status.message();
}

TEST(Parquet, ColumnsThatAreAbsentOrNoTextAreRefused) {
  EXPECT_NE(RefusalOf("other_types", "txet").find("did you mean 'text'? (columns: 'text', 'n'"),
            std::string::npos);
  EXPECT_NE(RefusalOf("other_types", "text").find("of type 'binary', not text"), std::string::npos);
  EXPECT_NE(RefusalOf("other_types", "n").find("of type 'int64', not text"), std::string::npos);
  EXPECT_NE(RefusalOf("other_types", "meta").find("name one of its fields, such as 'meta.text'"),
            std::string::npos);
  EXPECT_NE(RefusalOf("other_types", "many").find("is a group"), std::string::npos);
  EXPECT_NE(RefusalOf("other_types", "many.list.element").find("is a list of string"),
            std::string::npos);
  EXPECT_FALSE(Open(PathOf("required.parquet"), {.text = ""}).ok());
  EXPECT_FALSE(Open(PathOf("required.parquet"), {.record_bytes = 0}).ok());
}

TEST(Parquet, WrongUnitsAndOffsetsAreRefused) {
  const auto shard = Open(PathOf("required.parquet"));
  EXPECT_EQ((*shard)->OpenUnit(11, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*shard)->OpenUnit(0, 98).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE((*shard)->OpenUnit(0, 97).ok());
}

TEST(Parquet, AReaderOutlivesItsShard) {
  auto shard = Open(PathOf("required.parquet"));
  auto reader = (*shard)->OpenUnit(0, 0);
  shard->reset();
  RecordBlock block;
  EXPECT_TRUE((*reader)->Next(10, 10, &block).ok());
  reader->reset();
  EXPECT_EQ(block.records.size(), 10U);
  EXPECT_EQ(std::string(block.records[5].text), Expected("required")[5].text);
}

TEST(Parquet, UnitsOfOneShardAreReadByManyThreads) {
  const auto shard = Open(PathOf("codec_zstd.parquet"));
  ASSERT_TRUE(shard.ok());
  const std::vector<Found> expected = Expected("codec_zstd");
  std::vector<std::vector<Found>> found(4);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (auto& records : found) {
    threads.emplace_back([&] { records = *ReadAll(**shard, 10); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& records : found) EXPECT_EQ(records, expected);
}

TEST(Parquet, ATruncatedFileIsRefusedWithItsName) {
  const TemporaryFolder folder;
  const std::string whole = *LocalFileSystem()->ReadAll(PathOf("codec_none.parquet"), 1U << 24);
  for (std::size_t size = 0; size < whole.size(); size += 997) {
    const Status status = Open(folder.Write("cut.parquet", whole.substr(0, size))).status();
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
    EXPECT_NE(status.message().find("cut.parquet"), std::string::npos);
  }
}

TEST(Parquet, AChecksumFindsADamagedPage) {
  const TemporaryFolder folder;
  std::string bytes = *LocalFileSystem()->ReadAll(PathOf("checksums.parquet"), 1U << 24);
  const std::vector<Found> expected = Expected("checksums");
  int reported = 0;
  for (std::size_t at = 100; at < bytes.size() / 2; at += 503) {
    std::string damaged = bytes;
    damaged[at] ^= 0x10;
    const auto shard = Open(folder.Write("d.parquet", damaged));
    const auto found =
        shard.ok() ? ReadAll(**shard, 50) : Result<std::vector<Found>>(shard.status());
    if (found.ok()) {
      EXPECT_EQ(*found, expected) << at;  // the damage is in the other column
    } else {
      ++reported;
      EXPECT_NE(found.status().message().find("d.parquet"), std::string::npos);
    }
  }
  EXPECT_GT(reported, 5);
}

RC_GTEST_PROP(Parquet, DamageNeverCrashesOrHangs, ()) {
  static const TemporaryFolder folder;
  const std::string name = *rc::gen::elementOf(FileNames());
  std::string bytes = *LocalFileSystem()->ReadAll(PathOf(name + ".parquet"), 1U << 24);
  // Half of the hits go into the footer, where sizes and offsets are.
  const auto changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i) {
    const std::size_t low = *rc::gen::arbitrary<bool>() ? 0 : bytes.size() - bytes.size() / 8;
    bytes[*rc::gen::inRange(low, bytes.size())] = *rc::gen::arbitrary<char>();
  }
  const auto shard = Open(folder.Write("damaged.parquet", bytes), OptionsOf(name));
  if (!shard.ok()) {
    RC_TAG("refused at opening");
    return;
  }
  const auto found = ReadAll(**shard, 1000);
  RC_TAG(found.ok() ? "read" : "refused in reading");
}

TEST(Parquet, TheGlueCannotBeExchangedOnceLoaded) {
  ASSERT_TRUE(Open(PathOf("required.parquet")).ok());
  EXPECT_EQ(SetArrowGluePath("/elsewhere.so").code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace widestream
