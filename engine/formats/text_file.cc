#include "engine/formats/text_file.h"

#include <simdjson.h>

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/formats/byte_stream.h"

namespace widestream {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

class TextUnitReader final : public UnitReader {
 public:
  TextUnitReader(std::shared_ptr<const RandomAccessFile> file, Compression compression,
                 std::uint64_t record_bytes, bool done)
      : file_(std::move(file)),
        compression_(compression),
        record_bytes_(record_bytes),
        done_(done) {}

  Status Next(std::uint64_t /*records*/, std::uint64_t /*bytes*/, RecordBlock* block) override {
    block->Clear();
    block->next_offset = 1;
    block->end_of_unit = true;
    if (std::exchange(done_, true)) return {};
    auto text = std::make_shared<std::string>();
    std::string error;
    WS_RETURN_IF_ERROR(Read(text.get(), &error));
    RawRecord record;
    if (error.empty()) {
      record.text = *text;
      if (record.text.starts_with(kByteOrderMark)) {
        record.text.remove_prefix(kByteOrderMark.size());
      }
      block->raw_bytes = text->size();
      block->owners.push_back(std::move(text));
    } else {
      block->raw_bytes = file_->size_bytes();
      block->errors.push_back(std::move(error));
      record.error = 0;
    }
    block->records.push_back(record);
    return {};
  }

 private:
  // Storage that fails is a Status; a file that holds no text is an `error`.
  Status Read(std::string* text, std::string* error) {
    const std::unique_ptr<ByteStream> stream = OpenByteStream(file_, compression_);
    while (text->size() <= record_bytes_) {
      const std::size_t before = text->size();
      const auto room =
          static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, record_bytes_ + 1 - before));
      text->resize(before + room);
      const Result<std::size_t> count = stream->Read(text->data() + before, room);
      if (!count.ok() && count.status().code() != StatusCode::kDataCorruption) {
        return count.status();
      }
      if (!count.ok()) {
        *error = count.status().message();
        return {};
      }
      text->resize(before + *count);
      if (*count == 0) break;
    }
    if (text->size() > record_bytes_) {
      *error = StrCat("the document has more than errors.record_bytes = ", record_bytes_, " bytes");
    } else if (!simdjson::validate_utf8(text->data(), text->size())) {
      *error = "invalid UTF-8";
    }
    return {};
  }

  static constexpr std::size_t kReadBytes = 64U << 10;

  const std::shared_ptr<const RandomAccessFile> file_;
  const Compression compression_;
  const std::uint64_t record_bytes_;
  bool done_;
};

class TextShardReader final : public ShardReader {
 public:
  TextShardReader(std::shared_ptr<const RandomAccessFile> file, Compression compression,
                  std::uint64_t record_bytes)
      : file_(std::move(file)), compression_(compression), record_bytes_(record_bytes) {
    ShardUnit unit;
    unit.records = 1;
    unit.bytes = file_->size_bytes();
    units_.push_back(unit);
  }

  const std::vector<ShardUnit>& units() const override { return units_; }

  Result<std::unique_ptr<UnitReader>> OpenUnit(std::uint64_t unit, std::uint64_t offset) override {
    if (unit != 0 || offset > 1) {
      return Status::InvalidArgument(StrCat("'", file_->path(), "': there is no document ", offset,
                                            " of unit ", unit, ", a text file is one document"));
    }
    return std::unique_ptr<UnitReader>(
        std::make_unique<TextUnitReader>(file_, compression_, record_bytes_, offset == 1));
  }

  std::vector<std::string> Schema() const override { return {}; }

 private:
  const std::shared_ptr<const RandomAccessFile> file_;
  const Compression compression_;
  const std::uint64_t record_bytes_;
  std::vector<ShardUnit> units_;
};

}  // namespace

Result<std::shared_ptr<ShardReader>> OpenTextShard(FileSystem& fs, const std::string& path,
                                                   const ReadOptions& options) {
  WS_ASSIGN_OR_RETURN(std::shared_ptr<const RandomAccessFile> file, fs.Open(path));
  return std::shared_ptr<ShardReader>(std::make_shared<TextShardReader>(
      std::move(file), CompressionFromName(path), options.record_bytes));
}

}  // namespace widestream
