#include "engine/transform/chat.h"

#include <optional>

#include "engine/transform/id_buffer.h"

namespace widestream {
namespace {

Status CheckRanges(const std::vector<ByteRange>& ranges, std::size_t size, const char* what) {
  std::uint64_t before = 0;
  for (const ByteRange& range : ranges) {
    if (range.begin < before || range.end < range.begin || range.end > size) {
      return Status::InvalidArgument(
          std::string("the ") + what + " places of a conversation must ascend inside of its " +
          std::to_string(size) + " bytes; one is [" + std::to_string(range.begin) + ", " +
          std::to_string(range.end) + ")");
    }
    before = range.end;
  }
  return {};
}

// Answers, for ascending places, whether one touches a learned range.
class LearnedRanges {
 public:
  explicit LearnedRanges(const std::vector<ByteRange>& ranges) : ranges_(ranges) {}
  bool Touches(std::uint64_t begin, std::uint64_t end) {
    while (next_ < ranges_.size() && ranges_[next_].end <= begin) ++next_;
    return next_ < ranges_.size() && ranges_[next_].begin < end &&
           ranges_[next_].begin < ranges_[next_].end;
  }

 private:
  const std::vector<ByteRange>& ranges_;
  std::size_t next_ = 0;
};

}  // namespace

Status EncodeChat(const Tokenizer& tokenizer, const ChatText& chat, ChatIds* out) {
  WS_RETURN_IF_ERROR(CheckRanges(chat.special, chat.text.size(), "special"));
  WS_RETURN_IF_ERROR(CheckRanges(chat.learned, chat.text.size(), "learned"));
  out->ids.clear();
  out->loss_mask.clear();
  const std::string_view text = chat.text;
  LearnedRanges learned(chat.learned);
  IdBuffer<std::uint32_t> ids;
  TokenOffsets offsets;
  const auto add_text = [&](std::uint64_t begin, std::uint64_t end) -> Status {
    if (begin == end) return {};
    ids.Clear();
    offsets.begin.clear();
    offsets.end.clear();
    WS_RETURN_IF_ERROR(tokenizer.Encode(text.substr(begin, end - begin), {}, &ids, &offsets));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      out->ids.push_back(ids.data()[i]);
      out->loss_mask.push_back(
          learned.Touches(begin + offsets.begin[i], begin + offsets.end[i]) ? 1 : 0);
    }
    return {};
  };
  std::uint64_t at = 0;
  for (const ByteRange& special : chat.special) {
    WS_RETURN_IF_ERROR(add_text(at, special.begin));
    const std::string_view name = text.substr(special.begin, special.end - special.begin);
    const std::optional<std::uint32_t> id = tokenizer.SpecialTokenId(name);
    if (!id.has_value()) {
      return Status::InvalidArgument("byte " + std::to_string(special.begin) +
                                     " of a conversation should begin a special token, but '" +
                                     std::string(name.substr(0, 64)) + "' is none");
    }
    out->ids.push_back(*id);
    out->loss_mask.push_back(learned.Touches(special.begin, special.end) ? 1 : 0);
    at = special.end;
  }
  return add_text(at, text.size());
}

}  // namespace widestream
