#include "engine/transform/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/transform/test_vocabulary.h"

namespace widestream {
namespace {

using Ids = std::vector<std::uint32_t>;
using testing::Base64;
using testing::ByteTokens;
using testing::TiktokenFile;

Result<std::shared_ptr<const Tokenizer>> Load(const std::string& bytes,
                                              const std::string& pattern = "gpt2") {
  return Tokenizer::FromBytes(bytes, "v.tiktoken", {.pattern = pattern});
}
std::shared_ptr<const Tokenizer> MustLoad(const std::string& bytes,
                                          const std::string& pattern = "gpt2") {
  auto tokenizer = Load(bytes, pattern);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}
Ids Encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.Encode(text, &ids);
  return ids;
}
// The message of the error that `bytes` gives.
std::string ErrorOf(const std::string& bytes, const std::string& pattern = "gpt2") {
  const auto result = Load(bytes, pattern);
  EXPECT_FALSE(result.ok()) << "was accepted";
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << result.status().ToString();
  return result.status().message();
}
bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Tokenizer, EncodesWordsAndAppends) {
  const auto tokenizer = MustLoad(TiktokenFile(ByteTokens({"he", "ll", "hell", "hello", " w"})));
  EXPECT_EQ(Encode(*tokenizer, "hello wx"), (Ids{259, 260, 'x'}));
  EXPECT_EQ(Encode(*tokenizer, ""), Ids{});
  Ids ids{7};
  tokenizer->Encode("he", &ids);
  EXPECT_EQ(ids, (Ids{7, 256}));
  EXPECT_EQ(tokenizer->VocabularySize(), 261U);
  EXPECT_FALSE(tokenizer->SpecialTokenId("<|endoftext|>").has_value());
}

TEST(Tokenizer, MergesNeverCrossWords) {
  const auto tokenizer = MustLoad(TiktokenFile(ByteTokens({"a1", "12", "123", "1234"})));
  EXPECT_EQ(Encode(*tokenizer, "a1"), (Ids{'a', '1'}));
  EXPECT_EQ(Encode(*tokenizer, "1234"), (Ids{259}));
  const auto thousands = MustLoad(TiktokenFile(ByteTokens({"12", "123", "1234"})), "cl100k");
  EXPECT_EQ(Encode(*thousands, "1234"), (Ids{257, '4'}));
}

RC_GTEST_PROP(Tokenizer, DecodeGivesBackAnyBytes, (const std::string& text)) {
  static const auto gpt2 = MustLoad(TiktokenFile(ByteTokens({"ab", "\xC3\xA9", "  "})));
  static const auto cl100k = MustLoad(TiktokenFile(ByteTokens({"ab", "\xC3\xA9", "  "})), "cl100k");
  for (const auto& tokenizer : {gpt2, cl100k}) {
    std::string decoded;
    RC_ASSERT(tokenizer->Decode(Encode(*tokenizer, text), &decoded).ok());
    RC_ASSERT(decoded == text);
  }
}

TEST(Tokenizer, DecodeRefusesUnknownIdsAndLeavesTheOutputAlone) {
  const auto tokenizer = MustLoad(TiktokenFile(ByteTokens()));
  std::string bytes = "kept";
  const Status status = tokenizer->Decode(Ids{65, 256}, &bytes);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(status.message(), "id 256 at position 1")) << status.message();
  EXPECT_EQ(bytes, "kept");
}

TEST(Tokenizer, DigestFollowsContentNotPathOrLineOrder) {
  const auto tokens = ByteTokens({"ab", "cd"});
  const std::string file = TiktokenFile(tokens);
  const std::size_t second = file.find('\n') + 1;
  const std::string swapped = file.substr(second) + file.substr(0, second);
  const std::string digest = MustLoad(file)->Digest();
  EXPECT_EQ(digest.size(), 32U);
  EXPECT_EQ(MustLoad(swapped)->Digest(), digest);
  EXPECT_NE(MustLoad(file, "cl100k")->Digest(), digest);
  EXPECT_NE(MustLoad(TiktokenFile(ByteTokens({"ab", "ce"})))->Digest(), digest);
  EXPECT_NE(MustLoad(TiktokenFile(ByteTokens({"cd", "ab"})))->Digest(), digest);
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const auto tokenizer = MustLoad(TiktokenFile(ByteTokens({"ab", "abab", "ba"})));
  std::string text;
  for (int i = 0; i < 500; ++i)
    text += std::string(static_cast<std::size_t>(i % 80), "ab"[i % 2]) + " abab aba!";
  const Ids expected = Encode(*tokenizer, text);
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (Ids& ids : found) threads.emplace_back([&] { ids = Encode(*tokenizer, text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, OneThreadMayAlternateBetweenTokenizers) {
  const auto first = MustLoad(TiktokenFile(ByteTokens({"ab", "bc"})));
  const auto second = MustLoad(TiktokenFile(ByteTokens({"bc", "ab"})));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Encode(*first, "abc"), (Ids{256, 'c'}));
    EXPECT_EQ(Encode(*second, "abc"), (Ids{'a', 256}));
  }
  // A new tokenizer at the address of a freed one must not see what was kept for that one.
  for (int i = 0; i < 20; ++i) {
    const bool even = i % 2 == 0;
    const auto tokenizer = MustLoad(TiktokenFile(ByteTokens(
        even ? std::vector<std::string>{"ab", "bc"} : std::vector<std::string>{"bc", "ab"})));
    EXPECT_EQ(Encode(*tokenizer, "abc"), (even ? Ids{256, 'c'} : Ids{'a', 256}));
  }
}

TEST(TiktokenFile, NeedsAPatternUnlessItIsAKnownVocabulary) {
  const std::string file = TiktokenFile(ByteTokens());
  const std::string message = ErrorOf(file, "");
  EXPECT_TRUE(Contains(message, "\"gpt2\"") && Contains(message, "\"cl100k\"")) << message;
  EXPECT_TRUE(Contains(ErrorOf(file, "p50k"), "\"p50k\" is not known"));
}

TEST(TiktokenFile, DamageIsToldWithFileAndLine) {
  const std::string good = TiktokenFile(ByteTokens());
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE=\n"), "v.tiktoken: line 257: expected base64"));
  EXPECT_TRUE(Contains(ErrorOf(good + "\n"), "line 257"));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE 256\n"), "line 257: \"AAE\" is not base64"));
  EXPECT_TRUE(Contains(ErrorOf(good + "A*E= 256\n"), "line 257"));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAF= 256\n"), "line 257"));  // unused bits set
  EXPECT_TRUE(Contains(ErrorOf(good + "==== 256\n"), "line 257"));
  EXPECT_TRUE(Contains(ErrorOf(good + " 256\n"), "line 257"));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE= \n"), "the rank \"\""));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE= -1\n"), "the rank \"-1\""));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE= 16777216\n"), "from 0 to 16777215"));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE= 99999999999999999999\n"), "line 257"));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE= 5\n"), "rank 5 was already on line 6"));
  EXPECT_TRUE(Contains(ErrorOf(good + "AA== 256\n"), "was already on line 1"));
  EXPECT_TRUE(Contains(ErrorOf(good + "AAE= 16777215\n"), "no line has rank 256"));
  EXPECT_TRUE(Contains(ErrorOf(good + Base64(std::string(1024, 'x')) + " 256\n"), "line 257"));
  EXPECT_TRUE(Contains(ErrorOf(""), "is empty"));
  EXPECT_TRUE(Contains(ErrorOf(good.substr(0, good.size() - 3)), "line 256: rank 2 was already"));
  auto without_byte = ByteTokens();
  without_byte[7] = "xyz";
  EXPECT_TRUE(
      Contains(ErrorOf(TiktokenFile(without_byte)), "the single byte \"\\x07\" is no token"));
}

TEST(TiktokenFile, CarriageReturnsAtLineEndsAreAccepted) {
  std::string file;
  for (const char c : TiktokenFile(ByteTokens())) file += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_EQ(MustLoad(file)->Digest(), MustLoad(TiktokenFile(ByteTokens()))->Digest());
}

TEST(TiktokenFile, TooManyBytesAreRefusedBeforeTheyAreRead) {
  const auto result = Load(std::string((std::size_t{64} << 20) + 1, 'A'));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
}

TEST(TiktokenFile, AVocabularyOfAllWordsOverTwoLettersMergesToTheLongest) {
  // Every cut of every token is a merge; only one of each is kept.
  std::vector<std::string> more;
  for (int bits = 2; bits <= 12; ++bits) {
    for (int word = 0; word < (1 << bits); ++word) {
      std::string token;
      for (int i = 0; i < bits; ++i) token += (word >> i & 1) != 0 ? 'a' : 'b';
      more.push_back(token);
    }
  }
  const auto tokenizer = Load(TiktokenFile(ByteTokens(more)), "gpt2");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  Ids ids;
  (*tokenizer)->Encode("abbabaabbbab", &ids);
  EXPECT_EQ(ids.size(), 1U);
}

class TemporaryFolder : public ::testing::Test {
 protected:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tokenizer_test_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() override { std::filesystem::remove_all(path_); }
  std::filesystem::path path_;
};

TEST_F(TemporaryFolder, FilesAreReadAndTheirProblemsNamed) {
  const std::string path = path_ / "v.tiktoken";
  EXPECT_EQ(Tokenizer::FromFile(path, {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::FromFile(path_, {}).status().code(), StatusCode::kInvalidArgument);
  std::ofstream(path) << TiktokenFile(ByteTokens({"ab"}));
  const auto tokenizer = Tokenizer::FromFile(path, {.pattern = "gpt2"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(Encode(**tokenizer, "ab"), Ids{256});
  std::ofstream(path, std::ios::app) << "zz\n";
  const Status damaged = Tokenizer::FromFile(path, {.pattern = "gpt2"}).status();
  EXPECT_TRUE(Contains(damaged.message(), path + ": line 258")) << damaged.ToString();
  std::filesystem::resize_file(path, std::uintmax_t{100} << 20);
  EXPECT_EQ(Tokenizer::FromFile(path, {.pattern = "gpt2"}).status().code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace widestream
