#include "engine/formats/megatron.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/formats/megatron_writer.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Header(std::uint8_t code, std::uint64_t sequences, std::uint64_t borders,
                   std::uint64_t version = 1) {
  return std::string("MMIDIDX\0\0", 9) + Bytes<std::uint64_t>({version}) + static_cast<char>(code) +
         Bytes<std::uint64_t>({sequences, borders});
}

class MegatronTest : public testing::Test {
 protected:
  Result<std::shared_ptr<ShardReader>> Open(std::string_view index, std::string_view data,
                                            std::uint64_t record_bytes = 1U << 20) {
    folder_.Write("a.bin", data);
    ReadOptions options;
    options.record_bytes = record_bytes;
    return OpenMegatronShard(*fs_, folder_.Write("a.idx", index), options);
  }
  // The two documents of three sequences that most tests change a little.
  static std::string Index(std::uint8_t code, std::uint64_t id_bytes) {
    return Header(code, 3, 3) + Bytes<std::int32_t>({2, 1, 3}) +
           Bytes<std::int64_t>({0, static_cast<std::int64_t>(2 * id_bytes),
                                static_cast<std::int64_t>(3 * id_bytes)}) +
           Bytes<std::int64_t>({0, 2, 3});
  }
  std::string MessageOf(std::string_view index, std::string_view data) {
    const auto shard = Open(index, data);
    if (!shard.ok()) return shard.status().message();
    const auto reader = (*shard)->OpenUnit(0, 0);
    RecordBlock block;
    const Status status = (*reader)->Next(100, 1U << 20, &block);
    return status.ok() ? "" : status.message();
  }

  static std::vector<std::uint32_t> IdsOf(const RecordBlock& block, std::size_t i) {
    const std::string_view text = block.records[i].text;
    std::vector<std::uint32_t> ids;
    for (std::size_t at = 0; at < text.size(); at += block.id_bytes) {
      std::uint32_t id = 0;
      std::memcpy(&id, text.data() + at, block.id_bytes);
      ids.push_back(id);
    }
    return ids;
  }

  TemporaryFolder folder_;
  std::shared_ptr<FileSystem> fs_ = LocalFileSystem();
};

TEST_F(MegatronTest, DocumentsOfEveryIntegerTypeAreRead) {
  const std::pair<std::uint8_t, std::string> cases[] = {
      {1, Bytes<std::uint8_t>({1, 2, 3, 4, 5, 6})}, {2, Bytes<std::int8_t>({1, 2, 3, 4, 5, 6})},
      {3, Bytes<std::int16_t>({1, 2, 3, 4, 5, 6})}, {4, Bytes<std::int32_t>({1, 2, 3, 4, 5, 6})},
      {5, Bytes<std::int64_t>({1, 2, 3, 4, 5, 6})}, {8, Bytes<std::uint16_t>({1, 2, 3, 4, 5, 6})},
  };
  for (const auto& [code, data] : cases) {
    const auto shard = Open(Index(code, data.size() / 6), data);
    ASSERT_TRUE(shard.ok()) << shard.status().ToString();
    ASSERT_EQ((*shard)->units().size(), 1U);
    EXPECT_EQ((*shard)->units()[0].records, 2U);
    RecordBlock block;
    ASSERT_TRUE((*(*shard)->OpenUnit(0, 0))->Next(10, 1U << 20, &block).ok());
    ASSERT_EQ(block.records.size(), 2U);
    EXPECT_EQ(IdsOf(block, 0), (std::vector<std::uint32_t>{1, 2, 3})) << int{code};
    EXPECT_EQ(IdsOf(block, 1), (std::vector<std::uint32_t>{4, 5, 6})) << int{code};
    EXPECT_TRUE(block.end_of_unit);
  }
}

TEST_F(MegatronTest, SequencesOfADocumentMayLieAnywhere) {
  const std::string index = Header(8, 3, 2) + Bytes<std::int32_t>({2, 1, 2}) +
                            Bytes<std::int64_t>({6, 4, 0}) + Bytes<std::int64_t>({0, 3});
  const auto shard = Open(index, Bytes<std::uint16_t>({10, 11, 12, 13, 14}));
  ASSERT_TRUE(shard.ok()) << shard.status().ToString();
  RecordBlock block;
  ASSERT_TRUE((*(*shard)->OpenUnit(0, 0))->Next(10, 1U << 20, &block).ok());
  EXPECT_EQ(IdsOf(block, 0), (std::vector<std::uint32_t>{13, 14, 12, 10, 11}));
}

TEST_F(MegatronTest, IdsThatAreNoIdsMakeABadRecord) {
  const auto negative = Open(Index(3, 2), Bytes<std::int16_t>({1, -7, 3, 4, 5, 6}));
  RecordBlock block;
  ASSERT_TRUE((*(*negative)->OpenUnit(0, 0))->Next(10, 1U << 20, &block).ok());
  ASSERT_EQ(block.errors.size(), 1U);
  EXPECT_EQ(block.errors[0], "id number 1 of the document is -7, which is no id of a token");
  EXPECT_EQ(block.records[0].error, 0);
  EXPECT_EQ(IdsOf(block, 1), (std::vector<std::uint32_t>{4, 5, 6}));
  const auto large = Open(Index(5, 8), Bytes<std::int64_t>({1, 2, 3, 4, 5, 1LL << 33}));
  ASSERT_TRUE((*(*large)->OpenUnit(0, 0))->Next(10, 1U << 20, &block).ok());
  EXPECT_EQ(block.records[1].error, 0);
  EXPECT_EQ(block.records[1].offset, 1U);
}

TEST_F(MegatronTest, ALongDocumentIsBadAndItsNeighboursAreNot) {
  const auto shard = Open(Index(8, 2), Bytes<std::uint16_t>({1, 2, 3, 4, 5, 6}), 6);
  RecordBlock block;
  ASSERT_TRUE((*(*shard)->OpenUnit(0, 0))->Next(10, 1U << 20, &block).ok());
  EXPECT_TRUE(block.errors.empty());
  const auto strict = Open(Index(8, 2), Bytes<std::uint16_t>({1, 2, 3, 4, 5, 6}), 5);
  ASSERT_TRUE((*(*strict)->OpenUnit(0, 0))->Next(10, 1U << 20, &block).ok());
  ASSERT_EQ(block.errors.size(), 2U);
  EXPECT_NE(block.errors[0].find("errors.record_bytes = 5"), std::string::npos);
}

// What our own writer writes, restarted at every position.
TEST_F(MegatronTest, RoundTripAndRestartAtEveryDocument) {
  std::vector<std::int32_t> lengths;
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < 9000; ++i) {
    lengths.push_back(i % 5);
    for (int k = 0; k < i % 5; ++k) ids.push_back(static_cast<std::uint16_t>(i + k));
  }
  folder_.Write("r.bin", Bytes(ids));
  const std::string path = folder_.path() + "/r.idx";
  auto out = fs_->OpenAppend(path);
  ASSERT_TRUE(out.ok());
  const auto all = [&](const LengthVisitor& visit) { return visit(lengths); };
  ASSERT_TRUE(WriteMegatronIndex(MegatronIdType::kUint16, all, out->get()).ok());
  ASSERT_TRUE((*out)->Close().ok());
  const auto shard = OpenMegatronShard(*fs_, folder_.path() + "/r.bin", ReadOptions());
  ASSERT_TRUE(shard.ok()) << shard.status().ToString();
  ASSERT_EQ((*shard)->units().size(), 3U);
  std::uint64_t document = 0;
  for (std::uint64_t unit = 0; unit < 3; ++unit) {
    EXPECT_EQ((*shard)->units()[unit].first_record, document);
    const std::uint64_t count = (*shard)->units()[unit].records.value_or(0);
    RecordBlock block;
    for (std::uint64_t offset = 0; offset < count; offset = block.next_offset) {
      ASSERT_TRUE((*(*shard)->OpenUnit(unit, offset))->Next(7, 20, &block).ok());
      ASSERT_FALSE(block.records.empty());
      ASSERT_EQ(block.next_offset, offset + block.records.size());
      for (std::size_t i = 0; i < block.records.size(); ++i, ++document) {
        const std::vector<std::uint32_t> found = IdsOf(block, i);
        ASSERT_EQ(found.size(), document % 5);
        if (!found.empty()) {
          ASSERT_EQ(found.front(), document);
          ASSERT_EQ(found.back(), document + document % 5 - 1);
        }
        ASSERT_EQ(block.records[i].offset, document);
      }
      ASSERT_EQ(block.end_of_unit, block.next_offset == count);
    }
  }
  EXPECT_EQ(document, 9000U);
}

TEST_F(MegatronTest, AnEmptyDataSetHasNoUnit) {
  const auto shard = Open(Header(8, 0, 1) + Bytes<std::int64_t>({0}), "");
  ASSERT_TRUE(shard.ok()) << shard.status().ToString();
  EXPECT_TRUE((*shard)->units().empty());
  EXPECT_FALSE((*shard)->OpenUnit(0, 0).ok());
}

TEST_F(MegatronTest, HostileIndexesAreRefusedWithFileAndOffset) {
  const std::string data(12, '\1');
  const std::string good = Index(8, 2);
  EXPECT_EQ(MessageOf(good, data), "");
  struct Case {
    std::string index;
    const char* expected;
  };
  const auto with = [&](std::size_t at, const std::string& bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  const std::uint64_t huge = 1ULL << 62;
  for (const Case& test : std::vector<Case>{
           {"", "a.idx', at byte 0: is no Megatron index"},
           {"MMIDIDX", "a.idx', at byte 0: is no Megatron index"},
           {with(0, "X"), "a.idx', at byte 0: is no Megatron index"},
           {with(9, Bytes<std::uint64_t>({2})), "at byte 9: is version 2"},
           {with(17, "\x09"), "at byte 17: the type of an id has the code 9"},
           {with(17, "\x07"), "at byte 17: it holds float32 numbers"},
           {with(18, Bytes<std::uint64_t>({huge})), "at byte 18: the header says"},
           {with(26, Bytes<std::uint64_t>({huge})), "at byte 18: the header says"},
           {with(26, Bytes<std::uint64_t>({0})), "at byte 18: the header says"},
           {with(26, Bytes<std::uint64_t>({2})), "has 86 bytes; the file has 94"},
           {good.substr(0, good.size() - 1), "has 94 bytes; the file has 93"},
           {good + std::string(3, '\0'), "it is a multimodal data set"},
           {with(34, Bytes<std::int32_t>({-2})), "at byte 34: sequence 0 is said to have -2 ids"},
           {with(38, Bytes<std::int32_t>({1 << 30})), "at byte 54: sequence 1 is said to be"},
           {with(46, Bytes<std::int64_t>({-1})), "at byte 46: sequence 0"},
           {with(62, Bytes<std::int64_t>({8})), "a.bin' has 12 bytes"},
           {with(70, Bytes<std::int64_t>({1})), "at byte 70: documents are said to begin at"},
           {with(86, Bytes<std::int64_t>({2})), "at byte 70: documents are said to begin at"},
           {with(78, Bytes<std::int64_t>({4})), "document 0 is said to hold the sequences 0 to 4"},
           {with(78, Bytes<std::int64_t>({-1})), "document 0 is said to hold"},
       }) {
    const std::string message = MessageOf(test.index, data);
    EXPECT_NE(message.find(test.expected), std::string::npos) << test.expected << "\n" << message;
  }
  EXPECT_NE(MessageOf(good, data.substr(1)).find("a.bin' has 11 bytes"), std::string::npos);
}

TEST_F(MegatronTest, TheMissingHalfIsNamed) {
  const auto shard = OpenMegatronShard(*fs_, folder_.Write("b.idx", Index(8, 2)), ReadOptions());
  ASSERT_EQ(shard.status().code(), StatusCode::kNotFound);
  EXPECT_NE(shard.status().message().find("b.bin"), std::string::npos);
}

}  // namespace
}  // namespace widestream
