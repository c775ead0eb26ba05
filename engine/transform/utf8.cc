#include <algorithm>

#include "engine/transform/tokenizer.h"

namespace widestream {
namespace {

enum class Form { kWhole, kCut, kBad };

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

// The character at the start of `bytes` (not empty): kCut when more bytes could make it whole,
// kBad when its first byte is no part of one. `size` is that of a whole one, else 1.
Form CharacterAt(std::string_view bytes, std::size_t* size) {
  *size = 1;
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < 0x80) return Form::kWhole;
  if (first < 0xC2 || first > 0xF4) return Form::kBad;
  const std::size_t wanted = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (bytes.size() > 1) {
    const auto second = static_cast<unsigned char>(bytes[1]);
    const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (second < low || second > high) return Form::kBad;
  }
  for (std::size_t i = 2; i < std::min(wanted, bytes.size()); ++i) {
    if (!IsContinuation(bytes[i])) return Form::kBad;
  }
  if (bytes.size() < wanted) return Form::kCut;
  *size = wanted;
  return Form::kWhole;
}

}  // namespace

void BytesToCharacters(std::string_view text, bool round_up, std::span<std::uint64_t> positions) {
  std::uint64_t characters = 0;
  std::size_t at = 0;
  std::size_t size = 0;
  for (std::uint64_t& position : positions) {
    while (at < text.size()) {
      CharacterAt(text.substr(at), &size);
      if (at + size > position) break;
      at += size;
      ++characters;
    }
    position = characters + (round_up && at < position ? 1 : 0);
  }
}

DecodeStream::DecodeStream(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {}

Status DecodeStream::Push(std::uint32_t id, std::string* text) {
  WS_RETURN_IF_ERROR(tokenizer_->Decode(std::span<const std::uint32_t>(&id, 1), &pending_));
  // At most the last three bytes can be the start of a character that is not whole.
  std::size_t whole = 0;
  std::size_t size = 0;
  while (whole < pending_.size() &&
         CharacterAt(std::string_view(pending_).substr(whole), &size) != Form::kCut) {
    whole += size;
  }
  text->append(pending_, 0, whole);
  pending_.erase(0, whole);
  return Status::Ok();
}

void DecodeStream::Finish(std::string* text) {
  text->append(pending_);
  pending_.clear();
}

}  // namespace widestream
