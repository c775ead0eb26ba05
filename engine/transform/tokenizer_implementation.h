// What a Tokenizer is made of.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/transform/added_tokens.h"
#include "engine/transform/bpe.h"
#include "engine/transform/encoder.h"
#include "engine/transform/normalizer.h"
#include "engine/transform/tokenizer.h"
#include "engine/transform/vocabulary.h"

namespace widestream {

class Tokenizer::Implementation {
 public:
  // What is done where the text spells an added token.
  enum class Action : std::uint8_t { kText, kId, kRefuse };
  // The options of a call, resolved once for all its texts.
  struct Plan {
    std::vector<Action> actions;  // by added token
    bool find_tokens = false;     // some action is not kText
    bool refuse_tokens = false;
    bool add_special_tokens = false;
    std::size_t most_ids = SIZE_MAX;  // of a text, without those that are added around it
  };

  Implementation(std::unique_ptr<const internal::Bpe> bpe, internal::Vocabulary vocabulary,
                 std::string digest);

  Result<Plan> MakePlan(const EncodeOptions& options) const;
  const Plan& DefaultPlan() const { return default_plan_; }
  // Appends the ids of the texts; counts[i] becomes the count of the sink after text i. On an
  // error, which names the text by its number from first_number on, something may have been
  // appended already.
  template <typename Id>
  Status EncodeTexts(std::span<const std::string_view> texts, const Plan& plan,
                     internal::EncoderMemory* memory, internal::IdSink<Id>* sink,
                     std::uint64_t* counts, std::size_t first_number) const;
  // Appends to the sink. On an error something may have been appended already.
  template <typename Id>
  Status Encode(std::string_view text, const Plan& plan, internal::EncoderMemory* memory,
                internal::IdSink<Id>* sink, TokenOffsets* offsets) const;
  template <typename Id>
  Status Decode(std::span<const Id> ids, std::string* bytes) const;

  // The bytes of an id, a name for an added token; nothing when it is not in the vocabulary.
  std::optional<std::string_view> BytesOf(std::uint32_t id) const;
  const internal::Bpe& bpe() const { return *bpe_; }
  const internal::Encoder& encoder() const { return *encoder_; }
  internal::Pattern pattern() const { return pattern_; }
  const std::map<std::string, std::uint32_t>& special_tokens() const { return special_tokens_; }
  std::uint32_t size() const { return size_; }
  const std::string& digest() const { return digest_; }

 private:
  // Nothing to normalize and no added token in it.
  bool IsPlain(std::string_view text, const Plan& plan) const;
  // One text on its way. Positions in the sink at or above `enough` ids may be left out.
  template <typename Id>
  struct Run {
    const Plan& plan;
    internal::EncoderMemory* memory;
    internal::IdSink<Id>* sink;
    TokenOffsets* offsets;
    std::uint64_t enough;
  };
  // A text in which added tokens are looked for, and where it came from.
  struct Stage {
    const internal::TokenMatcher* matcher;
    const std::vector<std::uint32_t>* tokens;  // by the matcher's index
    std::size_t offset = 0;                    // in the original text
    const std::vector<internal::ChangedRun>* runs = nullptr;
  };

  Status CheckRefused(std::string_view text, const Plan& plan) const;
  // Calls plain(begin, end) and token(index, begin, end) for what a text consists of.
  template <typename Plain, typename Token>
  void Split(std::string_view text, const Stage& stage, const Plan& plan, const Plain& plain,
             const Token& token) const;
  template <typename Id>
  void EncodeOriginal(std::string_view text, Run<Id>* run) const;
  template <typename Id>
  void EncodeNormalized(std::string_view text, const Stage& stage, Run<Id>* run) const;
  template <typename Id>
  void EncodePlain(std::string_view text, std::size_t begin, const Stage& stage,
                   Run<Id>* run) const;
  template <typename Id>
  void AddId(std::uint32_t id, std::size_t begin, std::size_t end, const Stage& stage,
             Run<Id>* run) const;

  std::unique_ptr<const internal::Bpe> bpe_;
  internal::Pattern pattern_;
  bool normalize_nfc_;
  bool special_tokens_hide_;
  std::map<std::string, std::uint32_t> special_tokens_;
  std::vector<internal::AddedToken> added_tokens_;
  std::vector<std::uint32_t> ids_before_;
  std::vector<std::uint32_t> ids_after_;
  std::string digest_;
  std::uint32_t size_ = 0;
  std::map<std::uint32_t, const std::string*> added_names_;
  // Those found in the original text and those in the normalized one.
  std::vector<std::uint32_t> original_tokens_;
  std::vector<std::uint32_t> normalized_tokens_;
  internal::TokenMatcher original_matcher_;
  internal::TokenMatcher normalized_matcher_;
  Plan default_plan_;
  std::unique_ptr<const internal::Encoder> encoder_;
};

}  // namespace widestream
