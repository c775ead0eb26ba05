#include "engine/formats/line_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace widestream {
namespace {

constexpr std::size_t kMinChunkBytes = 64U << 10;
constexpr std::size_t kMaxChunkBytes = 1U << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool IsBlank(const char* bytes, std::size_t size) {
  return std::all_of(bytes, bytes + size,
                     [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
}

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteStream> stream, std::uint64_t offset,
                       std::uint64_t max_line_bytes)
    : stream_(std::move(stream)), max_line_bytes_(max_line_bytes), offset_(offset) {}

Result<std::unique_ptr<LineReader>> LineReader::Make(std::unique_ptr<ByteStream> stream,
                                                     std::uint64_t offset,
                                                     std::uint64_t max_line_bytes) {
  std::unique_ptr<LineReader> reader(new LineReader(std::move(stream), offset, max_line_bytes));
  if (offset == 0) {
    WS_RETURN_IF_ERROR(reader->PassByteOrderMark());
  } else {
    WS_RETURN_IF_ERROR(reader->CheckLineStart());
  }
  return reader;
}

// A restart offset has a newline before it, or it is the end of a file without a last newline.
Status LineReader::CheckLineStart() {
  WS_RETURN_IF_ERROR(stream_->Skip(offset_ - 1));
  char before = 0;
  WS_ASSIGN_OR_RETURN(const std::size_t got, stream_->Read(&before, 1));
  if (got == 1 && before == '\n') return {};
  if (got == 1) {
    WS_RETURN_IF_ERROR(Fill());
    if (begin_ == end_) return {};
  }
  return Status::DataCorruption("no line begins at byte " + std::to_string(offset_) +
                                ": the file changed since that position was noted; restore it, or "
                                "start the source again");
}

Status LineReader::PassByteOrderMark() {
  while (end_ - begin_ < kByteOrderMark.size() && !stream_ended_) WS_RETURN_IF_ERROR(Fill());
  const std::string_view head(buffer_.get() + begin_, end_ - begin_);
  if (head.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    begin_ += kByteOrderMark.size();
    offset_ += kByteOrderMark.size();
  }
  return {};
}

Result<bool> LineReader::Next(Line* line) {
  if (ahead_) {
    ahead_ = false;
    WS_RETURN_IF_ERROR(failure_);
    *line = pending_;
    return ahead_found_;
  }
  WS_RETURN_IF_ERROR(failure_);
  Result<bool> found = Find(line);
  failure_ = found.status();
  return found;
}

bool LineReader::AtEnd() {
  if (!failure_.ok()) return false;
  if (!ahead_) {
    const Result<bool> found = Find(&pending_);
    failure_ = found.status();
    ahead_ = true;
    ahead_found_ = found.ok() && *found;
  }
  return failure_.ok() && !ahead_found_;
}

Result<bool> LineReader::Find(Line* line) {
  std::size_t scanned = 0;  // bytes from begin_ known to hold no newline
  while (true) {
    const char* begin = buffer_.get() + begin_;
    const std::size_t held = end_ - begin_;
    const void* newline =
        held > scanned ? std::memchr(begin + scanned, '\n', held - scanned) : nullptr;
    bool blank = false;
    if (newline == nullptr && !stream_ended_ && held <= max_line_bytes_) {
      scanned = held;
      WS_RETURN_IF_ERROR(Fill());
      continue;
    }
    if (newline == nullptr && held > max_line_bytes_) {
      WS_RETURN_IF_ERROR(DiscardLongLine(line, &blank));
    } else {
      if (newline == nullptr && held == 0) return false;
      const std::size_t length =
          newline == nullptr ? held
                             : static_cast<std::size_t>(static_cast<const char*>(newline) - begin);
      const std::size_t consumed = length + (newline == nullptr ? 0 : 1);
      line->offset = offset_;
      line->length_bytes = length;
      line->next_offset = offset_ + consumed;
      line->too_long = length > max_line_bytes_;
      line->bytes = line->too_long ? std::string_view() : std::string_view(begin, length);
      blank = IsBlank(begin, length);
      begin_ += consumed;
      offset_ += consumed;
    }
    if (!blank) return true;
    scanned = 0;
  }
}

// Drops a line that does not end in the buffer, chunk by chunk.
Status LineReader::DiscardLongLine(Line* line, bool* blank) {
  *line = Line{};
  line->offset = offset_;
  line->too_long = true;
  *blank = true;
  while (true) {
    const char* begin = buffer_.get() + begin_;
    const std::size_t held = end_ - begin_;
    const void* newline = held > 0 ? std::memchr(begin, '\n', held) : nullptr;
    const std::size_t length =
        newline == nullptr ? held
                           : static_cast<std::size_t>(static_cast<const char*>(newline) - begin);
    *blank = *blank && IsBlank(begin, length);
    line->length_bytes += length;
    const std::size_t consumed = length + (newline == nullptr ? 0 : 1);
    begin_ += consumed;
    offset_ += consumed;
    if (newline != nullptr || stream_ended_) break;
    WS_RETURN_IF_ERROR(Fill());
  }
  line->next_offset = offset_;
  return {};
}

// Makes room for a chunk behind what is held, and reads into it. The first chunk is small: a reader
// is often opened for one block.
Status LineReader::Fill() {
  chunk_bytes_ = std::clamp(2 * chunk_bytes_, kMinChunkBytes, kMaxChunkBytes);
  const std::size_t held = end_ - begin_;
  const std::size_t wanted = 2 * std::max(held, chunk_bytes_);
  // Grow by doubling for a long line; give the memory back once short lines follow.
  if (capacity_ < held + chunk_bytes_ || capacity_ > 4 * wanted) {
    const auto bound = static_cast<std::size_t>(
        std::min<std::uint64_t>(max_line_bytes_, SIZE_MAX / 4) + 2 * kMaxChunkBytes);
    Resize(std::max(held + chunk_bytes_, std::min(wanted, bound)));
  } else if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, held);
    begin_ = 0;
    end_ = held;
  }
  WS_ASSIGN_OR_RETURN(const std::size_t got, stream_->Read(buffer_.get() + end_, chunk_bytes_));
  end_ += got;
  stream_ended_ = got == 0;
  return {};
}

void LineReader::Resize(std::size_t capacity) {
  std::unique_ptr<char[]> larger(new char[capacity + kLinePaddingBytes]);
  const std::size_t held = end_ - begin_;
  if (held > 0) std::memcpy(larger.get(), buffer_.get() + begin_, held);
  std::memset(larger.get() + capacity, 0, kLinePaddingBytes);
  buffer_ = std::move(larger);
  capacity_ = capacity;
  begin_ = 0;
  end_ = held;
}

}  // namespace widestream
