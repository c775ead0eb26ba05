#include "engine/transform/tokenizer_implementation.h"

#include <algorithm>
#include <cstring>

#include "engine/transform/characters.h"

namespace widestream {
namespace {

using internal::AddedToken;
using internal::ChangedRun;

// A position in a normalized text, counted from the start of the original one. `end`: of the end
// of an id, so that an id that touches a changed run covers all of it.
std::size_t OriginalPosition(std::size_t at, bool end, std::size_t offset,
                             const std::vector<ChangedRun>* runs) {
  if (runs == nullptr || runs->empty()) return offset + at;
  // The last run that begins at or before it; for an end, strictly before.
  auto after = std::partition_point(runs->begin(), runs->end(), [&](const ChangedRun& run) {
    return end ? run.normalized_begin < at : run.normalized_begin <= at;
  });
  if (after == runs->begin()) return offset + at;
  const ChangedRun& run = *(after - 1);
  if (at < run.normalized_end || (end && at == run.normalized_end)) {
    return offset + (end ? run.end : run.begin);
  }
  return offset + run.end + (at - run.normalized_end);
}

// Where the white space that ends at `at` begins.
std::size_t SpaceBefore(std::string_view text, std::size_t at) {
  while (at > 0) {
    std::size_t lead = at - 1;
    while (lead > 0 && at - lead < 4 && internal::IsContinuation(text[lead])) --lead;
    const internal::Character character =
        internal::CharacterAt(text.data() + lead, text.data() + at);
    if (lead + character.bytes != at ||
        character.character_class != internal::CharacterClass::kSpace) {
      break;
    }
    at = lead;
  }
  return at;
}

std::size_t SpaceAfter(std::string_view text, std::size_t at) {
  const char* const end = text.data() + text.size();
  return static_cast<std::size_t>(
      internal::SkipRun(text.data() + at, end, internal::kSpaceClasses) - text.data());
}

internal::TokenMatcher MatcherOf(const std::vector<AddedToken>& tokens,
                                 const std::vector<std::uint32_t>& indices) {
  std::vector<std::string_view> names;
  names.reserve(indices.size());
  for (const std::uint32_t index : indices) names.emplace_back(tokens[index].name);
  return names.empty() ? internal::TokenMatcher() : internal::TokenMatcher(names);
}

}  // namespace

Tokenizer::Implementation::Implementation(std::unique_ptr<const internal::Bpe> bpe,
                                          internal::Vocabulary vocabulary, std::string digest)
    : bpe_(std::move(bpe)),
      pattern_(vocabulary.pattern),
      normalize_nfc_(vocabulary.normalize_nfc),
      special_tokens_hide_(vocabulary.special_tokens_hide),
      special_tokens_(std::move(vocabulary.special_tokens)),
      added_tokens_(std::move(vocabulary.added_tokens)),
      ids_before_(std::move(vocabulary.ids_before)),
      ids_after_(std::move(vocabulary.ids_after)),
      digest_(std::move(digest)) {
  size_ = bpe_->TokenCount();
  for (std::uint32_t i = 0; i < added_tokens_.size(); ++i) {
    AddedToken& added = added_tokens_[i];
    added_names_[added.id] = &added.name;
    size_ = std::max(size_, added.id + 1);
    (added.normalized ? normalized_tokens_ : original_tokens_).push_back(i);
  }
  // A name that is looked for in normalized text is normalized itself.
  std::vector<AddedToken> as_found = added_tokens_;
  for (const std::uint32_t i : normalized_tokens_) {
    if (!normalize_nfc_) break;
    as_found[i].name = std::string(internal::NormalizedText(added_tokens_[i].name).text());
  }
  original_matcher_ = MatcherOf(as_found, original_tokens_);
  normalized_matcher_ = MatcherOf(as_found, normalized_tokens_);
  for (const AddedToken& added : added_tokens_) {
    default_plan_.actions.push_back(added.special ? Action::kText : Action::kId);
    default_plan_.find_tokens = default_plan_.find_tokens || !added.special;
  }
  encoder_ = std::make_unique<const internal::Encoder>(bpe_.get(), pattern_, internal::BestIsa(),
                                                       size_ <= 65536);
}

Result<Tokenizer::Implementation::Plan> Tokenizer::Implementation::MakePlan(
    const EncodeOptions& options) const {
  Plan plan = default_plan_;
  const auto apply = [&](const SpecialTokenSet& set, Action action) {
    for (std::size_t i = 0; i < added_tokens_.size() && set.all; ++i) {
      if (added_tokens_[i].special) plan.actions[i] = action;
    }
    for (const std::string& name : set.names) {
      const auto found = std::find_if(
          added_tokens_.begin(), added_tokens_.end(),
          [&](const AddedToken& added) { return added.special && added.name == name; });
      if (found == added_tokens_.end()) {
        return Status::InvalidArgument("the tokenizer has no special token " +
                                       internal::Quoted(name) +
                                       "; SpecialTokens() lists those that it has");
      }
      plan.actions[static_cast<std::size_t>(found - added_tokens_.begin())] = action;
    }
    return Status::Ok();
  };
  WS_RETURN_IF_ERROR(apply(options.disallowed_special, Action::kRefuse));
  WS_RETURN_IF_ERROR(apply(options.allowed_special, Action::kId));
  for (const Action action : plan.actions) {
    plan.find_tokens = plan.find_tokens || action == Action::kId;
    plan.refuse_tokens = plan.refuse_tokens || action == Action::kRefuse;
  }
  plan.add_special_tokens = options.add_special_tokens;
  plan.most_ids = options.max_tokens;
  if (plan.add_special_tokens && plan.most_ids != SIZE_MAX) {
    const std::size_t added = ids_before_.size() + ids_after_.size();
    if (plan.most_ids < added) {
      return Status::InvalidArgument("max_tokens is " + std::to_string(plan.most_ids) +
                                     ", but the post-processor alone adds " +
                                     std::to_string(added) + " ids; allow more");
    }
    plan.most_ids -= added;
  }
  return plan;
}

Status Tokenizer::Implementation::CheckRefused(std::string_view text, const Plan& plan) const {
  for (const bool normalized : {false, true}) {
    const internal::TokenMatcher& matcher = normalized ? normalized_matcher_ : original_matcher_;
    const std::vector<std::uint32_t>& tokens = normalized ? normalized_tokens_ : original_tokens_;
    const auto refused = [&](std::uint32_t index) {
      return plan.actions[tokens[index]] == Action::kRefuse;
    };
    if (const auto match = matcher.Find(text, 0, refused)) {
      return Status::InvalidArgument(
          "the text has the special token " +
          internal::Quoted(added_tokens_[tokens[match->index]].name) + " at byte " +
          std::to_string(match->begin) +
          "; allow it to get its id, or leave it out of the disallowed ones to get it as text");
    }
  }
  return Status::Ok();
}

template <typename Plain, typename Token>
void Tokenizer::Implementation::Split(std::string_view text, const Stage& stage, const Plan& plan,
                                      const Plain& plain, const Token& token) const {
  std::size_t done = 0;
  std::size_t from = 0;
  const auto action = [&](std::uint32_t index) { return plan.actions[(*stage.tokens)[index]]; };
  const bool hide = special_tokens_hide_;
  while (plan.find_tokens) {
    const auto match = stage.matcher->Find(
        text, from, [&](std::uint32_t index) { return hide || action(index) == Action::kId; });
    if (!match) break;
    from = match->end;
    if (action(match->index) != Action::kId) continue;
    const AddedToken& added = added_tokens_[(*stage.tokens)[match->index]];
    std::size_t begin = match->begin;
    std::size_t end = match->end;
    if (added.strip_left) begin = std::max(SpaceBefore(text, begin), done);
    if (added.strip_right) end = SpaceAfter(text, end);
    begin = std::max(begin, done);
    if (done < begin) plain(done, begin);
    token(added.id, begin, end);
    done = end;
    from = std::max(from, end);
  }
  if (done < text.size()) plain(done, text.size());
}

template <typename Id>
void Tokenizer::Implementation::AddId(std::uint32_t id, std::size_t begin, std::size_t end,
                                      const Stage& stage, Run<Id>* run) const {
  if (run->sink->buffer != nullptr) {
    IdBuffer<Id>& buffer = *run->sink->buffer;
    buffer.Reserve(1);
    buffer.data()[buffer.size()] = static_cast<Id>(id);
    buffer.SetSize(buffer.size() + 1);
  }
  ++run->sink->count;
  if (run->offsets == nullptr) return;
  run->offsets->begin.push_back(OriginalPosition(begin, false, stage.offset, stage.runs));
  run->offsets->end.push_back(OriginalPosition(end, true, stage.offset, stage.runs));
}

template <typename Id>
void Tokenizer::Implementation::EncodePlain(std::string_view text, std::size_t begin,
                                            const Stage& stage, Run<Id>* run) const {
  run->sink->most = run->enough;
  const std::size_t before = run->sink->buffer != nullptr ? run->sink->buffer->size() : 0;
  encoder_->Encode({&text, 1}, run->memory, run->sink, nullptr);
  if (run->offsets == nullptr) return;
  for (const Id id : run->sink->buffer->ids().subspan(before)) {
    const std::size_t end = begin + bpe_->TokenBytes(id).size();
    run->offsets->begin.push_back(OriginalPosition(begin, false, stage.offset, stage.runs));
    run->offsets->end.push_back(OriginalPosition(end, true, stage.offset, stage.runs));
    begin = end;
  }
}

template <typename Id>
void Tokenizer::Implementation::EncodeNormalized(std::string_view text, const Stage& stage,
                                                 Run<Id>* run) const {
  Split(
      text, stage, run->plan,
      [&](std::size_t begin, std::size_t end) {
        if (run->sink->count < run->enough) {
          EncodePlain(text.substr(begin, end - begin), begin, stage, run);
        }
      },
      [&](std::uint32_t id, std::size_t begin, std::size_t end) {
        if (run->sink->count < run->enough) AddId(id, begin, end, stage, run);
      });
}

template <typename Id>
void Tokenizer::Implementation::EncodeOriginal(std::string_view text, Run<Id>* run) const {
  const Stage original{&original_matcher_, &original_tokens_};
  Split(
      text, original, run->plan,
      [&](std::size_t begin, std::size_t end) {
        if (run->sink->count >= run->enough) return;
        Stage stage{&normalized_matcher_, &normalized_tokens_, begin, nullptr};
        const std::string_view piece = text.substr(begin, end - begin);
        if (!normalize_nfc_) return EncodeNormalized(piece, stage, run);
        const internal::NormalizedText normalized(piece);
        stage.runs = &normalized.runs();
        EncodeNormalized(normalized.text(), stage, run);
      },
      [&](std::uint32_t id, std::size_t begin, std::size_t end) {
        if (run->sink->count < run->enough) AddId(id, begin, end, original, run);
      });
}

template <typename Id>
Status Tokenizer::Implementation::Encode(std::string_view text, const Plan& plan,
                                         internal::EncoderMemory* memory,
                                         internal::IdSink<Id>* sink, TokenOffsets* offsets) const {
  if (plan.refuse_tokens) WS_RETURN_IF_ERROR(CheckRefused(text, plan));
  Run<Id> run{plan, memory, sink, offsets, UINT64_MAX};
  const Stage nowhere{nullptr, nullptr};
  if (plan.add_special_tokens) {
    for (const std::uint32_t id : ids_before_) AddId(id, 0, 0, nowhere, &run);
  }
  const std::uint64_t limit = sink->count + std::min<std::uint64_t>(plan.most_ids, INT64_MAX);
  if (plan.most_ids != SIZE_MAX) run.enough = limit;
  if (!plan.find_tokens && !normalize_nfc_) {
    EncodePlain(text, 0, nowhere, &run);
  } else {
    EncodeOriginal(text, &run);
  }
  if (sink->count > limit) {
    const std::uint64_t more = sink->count - limit;
    sink->count = limit;
    if (sink->buffer != nullptr) sink->buffer->SetSize(sink->buffer->size() - more);
    if (offsets != nullptr) {
      offsets->begin.resize(offsets->begin.size() - more);
      offsets->end.resize(offsets->end.size() - more);
    }
  }
  if (plan.add_special_tokens) {
    for (const std::uint32_t id : ids_after_) {
      AddId(id, text.size(), text.size(), nowhere, &run);
    }
  }
  return Status::Ok();
}
template Status Tokenizer::Implementation::Encode(std::string_view, const Plan&,
                                                  internal::EncoderMemory*,
                                                  internal::IdSink<std::uint16_t>*,
                                                  TokenOffsets*) const;
template Status Tokenizer::Implementation::Encode(std::string_view, const Plan&,
                                                  internal::EncoderMemory*,
                                                  internal::IdSink<std::uint32_t>*,
                                                  TokenOffsets*) const;

bool Tokenizer::Implementation::IsPlain(std::string_view text, const Plan& plan) const {
  if (normalize_nfc_ && !internal::NormalizedText(text).runs().empty()) return false;
  if (!plan.find_tokens) return true;
  const auto any = [](std::uint32_t) { return true; };
  return !original_matcher_.Find(text, 0, any) && !normalized_matcher_.Find(text, 0, any);
}

template <typename Id>
Status Tokenizer::Implementation::EncodeTexts(std::span<const std::string_view> texts,
                                              const Plan& plan, internal::EncoderMemory* memory,
                                              internal::IdSink<Id>* sink, std::uint64_t* counts,
                                              std::size_t first_number) const {
  // Short texts are encoded many at once.
  constexpr std::size_t kMostTexts = 256;
  const bool together =
      !plan.refuse_tokens && !plan.add_special_tokens && plan.most_ids == SIZE_MAX;
  for (std::size_t i = 0; i < texts.size();) {
    std::size_t plain = 0;
    while (together && plain < kMostTexts && i + plain < texts.size() &&
           IsPlain(texts[i + plain], plan)) {
      ++plain;
    }
    if (plain != 0) {
      sink->most = UINT64_MAX;
      encoder_->Encode(texts.subspan(i, plain), memory, sink, counts + i);
      i += plain;
      continue;
    }
    Status status = Encode(texts[i], plan, memory, sink, nullptr);
    if (!status.ok()) return status.WithContext("text " + std::to_string(first_number + i));
    counts[i++] = sink->count;
  }
  return Status::Ok();
}
template Status Tokenizer::Implementation::EncodeTexts(std::span<const std::string_view>,
                                                       const Plan&, internal::EncoderMemory*,
                                                       internal::IdSink<std::uint16_t>*,
                                                       std::uint64_t*, std::size_t) const;
template Status Tokenizer::Implementation::EncodeTexts(std::span<const std::string_view>,
                                                       const Plan&, internal::EncoderMemory*,
                                                       internal::IdSink<std::uint32_t>*,
                                                       std::uint64_t*, std::size_t) const;

std::optional<std::string_view> Tokenizer::Implementation::BytesOf(std::uint32_t id) const {
  if (id < bpe_->TokenCount() && !bpe_->TokenBytes(id).empty()) return bpe_->TokenBytes(id);
  const auto added = added_names_.find(id);
  if (added == added_names_.end()) return std::nullopt;
  return *added->second;
}

template <typename Id>
Status Tokenizer::Implementation::Decode(std::span<const Id> ids, std::string* bytes) const {
  std::size_t total = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint32_t id = ids[i];
    std::size_t size = id < bpe_->TokenCount() ? bpe_->TokenBytes(id).size() : 0;
    if (size == 0) {
      const std::optional<std::string_view> token = BytesOf(id);
      if (!token) {
        return Status::InvalidArgument(
            "cannot decode: id " + std::to_string(id) + " at position " + std::to_string(i) +
            " is not in the vocabulary, whose ids are below " + std::to_string(size_) +
            "; were the ids made with another tokenizer?");
      }
      size = token->size();
    }
    total += size;
  }
  // Short tokens are copied as 16 bytes, of which the next token overwrites the rest.
  constexpr std::size_t kCopied = 16;
  static_assert(kCopied <= internal::Bpe::kReadableAfterToken);
  const std::size_t before = bytes->size();
  bytes->resize(before + total + kCopied);
  char* out = bytes->data() + before;
  for (const Id id : ids) {
    const std::string_view token = id < bpe_->TokenCount() ? bpe_->TokenBytes(id) : "";
    if (!token.empty() && token.size() <= kCopied) {
      std::memcpy(out, token.data(), kCopied);
      out += token.size();
    } else {
      const std::string_view any = token.empty() ? BytesOf(id).value_or(token) : token;
      std::memcpy(out, any.data(), any.size());
      out += any.size();
    }
  }
  bytes->resize(before + total);
  return Status::Ok();
}
template Status Tokenizer::Implementation::Decode(std::span<const std::uint16_t>,
                                                  std::string*) const;
template Status Tokenizer::Implementation::Decode(std::span<const std::uint32_t>,
                                                  std::string*) const;

}  // namespace widestream
