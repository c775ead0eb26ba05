// Cuts a byte stream into lines in bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/base/status.h"
#include "engine/formats/byte_stream.h"

namespace widestream {

// Bytes that may be read (and are ignored) behind a line: simdjson loads whole vectors.
inline constexpr std::size_t kLinePaddingBytes = 64;

struct Line {
  std::uint64_t offset = 0;        // of its first byte in the (decompressed) stream
  std::uint64_t length_bytes = 0;  // without the newline; a "\r" before it counts
  std::uint64_t next_offset = 0;   // behind its newline
  // Empty if `too_long`. Valid until the next call; kLinePaddingBytes behind it can be read.
  std::string_view bytes;
  bool too_long = false;
};

// Gives the lines that are not blank (only spaces, tabs and carriage returns). A line longer than
// `max_line_bytes` is counted, not kept. Memory: the longest line kept and 2 MiB. Not thread-safe.
class LineReader {
 public:
  // `offset` is 0 or a Line::next_offset. At 0 a UTF-8 byte order mark is passed over.
  static Result<std::unique_ptr<LineReader>> Make(std::unique_ptr<ByteStream> stream,
                                                  std::uint64_t offset,
                                                  std::uint64_t max_line_bytes);

  // The next line; false at the end. After an error every call returns it.
  Result<bool> Next(Line* line);
  // Whether no line follows. What it reads to know is kept for Next; the last Line's bytes become
  // invalid. An error is left for Next to report (and there is then no end).
  bool AtEnd();
  // Where the next byte that was not given out lies; at the end, the size of the stream.
  std::uint64_t offset() const { return offset_; }

 private:
  LineReader(std::unique_ptr<ByteStream> stream, std::uint64_t offset,
             std::uint64_t max_line_bytes);

  Status CheckLineStart();
  Status PassByteOrderMark();
  Result<bool> Find(Line* line);
  Status DiscardLongLine(Line* line, bool* blank);
  Status Fill();
  void Resize(std::size_t capacity);

  const std::unique_ptr<ByteStream> stream_;
  const std::uint64_t max_line_bytes_;
  std::uint64_t offset_;  // of buffer_[begin_]
  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0;
  std::size_t chunk_bytes_ = 0;  // of the last read
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool stream_ended_ = false;
  bool ahead_ = false;  // pending_ holds what Find gave to AtEnd
  bool ahead_found_ = false;
  Line pending_;
  Status failure_;
};

}  // namespace widestream
