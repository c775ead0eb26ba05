// The only file of the engine that sees Arrow. It reads one BYTE_ARRAY column with Parquet's own
// column reader (not through Arrow arrays): pages are decoded one at a time, so memory does not
// grow with the row group, and dictionary, large and view string types of the writer make no
// difference.
#include <arrow/memory_pool.h>
#include <arrow/util/config.h>
#include <parquet/column_page.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/formats/arrow/glue_abi.h"
#include "engine/formats/arrow/glue_io.h"

namespace {

using widestream::CallbackFile;
using widestream::LimitedPool;
using widestream::StatusCode;

constexpr std::int64_t kStreamBufferBytes = 256 << 10;
constexpr std::uint64_t kFixedMemoryBytes = 16 << 20;
constexpr std::uint64_t kMemoryBytesPerRecord = 32;
constexpr std::int64_t kBatchValues = 1024;
constexpr std::uint64_t kMaxContainerElements = 200'000;

// Thrown and caught inside this file only.
struct GlueFailure {
  StatusCode code;
  std::string message;
};

[[noreturn]] void Fail(StatusCode code, std::string message) {
  throw GlueFailure{code, std::move(message)};
}

std::int32_t Report(StatusCode code, std::string_view message, ws_arrow_error* error) {
  error->code = static_cast<std::int32_t>(code);
  error->error_number = 0;
  const std::size_t size = std::min(message.size(), sizeof(error->message) - 1);
  std::memcpy(error->message, message.data(), size);
  error->message[size] = '\0';
  return error->code;
}

// Runs `act`; whatever it throws becomes the error. `over_limit`: what it means that a LimitedPool
// refused an allocation.
template <typename Act>
std::int32_t Guard(const CallbackFile* file, StatusCode over_limit, ws_arrow_error* error,
                   const Act& act) noexcept {
  try {
    act();
    return 0;
  } catch (const GlueFailure& failure) {
    return Report(failure.code, failure.message, error);
  } catch (const parquet::ParquetStatusException& exception) {
    if (file != nullptr && file->error() != nullptr) {
      *error = *file->error();
      return error->code;
    }
    const bool memory = exception.status().IsOutOfMemory();
    return Report(memory ? over_limit : StatusCode::kDataCorruption, exception.status().message(),
                  error);
  } catch (const std::bad_alloc&) {
    return Report(StatusCode::kResourceExhausted, "no memory", error);
  } catch (const std::exception& exception) {
    if (file != nullptr && file->error() != nullptr) {
      *error = *file->error();
      return error->code;
    }
    return Report(StatusCode::kDataCorruption, exception.what(), error);
  } catch (...) {
    return Report(StatusCode::kInternal, "an unknown exception", error);
  }
}

parquet::ReaderProperties Properties(arrow::MemoryPool* pool, std::uint64_t footer_bytes) {
  parquet::ReaderProperties properties(pool);
  properties.enable_buffered_stream();
  properties.set_buffer_size(kStreamBufferBytes);
  properties.set_page_checksum_verification(true);
  properties.set_thrift_container_size_limit(
      static_cast<std::int32_t>(std::clamp<std::uint64_t>(footer_bytes, 1, kMaxContainerElements)));
  return properties;
}

struct Column {
  std::string path;
  std::string type;
  bool is_text = false;
  bool is_repeated = false;
  bool is_nested = false;
};

std::string TypeOf(const parquet::ColumnDescriptor& column) {
  std::string type;
  if (column.logical_type() != nullptr && column.logical_type()->is_valid() &&
      !column.logical_type()->is_none()) {
    type = column.logical_type()->ToString();
  } else if (column.physical_type() == parquet::Type::BYTE_ARRAY) {
    type = "binary";
  } else {
    type = parquet::TypeToString(column.physical_type());
  }
  std::transform(type.begin(), type.end(), type.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return column.max_repetition_level() > 0 ? "list of " + type : type;
}

bool IsText(const parquet::ColumnDescriptor& column) {
  if (column.physical_type() != parquet::Type::BYTE_ARRAY || column.logical_type() == nullptr) {
    return false;
  }
  const parquet::LogicalType& logical = *column.logical_type();
  return logical.is_string() || logical.is_JSON() || logical.is_enum();
}

}  // namespace

namespace {

// Hands on the pages of a chunk; knows how many records they hold.
class CountingPageReader final : public parquet::PageReader {
 public:
  // Data pages whose records all lie before `skip` are passed over, unread and not decompressed.
  CountingPageReader(std::unique_ptr<parquet::PageReader> inner, std::uint64_t skip)
      : inner_(std::move(inner)) {
    if (skip == 0) return;
    inner_->set_data_page_filter([this, skip](const parquet::DataPageStats& page) {
      const auto records = static_cast<std::uint64_t>(std::max<std::int32_t>(page.num_values, 0));
      if (end_ != passed_ || records == 0 || passed_ + records > skip) return false;
      passed_ += records;
      end_ = passed_;
      return true;
    });
  }

  std::shared_ptr<parquet::Page> NextPage() override {
    std::shared_ptr<parquet::Page> page = inner_->NextPage();
    if (page != nullptr && page->type() != parquet::PageType::DICTIONARY_PAGE) {
      const auto& data = static_cast<const parquet::DataPage&>(*page);
      end_ += static_cast<std::uint64_t>(std::max<std::int32_t>(data.num_values(), 0));
    }
    return page;
  }
  void set_max_page_header_size(std::uint32_t size) override {
    inner_->set_max_page_header_size(size);
  }

  std::uint64_t passed() const { return passed_; }
  // Of the chunk: where the page ends that was handed on last.
  std::uint64_t end() const { return end_; }

 private:
  const std::unique_ptr<parquet::PageReader> inner_;
  std::uint64_t passed_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace

struct ws_arrow_shard {
  ws_arrow_file file;
  std::uint64_t footer_bytes;
  std::shared_ptr<parquet::FileMetaData> metadata;
  std::vector<Column> columns;
};

// Members are destroyed from the last to the first: the pool goes after all that allocated from it.
struct ws_arrow_reader {
  ws_arrow_reader(std::uint64_t limit, const ws_arrow_file& callbacks)
      : pool(static_cast<std::int64_t>(limit)), file(std::make_shared<CallbackFile>(callbacks)) {}

  LimitedPool pool;
  std::shared_ptr<CallbackFile> file;
  std::unique_ptr<parquet::ParquetFileReader> parquet;
  std::shared_ptr<parquet::RowGroupReader> row_group;
  std::shared_ptr<parquet::ColumnReader> column;
  const CountingPageReader* pages = nullptr;          // of `column`
  parquet::ByteArrayReader* values_reader = nullptr;  // `column`
  std::int16_t max_definition_level = 0;
  StatusCode over_limit = StatusCode::kDataCorruption;
  std::uint64_t row_group_number = 0;
  std::uint64_t records = 0;  // of the row group
  std::uint64_t position = 0;
  std::vector<std::int16_t> levels;
  std::vector<parquet::ByteArray> values;
  std::vector<ws_arrow_text> texts;
};

namespace {

std::string RowGroupName(std::uint64_t row_group) {
  return "row group " + std::to_string(row_group);
}

// What the footer says about a chunk, checked against the file.
ws_arrow_row_group Describe(const ws_arrow_shard& shard, std::uint32_t row_group,
                            std::uint32_t column, std::int64_t* compressed_bytes) {
  if (row_group >= static_cast<std::uint32_t>(shard.metadata->num_row_groups()) ||
      column >= shard.columns.size()) {
    Fail(StatusCode::kInvalidArgument,
         "there is no " + RowGroupName(row_group) + " or no column " + std::to_string(column));
  }
  const auto group = shard.metadata->RowGroup(static_cast<int>(row_group));
  if (group->num_rows() < 0) {
    Fail(StatusCode::kDataCorruption, RowGroupName(row_group) + " has a negative number of rows");
  }
  if (static_cast<std::size_t>(group->num_columns()) != shard.columns.size()) {
    Fail(StatusCode::kDataCorruption,
         RowGroupName(row_group) + " has " + std::to_string(group->num_columns()) +
             " columns, the schema " + std::to_string(shard.columns.size()));
  }
  const auto chunk = group->ColumnChunk(static_cast<int>(column));
  if (!chunk->file_path().empty()) {
    Fail(StatusCode::kInvalidArgument,
         RowGroupName(row_group) + " keeps its data in another file, which is not supported");
  }
  if (chunk->num_values() != group->num_rows()) {
    Fail(StatusCode::kDataCorruption,
         RowGroupName(row_group) + " has " + std::to_string(group->num_rows()) + " rows but " +
             std::to_string(chunk->num_values()) + " values in the column");
  }
  std::int64_t begin = chunk->data_page_offset();
  if (chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0) {
    begin = std::min(begin, chunk->dictionary_page_offset());
  }
  const std::int64_t size = chunk->total_compressed_size();
  const auto file_bytes = static_cast<std::int64_t>(shard.file.size_bytes);
  if (chunk->total_uncompressed_size() < 0 || size < 0 || begin < 0 || begin > file_bytes ||
      size > file_bytes - begin) {
    Fail(StatusCode::kDataCorruption, RowGroupName(row_group) + " claims the bytes " +
                                          std::to_string(begin) + " and " + std::to_string(size) +
                                          " more of a file of " + std::to_string(file_bytes) +
                                          ": the file was cut short or is corrupt; restore it");
  }
  *compressed_bytes = size;
  return {static_cast<std::uint64_t>(group->num_rows()),
          static_cast<std::uint64_t>(chunk->total_uncompressed_size())};
}

std::int32_t OpenShard(const ws_arrow_file* file, std::uint64_t footer_bytes,
                       ws_arrow_shard** shard, ws_arrow_error* error) {
  *shard = nullptr;
  const auto callbacks = [&] {
    try {
      return std::make_shared<CallbackFile>(*file);
    } catch (...) {
      return std::shared_ptr<CallbackFile>();
    }
  }();
  return Guard(callbacks.get(), StatusCode::kResourceExhausted, error, [&] {
    if (callbacks == nullptr) throw std::bad_alloc();
    if (file->size_bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      Fail(StatusCode::kInvalidArgument, "the file is larger than 2^63 bytes");
    }
    const auto reader = parquet::ParquetFileReader::Open(
        callbacks, Properties(arrow::system_memory_pool(), footer_bytes));
    auto opened = std::make_unique<ws_arrow_shard>();
    opened->file = *file;
    opened->footer_bytes = footer_bytes;
    opened->metadata = reader->metadata();
    const parquet::SchemaDescriptor& schema = *opened->metadata->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      const parquet::ColumnDescriptor& column = *schema.Column(i);
      Column described;
      described.path = column.path()->ToDotString();
      described.type = TypeOf(column);
      described.is_text = IsText(column);
      described.is_repeated = column.max_repetition_level() > 0;
      described.is_nested = column.path()->ToDotVector().size() > 1;
      opened->columns.push_back(std::move(described));
    }
    *shard = opened.release();
  });
}

void CloseShard(ws_arrow_shard* shard) { delete shard; }

std::uint32_t ColumnCount(const ws_arrow_shard* shard) {
  return static_cast<std::uint32_t>(shard->columns.size());
}

std::int32_t DescribeColumn(const ws_arrow_shard* shard, std::uint32_t column, ws_arrow_column* out,
                            ws_arrow_error* error) {
  if (column >= shard->columns.size()) {
    return Report(StatusCode::kInvalidArgument, "there is no such column", error);
  }
  const Column& found = shard->columns[column];
  *out = {found.path.c_str(), found.type.c_str(), found.is_text, found.is_repeated,
          found.is_nested};
  return 0;
}

std::uint32_t RowGroupCount(const ws_arrow_shard* shard) {
  return static_cast<std::uint32_t>(shard->metadata->num_row_groups());
}

std::int32_t DescribeRowGroup(const ws_arrow_shard* shard, std::uint32_t row_group,
                              std::uint32_t column, ws_arrow_row_group* out,
                              ws_arrow_error* error) {
  return Guard(nullptr, StatusCode::kResourceExhausted, error, [&] {
    std::int64_t compressed_bytes = 0;
    *out = Describe(*shard, row_group, column, &compressed_bytes);
  });
}

void SkipRecords(ws_arrow_reader* reader, std::uint64_t skip) {
  if (skip > reader->records) {
    Fail(StatusCode::kInvalidArgument, RowGroupName(reader->row_group_number) + " has " +
                                           std::to_string(reader->records) +
                                           " records, so none at " + std::to_string(skip) +
                                           ": the position is of another version of the file");
  }
  if (skip > 0) {
    // Reads the first page that is not passed over.
    reader->values_reader->HasNext();
    reader->position = reader->pages->passed();
  }
  while (reader->position < skip) {
    const std::int64_t skipped =
        reader->values_reader->Skip(static_cast<std::int64_t>(skip - reader->position));
    if (skipped <= 0) {
      Fail(StatusCode::kDataCorruption, RowGroupName(reader->row_group_number) +
                                            " ends at record " + std::to_string(reader->position) +
                                            " of " + std::to_string(reader->records));
    }
    reader->position += static_cast<std::uint64_t>(skipped);
  }
}

std::int32_t OpenReader(const ws_arrow_shard* shard, std::uint32_t row_group, std::uint32_t column,
                        std::uint64_t skip, std::uint64_t memory_bytes, ws_arrow_reader** out,
                        ws_arrow_error* error) {
  *out = nullptr;
  std::unique_ptr<ws_arrow_reader> reader;
  const std::int32_t made = Guard(nullptr, StatusCode::kResourceExhausted, error, [&] {
    std::int64_t compressed_bytes = 0;
    const ws_arrow_row_group described = Describe(*shard, row_group, column, &compressed_bytes);
    if (!shard->columns[column].is_text || shard->columns[column].is_repeated) {
      Fail(StatusCode::kInvalidArgument, "the column is not text");
    }
    // A page needs its stored and its decoded bytes, a dictionary its own, decoders some bytes for
    // each value. A page header that claims more than the whole chunk can need is wrong.
    const std::uint64_t most = std::min<std::uint64_t>(memory_bytes, 1ULL << 50);
    const std::uint64_t needed =
        2 * std::min(most, described.uncompressed_bytes) +
        std::min(most, static_cast<std::uint64_t>(compressed_bytes)) +
        kMemoryBytesPerRecord * std::min(most / kMemoryBytesPerRecord, described.records) +
        kFixedMemoryBytes;
    reader = std::make_unique<ws_arrow_reader>(std::min(most, needed), shard->file);
    reader->over_limit =
        needed > most ? StatusCode::kResourceExhausted : StatusCode::kDataCorruption;
    reader->row_group_number = row_group;
    reader->records = described.records;
  });
  if (made != 0) return made;
  return Guard(reader->file.get(), reader->over_limit, error, [&] {
    reader->parquet = parquet::ParquetFileReader::Open(
        reader->file, Properties(&reader->pool, shard->footer_bytes), shard->metadata);
    if (reader->records > 0) {
      reader->row_group = reader->parquet->RowGroup(static_cast<int>(row_group));
      auto pages = std::make_unique<CountingPageReader>(
          reader->row_group->GetColumnPageReader(static_cast<int>(column)), skip);
      reader->pages = pages.get();
      reader->column = parquet::ColumnReader::Make(
          reader->row_group->metadata()->schema()->Column(static_cast<int>(column)),
          std::move(pages), &reader->pool);
      reader->max_definition_level = reader->column->descr()->max_definition_level();
      reader->values_reader = static_cast<parquet::ByteArrayReader*>(reader->column.get());
      reader->levels.resize(kBatchValues);
      reader->values.resize(kBatchValues);
      reader->texts.reserve(kBatchValues);
    }
    SkipRecords(reader.get(), skip);
    *out = reader.release();
  });
}

void CloseReader(ws_arrow_reader* reader) { delete reader; }

std::int32_t Read(ws_arrow_reader* reader, std::uint64_t limit, const ws_arrow_text** texts,
                  std::uint64_t* count, ws_arrow_error* error) {
  return Guard(reader->file.get(), reader->over_limit, error, [&] {
    reader->texts.clear();
    *texts = reader->texts.data();
    *count = 0;
    limit = std::min(
        {limit, reader->records - reader->position, static_cast<std::uint64_t>(kBatchValues)});
    if (limit == 0) return;
    std::int64_t found = 0;
    // At most one page is read: values of the page before may be gone with it.
    const std::int64_t read =
        reader->values_reader->ReadBatch(static_cast<std::int64_t>(limit), reader->levels.data(),
                                         nullptr, reader->values.data(), &found);
    if (read <= 0) {
      Fail(StatusCode::kDataCorruption, RowGroupName(reader->row_group_number) +
                                            " ends at record " + std::to_string(reader->position) +
                                            " of " + std::to_string(reader->records));
    }
    std::int64_t used = 0;
    for (std::int64_t i = 0; i < read; ++i) {
      const bool present =
          reader->max_definition_level == 0 ||
          reader->levels[static_cast<std::size_t>(i)] == reader->max_definition_level;
      if (!present) {
        reader->texts.push_back({nullptr, 0});
        continue;
      }
      if (used >= found) {
        Fail(StatusCode::kDataCorruption,
             RowGroupName(reader->row_group_number) + " has fewer values than its levels say");
      }
      const parquet::ByteArray& value = reader->values[static_cast<std::size_t>(used++)];
      reader->texts.push_back(
          {value.ptr == nullptr ? "" : reinterpret_cast<const char*>(value.ptr), value.len});
    }
    reader->position += static_cast<std::uint64_t>(read);
    *texts = reader->texts.data();
    *count = static_cast<std::uint64_t>(read);
  });
}

std::uint64_t Decoded(const ws_arrow_reader* reader) {
  if (reader->pages == nullptr) return 0;
  const std::uint64_t end = std::min(reader->pages->end(), reader->records);
  return end - std::min(end, reader->position);
}

#define WS_TEXT(x) #x
#define WS_TEXT_OF(x) WS_TEXT(x)

constexpr ws_arrow_glue kGlue = {
    WS_ARROW_GLUE_VERSION,
    sizeof(ws_arrow_glue),
    WS_TEXT_OF(ARROW_VERSION_MAJOR) "." WS_TEXT_OF(ARROW_VERSION_MINOR),
    OpenShard,
    CloseShard,
    ColumnCount,
    DescribeColumn,
    RowGroupCount,
    DescribeRowGroup,
    OpenReader,
    CloseReader,
    Read,
    Decoded,
};

}  // namespace

// The name is the ABI's. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" __attribute__((visibility("default"))) const ws_arrow_glue* widestream_arrow_glue_v2() {
  return &kGlue;
}
