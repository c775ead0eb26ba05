#include "engine/formats/parquet.h"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/formats/arena.h"
#include "engine/formats/arrow_glue.h"
#include "engine/formats/names.h"
#include "engine/formats/parquet_footer.h"

namespace widestream {
namespace {

// The most that decoding one column of one row group may hold, whatever the file claims.
constexpr std::uint64_t kReaderMemoryBytes = 2ULL << 30;
constexpr std::size_t kColumnsNamed = 20;

std::int32_t ReadForGlue(void* context, std::uint64_t offset, std::uint64_t size, void* out,
                         ws_arrow_error* error) {
  return ToGlueError(ReadExactly(*static_cast<const RandomAccessFile*>(context), offset,
                                 static_cast<std::size_t>(size), static_cast<char*>(out)),
                     error);
}

// An open file and what the glue made of it.
class GlueShard {
 public:
  GlueShard(const ws_arrow_glue* glue, std::unique_ptr<RandomAccessFile> file)
      : glue_(glue), file_(std::move(file)) {}
  ~GlueShard() {
    if (shard_ != nullptr) glue_->close_shard(shard_);
  }
  GlueShard(const GlueShard&) = delete;
  GlueShard& operator=(const GlueShard&) = delete;

  Status Open(std::uint64_t footer_bytes) {
    const ws_arrow_file callbacks = {file_.get(), file_->size_bytes(), ReadForGlue};
    ws_arrow_error error{};
    if (glue_->open_shard(&callbacks, footer_bytes, &shard_, &error) != 0) {
      return FromGlueError(error);
    }
    return {};
  }
  const ws_arrow_glue& glue() const { return *glue_; }
  const ws_arrow_shard* shard() const { return shard_; }
  const std::string& path() const { return file_->path(); }

 private:
  const ws_arrow_glue* const glue_;
  const std::unique_ptr<RandomAccessFile> file_;
  ws_arrow_shard* shard_ = nullptr;
};

class ParquetUnitReader final : public UnitReader {
 public:
  ParquetUnitReader(std::shared_ptr<const GlueShard> shard, ws_arrow_reader* reader,
                    std::uint64_t first_record, std::uint64_t records, std::uint64_t position,
                    const ReadOptions& options)
      : shard_(std::move(shard)),
        reader_(reader),
        first_record_(first_record),
        records_(records),
        position_(position),
        options_(options) {}
  ~ParquetUnitReader() override { shard_->glue().close_reader(reader_); }
  ParquetUnitReader(const ParquetUnitReader&) = delete;
  ParquetUnitReader& operator=(const ParquetUnitReader&) = delete;

  Status Next(std::uint64_t records, std::uint64_t /*bytes*/, RecordBlock* block) override {
    block->Clear();
    WS_RETURN_IF_ERROR(failure_);
    Arena arena(&block->owners);
    const std::uint64_t end =
        position_ + std::min(std::max<std::uint64_t>(records, 1), records_ - position_);
    while (position_ < end) {
      const ws_arrow_text* texts = nullptr;
      std::uint64_t count = 0;
      ws_arrow_error error{};
      if (shard_->glue().read(reader_, end - position_, &texts, &count, &error) != 0) {
        failure_ = FromGlueError(error).WithContext("'" + shard_->path() + "', column " +
                                                    QuoteName(options_.text) + ", record " +
                                                    std::to_string(first_record_ + position_) +
                                                    ": the page cannot be read; restore the file");
        return failure_;
      }
      for (std::uint64_t i = 0; i < count; ++i) Add(texts[i], &arena, block);
    }
    block->next_offset = position_;
    block->end_of_unit = position_ == records_;
    return {};
  }
  std::optional<std::uint64_t> DecodedRecords() const override {
    return shard_->glue().decoded(reader_);
  }

 private:
  void Add(const ws_arrow_text& text, Arena* arena, RecordBlock* block) {
    RawRecord record;
    record.offset = first_record_ + position_++;
    block->raw_bytes += text.size;
    std::string error;
    if (text.data == nullptr) {
      error = "the text is null";
    } else if (text.size > options_.record_bytes) {
      error = "the text has " + std::to_string(text.size) +
              " bytes, more than errors.record_bytes = " + std::to_string(options_.record_bytes);
    } else if (!simdjson::validate_utf8(text.data, static_cast<std::size_t>(text.size))) {
      error = "invalid UTF-8";
    } else {
      record.text = arena->Copy({text.data, static_cast<std::size_t>(text.size)});
    }
    if (!error.empty()) {
      if (block->errors.empty() || block->errors.back() != error) {
        block->errors.push_back(std::move(error));
      }
      record.error = static_cast<std::int32_t>(block->errors.size() - 1);
    }
    block->records.push_back(record);
  }

  const std::shared_ptr<const GlueShard> shard_;
  ws_arrow_reader* const reader_;
  const std::uint64_t first_record_;
  const std::uint64_t records_;
  std::uint64_t position_;  // in the row group
  const ReadOptions options_;
  Status failure_;
};

class ParquetShardReader final : public ShardReader {
 public:
  ParquetShardReader(std::shared_ptr<const GlueShard> shard, ReadOptions options)
      : shard_(std::move(shard)), options_(std::move(options)) {}

  // Resolves the column and reads what the footer says of each row group.
  Status Prepare() {
    const std::uint32_t columns = shard_->glue().column_count(shard_->shard());
    for (std::uint32_t i = 0; i < columns; ++i) {
      ws_arrow_column column{};
      ws_arrow_error error{};
      if (shard_->glue().column(shard_->shard(), i, &column, &error) != 0) {
        return FromGlueError(error);
      }
      columns_.push_back(column);
    }
    WS_RETURN_IF_ERROR(FindColumn());
    std::uint64_t first_record = 0;
    const std::uint32_t row_groups = shard_->glue().row_group_count(shard_->shard());
    for (std::uint32_t i = 0; i < row_groups; ++i) {
      ws_arrow_row_group described{};
      ws_arrow_error error{};
      if (shard_->glue().row_group(shard_->shard(), i, column_, &described, &error) != 0) {
        return FromGlueError(error);
      }
      if (described.records > kMaxRecords - first_record) {
        return Status::DataCorruption("its footer claims more than 2^62 records; restore the file");
      }
      ShardUnit unit;
      unit.records = described.records;
      unit.bytes = described.uncompressed_bytes;
      unit.first_record = first_record;
      first_record += described.records;
      units_.push_back(unit);
    }
    return {};
  }

  const std::vector<ShardUnit>& units() const override { return units_; }

  Result<std::unique_ptr<UnitReader>> OpenUnit(std::uint64_t unit, std::uint64_t offset) override {
    if (unit >= units_.size()) {
      return Status::InvalidArgument("'" + shard_->path() + "': there is no row group " +
                                     std::to_string(unit) + " of " + std::to_string(units_.size()));
    }
    ws_arrow_reader* reader = nullptr;
    ws_arrow_error error{};
    if (shard_->glue().open_reader(shard_->shard(), static_cast<std::uint32_t>(unit), column_,
                                   offset, kReaderMemoryBytes, &reader, &error) != 0) {
      return FromGlueError(error).WithContext("'" + shard_->path() + "', column " +
                                              QuoteName(options_.text));
    }
    const ShardUnit& found = units_[static_cast<std::size_t>(unit)];
    return std::unique_ptr<UnitReader>(std::make_unique<ParquetUnitReader>(
        shard_, reader, found.first_record, found.records.value_or(0), offset, options_));
  }

  std::vector<std::string> Schema() const override {
    std::vector<std::string> lines;
    lines.reserve(columns_.size());
    for (const ws_arrow_column& column : columns_) {
      lines.push_back(std::string(column.path) + ": " + column.type);
    }
    return lines;
  }

 private:
  static constexpr std::uint64_t kMaxRecords = 1ULL << 62;

  Status FindColumn() {
    const ws_arrow_column* found = nullptr;
    for (const ws_arrow_column& column : columns_) {
      if (options_.text != column.path) continue;
      if (found == nullptr || (found->is_nested != 0 && column.is_nested == 0)) found = &column;
    }
    if (found == nullptr) return ColumnMissing();
    const std::string name = "column " + QuoteName(options_.text) + " is ";
    if (found->is_repeated != 0) {
      return Status::InvalidArgument(name + "a " + found->type +
                                     ", not one text a record; write it as a string column");
    }
    if (found->is_text == 0) {
      return Status::InvalidArgument(name + "of type " + QuoteName(found->type) +
                                     ", not text: name a string column, or write it as one" +
                                     Columns());
    }
    column_ = static_cast<std::uint32_t>(found - columns_.data());
    return {};
  }
  Status ColumnMissing() const {
    std::string message = "there is no column " + QuoteName(options_.text);
    std::vector<std::string> names;
    for (const ws_arrow_column& column : columns_) {
      if (std::string_view(column.path).starts_with(options_.text + ".")) {
        return Status::InvalidArgument("column " + QuoteName(options_.text) +
                                       " is a group; name one of its fields, such as " +
                                       QuoteName(column.path));
      }
      names.emplace_back(column.path);
    }
    const std::string nearest = NearestName(options_.text, names);
    if (!nearest.empty()) message += "; did you mean " + QuoteName(nearest) + "?";
    return Status::InvalidArgument(message + Columns() +
                                   "; set the source's `text` to one of them");
  }
  std::string Columns() const {
    std::string list = " (columns: ";
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i == kColumnsNamed) {
        list += ", and " + std::to_string(columns_.size() - i) + " more";
        break;
      }
      list += (i == 0 ? "" : ", ") + QuoteName(columns_[i].path);
    }
    return list + ")";
  }

  const std::shared_ptr<const GlueShard> shard_;
  const ReadOptions options_;
  std::vector<ws_arrow_column> columns_;  // their strings are the shard's
  std::vector<ShardUnit> units_;
  std::uint32_t column_ = 0;
};

}  // namespace

Result<std::shared_ptr<ShardReader>> OpenParquetShard(FileSystem& fs, const std::string& path,
                                                      const ReadOptions& options) {
  if (options.text.empty()) return Status::InvalidArgument("the name of the text column is empty");
  if (options.record_bytes == 0) {
    return Status::InvalidArgument("errors.record_bytes is 0; it must be at least 1");
  }
  WS_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs.Open(path));
  const std::string context = "'" + path + "'";
  const Result<std::uint64_t> footer_bytes = CheckParquetFile(*file);
  if (!footer_bytes.ok()) return footer_bytes.status().WithContext(context);
  WS_ASSIGN_OR_RETURN(const ws_arrow_glue* glue, LoadArrowGlue());
  auto shard = std::make_shared<GlueShard>(glue, std::move(file));
  if (Status status = shard->Open(*footer_bytes); !status.ok()) return status.WithContext(context);
  auto reader = std::make_shared<ParquetShardReader>(std::move(shard), options);
  if (Status status = reader->Prepare(); !status.ok()) return status.WithContext(context);
  return std::shared_ptr<ShardReader>(std::move(reader));
}

}  // namespace widestream
