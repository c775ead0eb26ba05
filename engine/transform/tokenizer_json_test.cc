#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/transform/test_vocabulary.h"
#include "engine/transform/tokenizer.h"

namespace widestream {
namespace {

using Ids = std::vector<std::uint32_t>;
using testing::ByteTokens;
using testing::JsonFile;

Result<std::shared_ptr<const Tokenizer>> Load(const std::string& bytes,
                                              const std::string& pattern = "") {
  return Tokenizer::FromBytes(bytes, "tokenizer.json", {.pattern = pattern});
}
Ids Encode(const std::string& file, std::string_view text) {
  const auto tokenizer = Load(file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  Ids ids;
  if (tokenizer.ok()) (*tokenizer)->Encode(text, &ids);
  return ids;
}
std::string Good() {
  return JsonFile(ByteTokens({"ab", "bc", "abc", " a"}), {{"b", "c"}, {"a", "b"}, {" ", "a"}});
}
std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}
std::string ErrorOf(const std::string& file, const std::string& pattern = "") {
  const auto result = Load(file, pattern);
  EXPECT_FALSE(result.ok()) << "was accepted";
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.status().message().rfind("tokenizer.json: ", 0), 0U);
  return result.status().message();
}
#define EXPECT_NAMES(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST(TokenizerJson, ListOrderDecidesMergesNotIds) {
  // "bc" (257) is listed before "ab" (256).
  EXPECT_EQ(Encode(Good(), "abc"), (Ids{'a', 257}));
  EXPECT_EQ(Encode(Good(), "ab ab"), (Ids{256, ' ', 256}));
}

TEST(TokenizerJson, ATokenThatMergesDoNotReachIsNotUsedUnlessMergesAreIgnored) {
  EXPECT_EQ(Encode(Good(), "abc"), (Ids{'a', 257}));
  const std::string ignoring =
      Replaced(Good(), "\"ignore_merges\": false", "\"ignore_merges\": true");
  EXPECT_EQ(Encode(ignoring, "abc"), (Ids{258}));
}

TEST(TokenizerJson, MergesMayBeStringsOrPairs) {
  const auto tokens = ByteTokens({"ab", " a"});
  const std::vector<std::pair<std::string, std::string>> merges = {{"a", "b"}, {" ", "a"}};
  const auto pairs = Load(JsonFile(tokens, merges, true));
  const auto strings = Load(JsonFile(tokens, merges, false));
  ASSERT_TRUE(pairs.ok() && strings.ok());
  EXPECT_EQ((*pairs)->Digest(), (*strings)->Digest());
}

TEST(TokenizerJson, SpecialTokensHaveIdsButNeverComeFromText) {
  const auto tokenizer = Load(Good());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->SpecialTokenId("<|endoftext|>"), 260U);
  EXPECT_FALSE((*tokenizer)->SpecialTokenId("ab").has_value());
  EXPECT_EQ((*tokenizer)->VocabularySize(), 261U);
  EXPECT_EQ(Encode(Good(), "<|endoftext|>").size(), 13U);
  std::string decoded;
  ASSERT_TRUE((*tokenizer)->Decode(Ids{256, 260}, &decoded).ok());
  EXPECT_EQ(decoded, "ab<|endoftext|>");
}

TEST(TokenizerJson, ASpecialTokenInTheVocabularyIsNotAWord) {
  const std::string file =
      Replaced(Replaced(Good(), "\"vocab\": {", "\"vocab\": {\"<|endoftext|>\": 260, "),
               "\"ignore_merges\": false", "\"ignore_merges\": true");
  EXPECT_EQ(Encode(file, "<|endoftext|>").size(), 13U);
  EXPECT_NAMES(ErrorOf(Replaced(Good(), "\"vocab\": {", "\"vocab\": {\"<|endoftext|>\": 261, ")),
               "260 in added_tokens");
}

TEST(TokenizerJson, SplitWithTheCl100kRegexIsAccepted) {
  const std::string regex =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  const std::string split =
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ")" + regex +
      R"("}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})";
  const std::string byte_level =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  const std::string file =
      Replaced(JsonFile(ByteTokens({"12", "34", "1234"}), {{"1", "2"}, {"3", "4"}, {"12", "34"}}),
               byte_level, split);
  EXPECT_EQ(Encode(file, "1234"), (Ids{256, '3', '4'}));
  EXPECT_TRUE(Load(file, "cl100k").ok());
  EXPECT_NAMES(ErrorOf(file, "gpt2"), "not \"gpt2\" as asked");
  EXPECT_NAMES(ErrorOf(Replaced(file, "{1,3}", "{1,2}")), "pre_tokenizer.pretokenizers[0].pattern");
  EXPECT_NAMES(ErrorOf(Replaced(file, "Isolated", "Removed")), "Isolated");
  EXPECT_NAMES(ErrorOf(Replaced(file, "\"invert\": false", "\"invert\": true")), "invert");
  EXPECT_NAMES(ErrorOf(Replaced(file, "\"use_regex\": false", "\"use_regex\": true")), "use_regex");
}

TEST(TokenizerJson, SettingsThatWouldChangeIdsAreRefusedByName) {
  struct Case {
    const char* from;
    const char* to;
    const char* named;
  };
  const std::vector<Case> cases = {
      {"\"truncation\": null", "\"truncation\": {\"max_length\": 5}", "truncation"},
      {"\"padding\": null", "\"padding\": {}", "padding"},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}",
       "normalizer: {\"type\":\"NFKC\"}"},
      {"\"normalizer\": null",
       "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}",
       "normalizer.normalizers[0]: {\"type\":\"Lowercase\"}"},
      {"\"version\"", "\"flavour\"", "flavour"},
      {"\"add_prefix_space\": false", "\"add_prefix_space\": true",
       "pre_tokenizer.add_prefix_space"},
      {"\"add_prefix_space\": false, ", "", "pre_tokenizer.add_prefix_space"},
      {"\"use_regex\": true", "\"use_regex\": false", "pre_tokenizer.use_regex"},
      {"{\"type\": \"ByteLevel\"", "{\"type\": \"Metaspace\"", "pre_tokenizer"},
      {"\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}",
       "post_processor"},
      {"\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Fuse\"", "decoder"},
      {"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", "model.type: \"WordPiece\""},
      {"\"dropout\": null", "\"dropout\": 0.1", "model.dropout"},
      {"\"unk_token\": null", "\"unk_token\": \"a\"", "model.unk_token"},
      {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"##\"",
       "model.continuing_subword_prefix"},
      {"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"",
       "model.end_of_word_suffix"},
      {"\"fuse_unk\": false", "\"fuse_unk\": true", "model.fuse_unk"},
      {"\"byte_fallback\": false", "\"byte_fallback\": true", "model.byte_fallback"},
      {"\"single_word\": false", "\"single_word\": true", "added_tokens[0].single_word"},
      {"\"dropout\": null", "\"dropout\": null, \"dropout\": null", "there twice"},
      {"\"dropout\": null", "\"novelty\": 1", "novelty"},
  };
  for (const Case& c : cases) EXPECT_NAMES(ErrorOf(Replaced(Good(), c.from, c.to)), c.named);
}

TEST(TokenizerJson, HarmlessFormsAreAccepted) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"\""},
      {"\"post_processor\": null",
       "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, "
       "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}]}]}"},
      {"\"truncation\": null, ", ""},
      {", \"ignore_merges\": false", ""},
  };
  for (const auto& [from, to] : cases) {
    const auto result = Load(Replaced(Good(), from, to));
    EXPECT_TRUE(result.ok()) << result.status().ToString();
  }
}

TEST(TokenizerJson, DamageIsToldWithItsPlace) {
  const std::string good = Good();
  EXPECT_NAMES(ErrorOf(good.substr(0, good.size() / 2)), "line 10");
  EXPECT_NAMES(ErrorOf("{"), "not valid JSON");
  EXPECT_NAMES(ErrorOf("{}"), "pre_tokenizer: missing");
  EXPECT_NAMES(ErrorOf(std::string(100'000, '{')), "not valid JSON");
  EXPECT_NAMES(ErrorOf("{\"a\":" + std::string(100'000, '[')), "not valid JSON");
  EXPECT_NAMES(ErrorOf("{\"version\": \"\xFF\"}"), "not valid JSON");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"bc\": 257", "\"bc\": 256")), "both have the id 256");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"bc\": 257", "\"ab\": 257")), "\"ab\" is there twice");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"bc\": 257", "\"bc\": 16777216")), "from 0 to 16777215");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"bc\": 257", "\"bc\": 9999999")), "no token has id 257");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"bc\": 257", "\"bc\": -1")), "-1");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"bc\": 257", "\"b c\": 257")), "outside the byte-level");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"bc\": 257", "\"\": 257")), "is empty");
  EXPECT_NAMES(ErrorOf(Replaced(good, "[\"a\", \"b\"]", "[\"a\", \"z\"]")), "model.merges[1]");
  EXPECT_NAMES(ErrorOf(Replaced(good, "[\"a\", \"b\"]", "[\"a\", \"b\", \"c\"]")),
               "model.merges[1]");
  EXPECT_NAMES(ErrorOf(Replaced(good, "[\"a\", \"b\"]", "\"ab\"")), "model.merges[1]");
  EXPECT_NAMES(ErrorOf(Replaced(good, "[\"a\", \"b\"]", "[\"b\", \"c\"]")),
               "merge 1 of \"b\" and \"c\"");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"id\": 260", "\"id\": 5")), "id 5");
  EXPECT_NAMES(ErrorOf(Replaced(good, "\"z\": 122", "\"zz\": 122")), "the single byte \"z\"");
}

TEST(TokenizerJson, SpecialTokensAreAllowedRefusedOrText) {
  const auto loaded = Load(Good());
  ASSERT_TRUE(loaded.ok());
  const Tokenizer& tokenizer = **loaded;
  const std::string text = "ab<|endoftext|>bc";
  IdBuffer<std::uint16_t> ids;
  TokenOffsets offsets;
  EncodeOptions options;
  options.allowed_special = SpecialTokenSet::All();
  ASSERT_TRUE(tokenizer.Encode(text, options, &ids, &offsets).ok());
  EXPECT_EQ(std::vector<std::uint16_t>(ids.ids().begin(), ids.ids().end()),
            (std::vector<std::uint16_t>{256, 260, 257}));
  EXPECT_EQ(offsets.begin, (std::vector<std::uint64_t>{0, 2, 15}));
  EXPECT_EQ(offsets.end, (std::vector<std::uint64_t>{2, 15, 17}));
  options.max_tokens = 2;
  ids.Clear();
  ASSERT_TRUE(tokenizer.Encode(text, options, &ids).ok());
  EXPECT_EQ(ids.size(), 2U);
  EncodeOptions refusing;
  refusing.disallowed_special = SpecialTokenSet::All();
  ids.Clear();
  const Status refused = tokenizer.Encode(text, refusing, &ids);
  ASSERT_FALSE(refused.ok());
  EXPECT_NAMES(refused.message(), "<|endoftext|>");
  EXPECT_NAMES(refused.message(), "byte 2");
  EXPECT_EQ(ids.size(), 0U);
  EncodeOptions unknown;
  unknown.allowed_special.names = {"<|none|>"};
  EXPECT_FALSE(tokenizer.Encode(text, unknown, &ids).ok());
}

TEST(TokenizerJson, ABatchOnThreadsGivesWhatOneThreadGives) {
  const auto loaded = Load(Good());
  ASSERT_TRUE(loaded.ok());
  std::vector<std::string> texts;
  texts.reserve(100);
  for (int i = 0; i < 100; ++i)
    texts.push_back(std::string(i % 7, 'a') + "bc ab " + std::to_string(i));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  IdBuffer<std::uint32_t> one;
  IdBuffer<std::uint32_t> many;
  std::vector<std::uint64_t> one_ends;
  std::vector<std::uint64_t> many_ends;
  ASSERT_TRUE((*loaded)->EncodeBatch<std::uint32_t>(views, {}, 1, &one, &one_ends).ok());
  ASSERT_TRUE((*loaded)->EncodeBatch<std::uint32_t>(views, {}, 3, &many, &many_ends).ok());
  EXPECT_EQ(one_ends, many_ends);
  EXPECT_TRUE(std::equal(one.ids().begin(), one.ids().end(), many.ids().begin(), many.ids().end()));
  std::vector<std::uint64_t> counts;
  ASSERT_TRUE((*loaded)->CountBatch(views, {}, &counts).ok());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(counts[i], one_ends[i] - (i == 0 ? 0 : one_ends[i - 1]));
  }
}

TEST(TokenizerJson, NormalizedTextKeepsItsOffsets) {
  const auto loaded =
      Load(Replaced(Good(), "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  IdBuffer<std::uint32_t> ids;
  TokenOffsets offsets;
  // e and a combining acute become one character of two bytes.
  ASSERT_TRUE((*loaded)->Encode("abe\xCC\x81z", {}, &ids, &offsets).ok());
  EXPECT_EQ(Ids(ids.ids().begin(), ids.ids().end()), (Ids{256, 0xC3, 0xA9, 'z'}));
  EXPECT_EQ(offsets.begin, (std::vector<std::uint64_t>{0, 2, 2, 5}));
  EXPECT_EQ(offsets.end, (std::vector<std::uint64_t>{2, 5, 5, 6}));
}

TEST(DecodeStream, GivesWholeCharactersOnly) {
  const auto loaded = Load(Good());
  ASSERT_TRUE(loaded.ok());
  DecodeStream stream(*loaded);
  std::string text;
  for (const std::uint32_t id : {0xE2U, 0x82U}) ASSERT_TRUE(stream.Push(id, &text).ok());
  EXPECT_EQ(text, "");
  ASSERT_TRUE(stream.Push(0xAC, &text).ok());
  EXPECT_EQ(text, "\xE2\x82\xAC");
  ASSERT_TRUE(stream.Push(0xF0, &text).ok());
  stream.Finish(&text);
  EXPECT_EQ(text, "\xE2\x82\xAC\xF0");
  EXPECT_FALSE(stream.Push(99999, &text).ok());
}

}  // namespace
}  // namespace widestream
