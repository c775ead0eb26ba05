#include "engine/formats/jsonl.h"

#include <algorithm>
#include <utility>

#include "engine/formats/arena.h"
#include "engine/formats/byte_stream.h"
#include "engine/formats/json_text.h"
#include "engine/formats/line_reader.h"

namespace widestream {
namespace {

class JsonlUnitReader final : public UnitReader {
 public:
  JsonlUnitReader(std::string path, const ReadOptions& options, std::unique_ptr<LineReader> lines)
      : path_(std::move(path)),
        record_bytes_(options.record_bytes),
        extractor_(options.text),
        lines_(std::move(lines)),
        next_offset_(lines_->offset()) {}

  Status Next(std::uint64_t records, std::uint64_t bytes, RecordBlock* block) override {
    block->Clear();
    block->next_offset = next_offset_;
    Arena arena(&block->owners);
    Line line;
    while (block->records.size() < std::max<std::uint64_t>(records, 1) &&
           (block->records.empty() || block->raw_bytes < bytes)) {
      Result<bool> found = lines_->Next(&line);
      if (!found.ok()) return found.status().WithContext("'" + path_ + "'");
      if (!*found) {
        block->end_of_unit = true;
        if (block->records.empty()) block->next_offset = lines_->offset();
        return {};
      }
      Add(line, &arena, block);
      next_offset_ = line.next_offset;
      block->next_offset = line.next_offset;
    }
    block->end_of_unit = lines_->AtEnd();
    return {};
  }

 private:
  void Add(const Line& line, Arena* arena, RecordBlock* block) {
    RawRecord record;
    record.offset = line.offset;
    std::string error;
    if (line.too_long) {
      error = "the line has " + std::to_string(line.length_bytes) +
              " bytes, more than errors.record_bytes = " + std::to_string(record_bytes_);
    } else if (std::string_view text; extractor_.Extract(line.bytes, &text, &error)) {
      record.text = arena->Copy(text);
    }
    if (!error.empty()) {
      // A broken shard gives the same reason again and again.
      if (block->errors.empty() || block->errors.back() != error) {
        block->errors.push_back(std::move(error));
      }
      record.error = static_cast<std::int32_t>(block->errors.size() - 1);
    }
    block->records.push_back(record);
    block->raw_bytes += line.length_bytes;
  }

  const std::string path_;
  const std::uint64_t record_bytes_;
  JsonTextExtractor extractor_;
  const std::unique_ptr<LineReader> lines_;
  std::uint64_t next_offset_;
};

class JsonlShardReader final : public ShardReader {
 public:
  JsonlShardReader(std::shared_ptr<const RandomAccessFile> file, Compression compression,
                   ReadOptions options)
      : file_(std::move(file)), compression_(compression), options_(std::move(options)) {
    ShardUnit unit;
    unit.bytes = file_->size_bytes();
    units_.push_back(unit);
  }

  const std::vector<ShardUnit>& units() const override { return units_; }

  Result<std::unique_ptr<UnitReader>> OpenUnit(std::uint64_t unit, std::uint64_t offset) override {
    if (unit != 0) {
      return Status::InvalidArgument("'" + file_->path() + "': there is no unit " +
                                     std::to_string(unit) + ", a JSON Lines file is one unit");
    }
    Result<std::unique_ptr<LineReader>> lines =
        LineReader::Make(OpenByteStream(file_, compression_), offset, options_.record_bytes);
    if (!lines.ok()) return lines.status().WithContext("'" + file_->path() + "'");
    return std::unique_ptr<UnitReader>(
        std::make_unique<JsonlUnitReader>(file_->path(), options_, *std::move(lines)));
  }

  std::vector<std::string> Schema() const override { return {}; }

 private:
  const std::shared_ptr<const RandomAccessFile> file_;
  const Compression compression_;
  const ReadOptions options_;
  std::vector<ShardUnit> units_;
};

// A compressed file without the suffix would be one long stretch of bad records.
Status CheckNotCompressed(const RandomAccessFile& file) {
  char head[4] = {};
  const auto size =
      static_cast<std::size_t>(std::min<std::uint64_t>(sizeof(head), file.size_bytes()));
  WS_RETURN_IF_ERROR(ReadExactly(file, 0, size, head));
  const std::string_view start(head, size);
  const char* suffix = nullptr;
  if (start.substr(0, 2) == "\x1f\x8b") suffix = ".gz";
  if (start == "\x28\xb5\x2f\xfd") suffix = ".zst";
  if (suffix == nullptr) return {};
  return Status::InvalidArgument("'" + file.path() + "' is compressed but its name does not say " +
                                 "so: rename it to end in '" + suffix + "'");
}

}  // namespace

Result<std::shared_ptr<ShardReader>> OpenJsonlShard(FileSystem& fs, const std::string& path,
                                                    const ReadOptions& options) {
  if (options.text.empty()) return Status::InvalidArgument("the name of the text key is empty");
  if (options.record_bytes == 0 || options.record_bytes > JsonTextExtractor::kMaxLineBytes) {
    return Status::InvalidArgument("errors.record_bytes is " +
                                   std::to_string(options.record_bytes) + "; it must be 1 to " +
                                   std::to_string(JsonTextExtractor::kMaxLineBytes));
  }
  WS_ASSIGN_OR_RETURN(std::shared_ptr<const RandomAccessFile> file, fs.Open(path));
  const Compression compression = CompressionFromName(path);
  if (compression == Compression::kNone) WS_RETURN_IF_ERROR(CheckNotCompressed(*file));
  return std::shared_ptr<ShardReader>(
      std::make_shared<JsonlShardReader>(std::move(file), compression, options));
}

}  // namespace widestream
