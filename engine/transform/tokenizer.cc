#include "engine/transform/tokenizer.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "engine/transform/tokenizer_implementation.h"

namespace widestream {
namespace {

using internal::IdSink;

template <typename Id>
Status CheckWidth(std::uint32_t vocabulary_size) {
  if (vocabulary_size - 1 <= std::numeric_limits<Id>::max()) return Status::Ok();
  return Status::InvalidArgument("the vocabulary has ids up to " +
                                 std::to_string(vocabulary_size - 1) +
                                 ", which 16 bits cannot hold; ask for 32-bit ids");
}

// Texts [begin, end) of a batch and their ids.
template <typename Id>
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  IdBuffer<Id> ids;
  std::vector<std::uint64_t> ends;
  Status status;
};

// Contiguous slices of about the same number of bytes, none empty.
template <typename Id>
std::vector<Slice<Id>> Cut(std::span<const std::string_view> texts, unsigned slices) {
  std::size_t total = 0;
  for (const std::string_view text : texts) total += text.size() + 1;
  std::vector<Slice<Id>> result;
  std::size_t begin = 0;
  std::size_t done = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    done += texts[i].size() + 1;
    if (done * slices < total * (result.size() + 1) && i + 1 != texts.size()) continue;
    result.emplace_back();
    result.back().begin = begin;
    result.back().end = begin = i + 1;
  }
  return result;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Implementation> implementation)
    : implementation_(std::move(implementation)) {}
Tokenizer::~Tokenizer() = default;

void Tokenizer::Encode(std::string_view text, std::vector<std::uint32_t>* ids) const {
  // More than this is not kept for the next call.
  constexpr std::size_t kMostKeptIds = std::size_t{1} << 18;
  const internal::Encoder::Lease lease(&implementation_->encoder());
  IdBuffer<std::uint32_t>& buffer = lease.memory()->ids;
  buffer.Clear();
  IdSink<std::uint32_t> sink{&buffer};
  // Without tokens to refuse there is no error.
  static_cast<void>(
      implementation_->Encode(text, implementation_->DefaultPlan(), lease.memory(), &sink, nullptr)
          .ok());
  ids->insert(ids->end(), buffer.ids().begin(), buffer.ids().end());
  if (buffer.capacity() > kMostKeptIds) buffer = IdBuffer<std::uint32_t>();
}

template <typename Id>
Status Tokenizer::Encode(std::string_view text, const EncodeOptions& options, IdBuffer<Id>* ids,
                         TokenOffsets* offsets) const {
  WS_RETURN_IF_ERROR(CheckWidth<Id>(VocabularySize()));
  WS_ASSIGN_OR_RETURN(const Implementation::Plan plan, implementation_->MakePlan(options));
  const internal::Encoder::Lease lease(&implementation_->encoder());
  const std::size_t before = ids->size();
  IdSink<Id> sink{ids};
  Status status = implementation_->Encode(text, plan, lease.memory(), &sink, offsets);
  if (!status.ok()) ids->SetSize(before);
  return status;
}
template Status Tokenizer::Encode(std::string_view, const EncodeOptions&, IdBuffer<std::uint16_t>*,
                                  TokenOffsets*) const;
template Status Tokenizer::Encode(std::string_view, const EncodeOptions&, IdBuffer<std::uint32_t>*,
                                  TokenOffsets*) const;

template <typename Id>
Status Tokenizer::EncodeBatch(std::span<const std::string_view> texts, const EncodeOptions& options,
                              unsigned threads, IdBuffer<Id>* ids,
                              std::vector<std::uint64_t>* ends) const {
  WS_RETURN_IF_ERROR(CheckWidth<Id>(VocabularySize()));
  WS_ASSIGN_OR_RETURN(const Implementation::Plan plan, implementation_->MakePlan(options));
  const auto encode = [&](std::size_t begin, std::size_t end, IdBuffer<Id>* buffer,
                          std::vector<std::uint64_t>* text_ends) {
    const internal::Encoder::Lease lease(&implementation_->encoder());
    const std::size_t first = text_ends->size();
    text_ends->resize(first + (end - begin));
    IdSink<Id> sink{buffer, buffer->size()};
    return implementation_->EncodeTexts(texts.subspan(begin, end - begin), plan, lease.memory(),
                                        &sink, text_ends->data() + first, begin);
  };
  const std::size_t ids_before = ids->size();
  const std::size_t ends_before = ends->size();
  ends->reserve(ends_before + texts.size());
  Status status;
  if (threads <= 1 || texts.size() <= 1) {
    status = encode(0, texts.size(), ids, ends);
  } else {
    std::vector<Slice<Id>> slices = Cut<Id>(texts, threads);
    std::vector<std::thread> workers;
    const auto work = [&](Slice<Id>* slice) {
      slice->status = encode(slice->begin, slice->end, &slice->ids, &slice->ends);
    };
    for (std::size_t i = 1; i < slices.size(); ++i) workers.emplace_back(work, &slices[i]);
    work(&slices[0]);
    for (std::thread& worker : workers) worker.join();
    std::size_t total = 0;
    for (const Slice<Id>& slice : slices) {
      if (status.ok()) status = slice.status;
      total += slice.ids.size();
    }
    if (status.ok()) ids->Reserve(total);
    for (Slice<Id>& slice : slices) {
      if (!status.ok()) break;
      std::copy_n(slice.ids.data(), slice.ids.size(), ids->data() + ids->size());
      for (const std::uint64_t end : slice.ends) ends->push_back(ids->size() + end);
      ids->SetSize(ids->size() + slice.ids.size());
    }
  }
  if (!status.ok()) {
    ids->SetSize(ids_before);
    ends->resize(ends_before);
  }
  return status;
}
template Status Tokenizer::EncodeBatch(std::span<const std::string_view>, const EncodeOptions&,
                                       unsigned, IdBuffer<std::uint16_t>*,
                                       std::vector<std::uint64_t>*) const;
template Status Tokenizer::EncodeBatch(std::span<const std::string_view>, const EncodeOptions&,
                                       unsigned, IdBuffer<std::uint32_t>*,
                                       std::vector<std::uint64_t>*) const;

Result<std::uint64_t> Tokenizer::Count(std::string_view text, const EncodeOptions& options) const {
  WS_ASSIGN_OR_RETURN(const Implementation::Plan plan, implementation_->MakePlan(options));
  const internal::Encoder::Lease lease(&implementation_->encoder());
  IdSink<std::uint32_t> sink{nullptr};
  WS_RETURN_IF_ERROR(implementation_->Encode(text, plan, lease.memory(), &sink, nullptr));
  return sink.count;
}

Status Tokenizer::CountBatch(std::span<const std::string_view> texts, const EncodeOptions& options,
                             std::vector<std::uint64_t>* counts) const {
  WS_ASSIGN_OR_RETURN(const Implementation::Plan plan, implementation_->MakePlan(options));
  const internal::Encoder::Lease lease(&implementation_->encoder());
  const std::size_t before = counts->size();
  counts->resize(before + texts.size());
  IdSink<std::uint32_t> sink{nullptr};
  Status status =
      implementation_->EncodeTexts(texts, plan, lease.memory(), &sink, counts->data() + before, 0);
  if (!status.ok()) {
    counts->resize(before);
    return status;
  }
  for (std::size_t i = counts->size(); i-- > before + 1;) (*counts)[i] -= (*counts)[i - 1];
  return Status::Ok();
}

Status Tokenizer::Decode(std::span<const std::uint32_t> ids, std::string* bytes) const {
  return implementation_->Decode(ids, bytes);
}
Status Tokenizer::Decode(std::span<const std::uint16_t> ids, std::string* bytes) const {
  return implementation_->Decode(ids, bytes);
}

template <typename Id>
Status Tokenizer::DecodeBatch(std::span<const Id> ids, std::span<const std::uint64_t> ends,
                              std::string* bytes, std::vector<std::uint64_t>* byte_ends) const {
  const std::size_t bytes_before = bytes->size();
  const std::size_t ends_before = byte_ends->size();
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    Status status;
    if (ends[i] < begin || ends[i] > ids.size()) {
      status = Status::InvalidArgument("it ends at id " + std::to_string(ends[i]) +
                                       ", but begins at " + std::to_string(begin) + " of " +
                                       std::to_string(ids.size()) + "; give ascending ends");
    } else {
      status = Decode(ids.subspan(begin, ends[i] - begin), bytes);
    }
    if (!status.ok()) {
      bytes->resize(bytes_before);
      byte_ends->resize(ends_before);
      return status.WithContext("text " + std::to_string(i));
    }
    byte_ends->push_back(bytes->size());
    begin = ends[i];
  }
  return Status::Ok();
}
template Status Tokenizer::DecodeBatch(std::span<const std::uint16_t>,
                                       std::span<const std::uint64_t>, std::string*,
                                       std::vector<std::uint64_t>*) const;
template Status Tokenizer::DecodeBatch(std::span<const std::uint32_t>,
                                       std::span<const std::uint64_t>, std::string*,
                                       std::vector<std::uint64_t>*) const;

std::optional<std::uint32_t> Tokenizer::SpecialTokenId(std::string_view name) const {
  const auto& special_tokens = implementation_->special_tokens();
  const auto found = special_tokens.find(std::string(name));
  if (found == special_tokens.end()) return std::nullopt;
  return found->second;
}
const std::map<std::string, std::uint32_t>& Tokenizer::SpecialTokens() const {
  return implementation_->special_tokens();
}
std::optional<std::string_view> Tokenizer::TokenBytes(std::uint32_t id) const {
  return implementation_->BytesOf(id);
}
std::optional<std::uint32_t> Tokenizer::TokenId(std::string_view bytes) const {
  if (bytes.empty()) return std::nullopt;
  const internal::Bpe& bpe = implementation_->bpe();
  const std::uint32_t id =
      bpe.FindToken(bytes.data(), bytes.size(), bpe.HashOf(bytes.data(), bytes.size()));
  if (id == internal::kNoId) return std::nullopt;
  return id;
}
std::uint32_t Tokenizer::VocabularySize() const { return implementation_->size(); }
const char* Tokenizer::PatternName() const {
  return internal::PatternName(implementation_->pattern());
}
const std::string& Tokenizer::Digest() const { return implementation_->digest(); }

}  // namespace widestream
