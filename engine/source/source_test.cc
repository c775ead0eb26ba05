#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/hash.h"
#include "engine/formats/megatron_writer.h"
#include "engine/source/loader.h"
#include "engine/source/messages.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

using Clock = std::chrono::steady_clock;

// The 256 bytes as tokens, no merges: ids are bytes.
std::shared_ptr<const Tokenizer> ByteTokenizer() {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    file += kDigits[byte >> 2];
    file += kDigits[(byte & 3) << 4];
    file += "== " + std::to_string(byte) + "\n";
  }
  Tokenizer::Options options;
  options.pattern = "gpt2";
  Result<std::shared_ptr<const Tokenizer>> tokenizer =
      Tokenizer::FromBytes(file, "bytes.tiktoken", options);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *tokenizer;
}

struct Fixture {
  TemporaryFolder folder;
  std::shared_ptr<FileSystem> fs = LocalFileSystem();
  std::vector<std::string> texts;  // in file order
  SourceSpec spec;

  // Shards of the given numbers of records.
  Fixture(const std::vector<int>& shards, ShuffleSpec shuffle) {
    spec.name = "s";
    spec.paths = {folder.path() + "/*.jsonl"};
    spec.shuffle = shuffle;
    std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): a fixed case
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
      std::string content;
      for (int i = 0; i < shards[shard]; ++i) {
        texts.push_back("r" + std::to_string(shard) + "." + std::to_string(i) +
                        std::string(random() % 30, 'x'));
        content += "{\"text\": \"" + texts.back() + "\"}\n";
      }
      folder.Write("shard" + std::to_string(shard) + ".jsonl", content);
    }
  }

  std::unique_ptr<SourceLoader> Loader(TaskPool* pool, std::uint64_t read_ahead_bytes,
                                       double held_out = 0, bool deliver_held_out = false) {
    Result<Manifest> manifest = BuildManifest(*fs, spec);
    EXPECT_TRUE(manifest.ok()) << manifest.status().ToString();
    SourceLoaderOptions options;
    options.spec = spec;
    options.seed = 11;
    options.record_bytes = 1 << 20;
    options.tokenizer = ByteTokenizer();
    options.read_ahead_bytes = read_ahead_bytes;
    options.held_out_fraction = held_out;
    options.deliver_held_out = deliver_held_out;
    auto loader = SourceLoader::Make(fs, pool, std::move(options), *manifest);
    EXPECT_TRUE(loader.ok()) << loader.status().ToString();
    return std::move(*loader);
  }
};

struct Place {
  std::uint32_t epoch;
  std::uint64_t position;
  std::string text;
  friend bool operator==(const Place&, const Place&) = default;
};

// Everything the source delivers from a restart point to the end of `epochs` epochs, asking one
// record at a time.
std::vector<Place> Walk(SourceLoader* loader, const RestartPoint& from, std::uint32_t epochs,
                        std::vector<RestartPoint>* restarts = nullptr) {
  std::vector<Place> out;
  EXPECT_TRUE(loader->Start(from).ok());
  ReadRequest request;
  request.epoch = from.epoch;
  request.position = from.position;
  while (request.epoch < epochs) {
    auto batch = loader->Metadata(request, Clock::now() + std::chrono::seconds(30));
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    if (!batch.ok()) break;
    if (restarts != nullptr && !(*batch)->end_of_epoch) restarts->push_back((*batch)->restart);
    for (std::size_t i = request.position - (*batch)->position; i < (*batch)->size(); ++i) {
      if ((*batch)->outcome[i] != RecordOutcome::kDelivered) continue;
      const auto ids = loader->IdsOf(request.epoch, (*batch)->position + i,
                                     Clock::now() + std::chrono::seconds(30));
      EXPECT_TRUE(ids.ok()) << ids.status().ToString();
      out.push_back(
          {request.epoch, (*batch)->position + i, std::string(ids->ids16, ids->ids16 + ids->size)});
    }
    request.position = (*batch)->position + (*batch)->size();
    if ((*batch)->end_of_epoch) {
      ++request.epoch;
      request.position = 0;
    }
    loader->Release(request.epoch, request.position);
  }
  return out;
}

ShuffleSpec Blocks(std::uint64_t records, std::uint64_t bytes) {
  ShuffleSpec shuffle;
  shuffle.records = records;
  shuffle.bytes = bytes;
  return shuffle;
}

// A Megatron data set of the given documents, ids of `id_bytes` (2 or 4).
void WriteMegatron(const TemporaryFolder& folder, const std::string& name,
                   const std::vector<std::vector<std::uint32_t>>& documents,
                   std::uint64_t id_bytes) {
  std::string data;
  std::vector<std::int32_t> lengths;
  for (const auto& document : documents) {
    lengths.push_back(static_cast<std::int32_t>(document.size()));
    for (const std::uint32_t id : document) {
      data.append(reinterpret_cast<const char*>(&id), id_bytes);
    }
  }
  folder.Write(name + ".bin", data);
  auto out = LocalFileSystem()->OpenAppend(folder.path() + "/" + name + ".idx");
  ASSERT_TRUE(out.ok());
  const auto all = [&](const LengthVisitor& visit) { return visit(lengths); };
  const auto type = id_bytes == 2 ? MegatronIdType::kUint16 : MegatronIdType::kInt32;
  ASSERT_TRUE(WriteMegatronIndex(type, all, out->get()).ok());
  ASSERT_TRUE((*out)->Close().ok());
}

TEST(SourceLoader, TokenizedRecordsPassUnchangedAndRestartAtEveryBlock) {
  auto pool = TaskPool::Make(2);
  ASSERT_TRUE(pool.ok());
  std::vector<std::vector<std::uint32_t>> documents;
  for (std::uint32_t i = 0; i < 50; ++i) {
    documents.emplace_back(i % 7, i % 256);
    for (std::size_t k = 0; k < documents.back().size(); ++k) documents.back()[k] = (i + k) % 256;
  }
  std::vector<Place> of_width[2];
  for (const std::uint64_t id_bytes : {2U, 4U}) {
    Fixture fixture({}, Blocks(4, 1 << 20));
    WriteMegatron(fixture.folder, "t", documents, id_bytes);
    fixture.spec.paths = {fixture.folder.path() + "/t.*"};
    fixture.spec.format = "megatron";
    std::vector<RestartPoint> restarts;
    const auto places = Walk(fixture.Loader(pool->get(), 1000).get(), {}, 2, &restarts);
    std::multiset<std::string> seen;
    std::multiset<std::string> expected;
    for (const Place& place : places) {
      if (place.epoch == 0) seen.insert(place.text);
    }
    for (const auto& ids : documents) expected.emplace(ids.begin(), ids.end());
    EXPECT_EQ(seen, expected);
    for (const RestartPoint& restart : restarts) {
      const auto from = std::find_if(places.begin(), places.end(), [&](const Place& place) {
        return std::pair(place.epoch, place.position) >= std::pair(restart.epoch, restart.position);
      });
      EXPECT_EQ(Walk(fixture.Loader(pool->get(), 1000).get(), restart, 2),
                std::vector<Place>(from, places.end()));
    }
    of_width[id_bytes / 4] = Walk(fixture.Loader(pool->get(), 1000, 0.3).get(), {}, 1);
  }
  // What is held out depends on the ids, not on how wide they are stored.
  ASSERT_LT(of_width[0].size(), 50U);
  std::multiset<std::string> kept[2];
  for (int width = 0; width < 2; ++width) {
    for (const Place& place : of_width[width]) kept[width].insert(place.text);
  }
  EXPECT_EQ(kept[0], kept[1]);
}

TEST(SourceLoader, IdsOutsideTheVocabularyAreBadRecordsThatNameTheId) {
  auto pool = TaskPool::Make(1);
  ASSERT_TRUE(pool.ok());
  Fixture fixture({}, ShuffleSpec{ShuffleSpec::Mode::kOff, 100, 1 << 20});
  WriteMegatron(fixture.folder, "t", {{1, 2}, {255, 256}, {3}}, 2);
  fixture.spec.paths = {fixture.folder.path() + "/t.idx"};
  const auto loader = fixture.Loader(pool->get(), 1000);
  ASSERT_TRUE(loader->Start({}).ok());
  ReadRequest request;
  request.records = 3;
  const auto batch = loader->Metadata(request, Clock::now() + std::chrono::seconds(30));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ((*batch)->tokens, (std::vector<std::uint32_t>{2, 0, 1}));
  ASSERT_EQ((*batch)->problems.size(), 1U);
  const std::string& problem = (*batch)->problems[0].second;
  EXPECT_NE(problem.find("t.idx, at 1: id number 1 is 256, but the tokenizer has 256 ids"),
            std::string::npos)
      << problem;
}

TEST(BuildManifest, NoticesAChangeOfEitherFileOfAMegatronDataSet) {
  Fixture fixture({}, {});
  WriteMegatron(fixture.folder, "t", {{1, 2}}, 2);
  fixture.spec.paths = {fixture.folder.path()};
  const auto before = BuildManifest(*fixture.fs, fixture.spec);
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  ASSERT_EQ(before->shards.size(), 1U);
  EXPECT_EQ(before->shards[0].relative_path, "t.idx");
  fixture.folder.Write("t.bin", std::string("\1\0\3\0", 4));
  EXPECT_NE(BuildManifest(*fixture.fs, fixture.spec)->hash, before->hash);
  fixture.spec.paths = {fixture.folder.path() + "/t.bin"};
  fixture.spec.format = "megatron";
  EXPECT_EQ(BuildManifest(*fixture.fs, fixture.spec)->shards[0].relative_path, "t.idx");
}

// One file = one document; tar samples: the same walk, by their own readers.
TEST(SourceLoader, FoldersOfTextAreReadInAnotherOrderEachEpoch) {
  auto pool = TaskPool::Make(2);
  ASSERT_TRUE(pool.ok());
  Fixture fixture({}, Blocks(10, 1 << 20));
  std::multiset<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    const std::string text = "document " + std::to_string(i);
    fixture.folder.Write("d" + std::to_string(i) + ".txt", text);
    expected.insert(text);
  }
  fixture.spec.paths = {fixture.folder.path()};
  EXPECT_EQ(BuildManifest(*fixture.fs, fixture.spec).status().code(), StatusCode::kNotFound);
  fixture.spec.format = "text";
  std::vector<RestartPoint> restarts;
  const auto places = Walk(fixture.Loader(pool->get(), 1000).get(), {}, 2, &restarts);
  std::vector<std::string> epochs[2];
  for (const Place& place : places) epochs[place.epoch].push_back(place.text);
  EXPECT_EQ(std::multiset<std::string>(epochs[0].begin(), epochs[0].end()), expected);
  EXPECT_EQ(std::multiset<std::string>(epochs[1].begin(), epochs[1].end()), expected);
  EXPECT_NE(epochs[0], epochs[1]);
  ASSERT_EQ(restarts.size(), 80U);
  for (std::size_t i = 0; i < restarts.size(); i += 13) {
    EXPECT_EQ(Walk(fixture.Loader(pool->get(), 1000).get(), restarts[i], 2),
              std::vector<Place>(places.begin() + static_cast<std::ptrdiff_t>(i), places.end()));
  }
}

TEST(SourceLoader, EveryRecordIsExaminedOnceAnEpochWhateverTheShards) {
  auto pool = TaskPool::Make(2);
  ASSERT_TRUE(pool.ok());
  for (const auto& shards :
       {std::vector<int>{1}, {0, 1, 50, 0, 3}, {200}, {1, 1, 1, 1, 1, 1}, {7, 0, 0}}) {
    for (const ShuffleSpec& shuffle : {Blocks(1, 1 << 20), Blocks(7, 1 << 20), Blocks(1000, 64)}) {
      Fixture fixture(shards, shuffle);
      const auto places = Walk(fixture.Loader(pool->get(), 1000).get(), {}, 2);
      for (std::uint32_t epoch = 0; epoch < 2; ++epoch) {
        std::multiset<std::string> seen;
        for (const Place& place : places) {
          if (place.epoch == epoch) seen.insert(place.text);
        }
        EXPECT_EQ(seen, (std::multiset<std::string>(fixture.texts.begin(), fixture.texts.end())));
      }
    }
  }
}

TEST(SourceLoader, OrderDependsOnNeitherThreadsNorReadAhead) {
  Fixture fixture({40, 3, 90}, Blocks(10, 300));
  std::vector<Place> reference;
  for (const std::size_t threads : {1U, 2U, 4U}) {
    auto pool = TaskPool::Make(threads);
    ASSERT_TRUE(pool.ok());
    for (const std::uint64_t read_ahead : {1U, 2000U, 1U << 20}) {
      auto places = Walk(fixture.Loader(pool->get(), read_ahead).get(), {}, 2);
      if (reference.empty()) reference = places;
      EXPECT_EQ(places, reference);
    }
  }
  std::vector<std::string> first;
  std::vector<std::string> second;
  for (const Place& place : reference) (place.epoch == 0 ? first : second).push_back(place.text);
  EXPECT_NE(first, second) << "epochs must differ in order";
  EXPECT_NE(first, fixture.texts);
}

TEST(SourceLoader, RestartAtEveryBlockGivesTheRest) {
  auto pool = TaskPool::Make(2);
  ASSERT_TRUE(pool.ok());
  Fixture fixture({12, 0, 25}, Blocks(4, 1 << 20));
  std::vector<RestartPoint> restarts;
  const auto all = Walk(fixture.Loader(pool->get(), 1000).get(), {}, 2, &restarts);
  ASSERT_GT(restarts.size(), 10U);
  for (const RestartPoint& point : restarts) {
    const auto begin = std::find_if(all.begin(), all.end(), [&](const Place& p) {
      return p.epoch == point.epoch && p.position == point.position;
    });
    EXPECT_EQ(Walk(fixture.Loader(pool->get(), 1000).get(), point, 2),
              std::vector<Place>(begin, all.end()));
  }
}

TEST(SourceLoader, FileOrderWithoutShuffle) {
  auto pool = TaskPool::Make(2);
  ASSERT_TRUE(pool.ok());
  ShuffleSpec off;
  off.mode = ShuffleSpec::Mode::kOff;
  off.records = 3;
  Fixture fixture({5, 6}, off);
  std::vector<std::string> seen;
  for (const Place& place : Walk(fixture.Loader(pool->get(), 1000).get(), {}, 1))
    seen.push_back(place.text);
  EXPECT_EQ(seen, fixture.texts);
}

TEST(SourceLoader, HeldOutAndTrainingPartTheRecordsByTheirText) {
  auto pool = TaskPool::Make(2);
  ASSERT_TRUE(pool.ok());
  Fixture fixture({300}, Blocks(50, 1 << 20));
  std::set<std::string> training;
  std::set<std::string> held_out;
  for (const Place& place : Walk(fixture.Loader(pool->get(), 1000, 0.2).get(), {}, 1))
    training.insert(place.text);
  for (const Place& place : Walk(fixture.Loader(pool->get(), 1000, 0.2, true).get(), {}, 1))
    held_out.insert(place.text);
  EXPECT_EQ(training.size() + held_out.size(), 300U);
  EXPECT_GT(held_out.size(), 20U);
  for (const std::string& text : held_out) {
    EXPECT_LT(static_cast<double>(Xxh3_64(std::string_view(text))), 0.2 * 18446744073709551616.0);
    EXPECT_FALSE(training.contains(text));
  }
}

TEST(SourceLoader, RequestsAreIdempotentAndStaleOnesAreRefused) {
  auto pool = TaskPool::Make(1);
  ASSERT_TRUE(pool.ok());
  Fixture fixture({10}, Blocks(4, 1 << 20));
  auto loader = fixture.Loader(pool->get(), 1000);
  ASSERT_TRUE(loader->Start({}).ok());
  ReadRequest request;
  request.position = 5;
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  const auto a = loader->Metadata(request, deadline);
  const auto b = loader->Metadata(request, deadline);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(**a, **b);
  request.incarnation = 9;
  EXPECT_EQ(loader->Metadata(request, deadline).status().code(), StatusCode::kUnavailable);
  request.incarnation = 0;
  loader->Release(0, 6);
  EXPECT_EQ(loader->Metadata(request, deadline).status().code(), StatusCode::kInvalidArgument);
  request.position = 400;
  EXPECT_EQ(loader->Metadata(request, deadline).status().code(), StatusCode::kInvalidArgument);
}

TEST(SourceLoader, AChangedFileIsNoticedWhenItIsOpened) {
  auto pool = TaskPool::Make(1);
  ASSERT_TRUE(pool.ok());
  Fixture fixture({3}, Blocks(4, 1 << 20));
  auto loader = fixture.Loader(pool->get(), 1000);
  fixture.folder.Write("shard0.jsonl", "{\"text\": \"other\"}\n");
  ASSERT_TRUE(loader->Start({}).ok());
  const auto batch = loader->Metadata({}, Clock::now() + std::chrono::seconds(30));
  ASSERT_EQ(batch.status().code(), StatusCode::kDataCorruption);
  EXPECT_NE(batch.status().message().find("shard0.jsonl"), std::string::npos);
  EXPECT_NE(batch.status().message().find("source 's'"), std::string::npos);
}

TEST(SourceLoader, ABadRecordIsExaminedAndNamed) {
  auto pool = TaskPool::Make(1);
  ASSERT_TRUE(pool.ok());
  Fixture fixture({1}, Blocks(4, 1 << 20));
  fixture.folder.Write("shard0.jsonl", "{\"text\": \"good\"}\n{\"text\": 5}\n");
  auto loader = fixture.Loader(pool->get(), 1000);
  ASSERT_TRUE(loader->Start({}).ok());
  const auto batch = loader->Metadata({}, Clock::now() + std::chrono::seconds(30));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  const auto bad =
      std::find((*batch)->outcome.begin(), (*batch)->outcome.end(), RecordOutcome::kCorrupt);
  ASSERT_NE(bad, (*batch)->outcome.end());
  ASSERT_EQ((*batch)->problems.size(), 1U);
  EXPECT_EQ((*batch)->problems[0].first,
            static_cast<std::uint32_t>(bad - (*batch)->outcome.begin()));
  const std::string& message = (*batch)->problems[0].second;
  EXPECT_NE(message.find("shard0.jsonl, at"), std::string::npos) << message;
}

TEST(Manifest, NamesWhatChanged) {
  Fixture fixture({3, 4}, Blocks(4, 1 << 20));
  const auto before = BuildManifest(*fixture.fs, fixture.spec);
  ASSERT_TRUE(before.ok());
  const std::string stored = ManifestToJson("s", *before);
  EXPECT_EQ(*DescribeManifestChange(stored, *before), "");
  fixture.folder.Write("shard1.jsonl", "{\"text\": \"other\"}\n");
  fixture.folder.Write("shard2.jsonl", "");
  const auto after = BuildManifest(*fixture.fs, fixture.spec);
  ASSERT_TRUE(after.ok());
  EXPECT_NE(after->hash, before->hash);
  const std::string changes = *DescribeManifestChange(stored, *after);
  EXPECT_NE(changes.find("shard1.jsonl changed from"), std::string::npos) << changes;
  EXPECT_NE(changes.find("shard2.jsonl is new"), std::string::npos) << changes;
  EXPECT_EQ(changes.find("shard0"), std::string::npos) << changes;
}

TEST(Manifest, APatternWithoutAMatchIsNamed) {
  Fixture fixture({1}, Blocks(4, 1 << 20));
  fixture.spec.paths = {fixture.folder.path() + "/*.parquet"};
  const auto manifest = BuildManifest(*fixture.fs, fixture.spec);
  ASSERT_EQ(manifest.status().code(), StatusCode::kNotFound);
  EXPECT_NE(manifest.status().message().find("*.parquet"), std::string::npos);
}

}  // namespace
}  // namespace widestream
