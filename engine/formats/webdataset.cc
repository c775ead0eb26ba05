#include "engine/formats/webdataset.h"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/formats/arena.h"
#include "engine/formats/byte_stream.h"
#include "engine/formats/json_text.h"
#include "engine/formats/line_reader.h"
#include "engine/formats/names.h"
#include "engine/formats/tar_reader.h"

namespace widestream {
namespace {

constexpr std::size_t kNamedMembers = 8;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Which member, and which field of it ("" = the member itself is the text).
struct Selection {
  std::string member;
  std::string field;

  bool Fits(std::string_view extension) const {
    return extension == member || (member == "text" && extension == "txt");
  }
};

Selection SelectionOf(const std::string& text) {
  const std::string lower = Lower(text);
  if (lower.starts_with("json.")) return {"json", text.substr(5)};
  const std::size_t at = lower.find(".json.");
  if (at == std::string::npos) return {lower, ""};
  return {lower.substr(0, at + 5), text.substr(at + 6)};
}

// Key and extension as the webdataset package splits a name: at the first dot of its last part.
// False for names that belong to no sample.
bool SplitName(std::string_view name, std::string_view* key, std::string_view* extension) {
  const std::size_t slash = name.rfind('/');
  const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return false;
  *key = name.substr(0, dot);
  *extension = name.substr(dot + 1);
  return true;
}

bool LeavesItsFolder(std::string_view name) {
  if (name.starts_with('/')) return true;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    if (name.substr(at, end - at) == "..") return true;
    at = end + 1;
  }
  return false;
}

class WebDatasetUnitReader final : public UnitReader {
 public:
  WebDatasetUnitReader(std::shared_ptr<const RandomAccessFile> file, const ReadOptions& options,
                       std::uint64_t offset)
      : file_(std::move(file)),
        record_bytes_(options.record_bytes),
        selection_(SelectionOf(options.text)),
        extractor_(selection_.field),
        tar_(file_, offset),
        next_offset_(offset) {}

  Status Next(std::uint64_t records, std::uint64_t bytes, RecordBlock* block) override {
    block->Clear();
    block->next_offset = next_offset_;
    Arena arena(&block->owners);
    // A fault of the file comes after the samples before it.
    if (!fault_.ok() && !sample_) return fault_;
    while (block->records.size() < std::max<std::uint64_t>(records, 1) &&
           (block->records.empty() || block->raw_bytes < bytes)) {
      WS_ASSIGN_OR_RETURN(const bool found, Collect(&arena, block));
      if (!found) break;
    }
    block->end_of_unit = ended_ && !sample_;
    return {};
  }

 private:
  struct Sample {
    std::string key;
    std::uint64_t at = 0;
    std::optional<TarMember> text;
    std::string extensions;  // the first of them, for messages
    std::size_t members = 0;
    std::string error;
  };

  // Reads members up to the end of the sample and adds it to the block. The member that begins the
  // next sample is kept in `sample_`.
  Result<bool> Collect(Arena* arena, RecordBlock* block) {
    while (!ended_ && fault_.ok()) {
      TarMember member;
      const Result<bool> found = tar_.Next(&member);
      if (!found.ok()) {
        fault_ = found.status();
        if (sample_) {
          fault_ = fault_.WithContext(StrCat("sample ", QuoteName(sample_->key)));
          sample_.reset();  // nobody knows what else it had
        }
        break;
      }
      if (!*found) {
        ended_ = true;
        break;
      }
      std::string_view key;
      std::string_view extension;
      if (member.kind == TarMember::Kind::kFolder || !SplitName(member.name, &key, &extension)) {
        continue;
      }
      std::optional<Sample> done;
      if (!sample_ || sample_->key != key) {
        Sample begun;
        begun.key = key;
        begun.at = member.header_at;
        done = std::exchange(sample_, std::move(begun));
      }
      AddMember(member, extension, &*sample_);
      if (done) {
        next_offset_ = member.header_at;
        WS_RETURN_IF_ERROR(Finish(*done, arena, block));
        return true;
      }
    }
    if (!sample_) {
      if (!fault_.ok() && block->records.empty()) return fault_;
      if (ended_ && block->records.empty()) block->next_offset = next_offset_ = tar_.offset();
      return false;
    }
    const Sample done = std::move(*sample_);
    sample_.reset();
    next_offset_ = tar_.offset();
    WS_RETURN_IF_ERROR(Finish(done, arena, block));
    return true;
  }

  void AddMember(const TarMember& member, std::string_view name_extension, Sample* into) {
    Sample& sample = *into;
    const std::string extension = Lower(name_extension);
    if (++sample.members <= kNamedMembers) {
      if (sample.members > 1) sample.extensions += ", ";
      sample.extensions += QuoteName(extension);
    }
    if (sample.error.empty() && LeavesItsFolder(member.name)) {
      sample.error =
          StrCat("the name of a member, ", QuoteName(member.name), ", is absolute or has '..'");
    }
    if (!selection_.Fits(extension)) return;
    if (sample.text && sample.error.empty()) {
      sample.error = StrCat("the sample has two members ", QuoteName(extension));
    } else if (member.kind != TarMember::Kind::kFile && sample.error.empty()) {
      sample.error = StrCat("the member ", QuoteName(extension),
                            " is a link or a device, which is not followed");
    }
    sample.text = member;
  }

  Status Finish(const Sample& sample, Arena* arena, RecordBlock* block) {
    RawRecord record;
    record.offset = sample.at;
    std::string error = sample.error;
    if (error.empty() && !sample.text) {
      error = StrCat("the sample has no member ", QuoteName(selection_.member), "; it has ",
                     sample.extensions, sample.members > kNamedMembers ? " and more" : "");
    }
    if (sample.text) {
      block->raw_bytes += sample.text->content_bytes;
      if (error.empty()) WS_RETURN_IF_ERROR(Read(*sample.text, arena, &record, &error));
    }
    if (!error.empty()) {
      block->errors.push_back(StrCat("sample ", QuoteName(sample.key), ": ", error));
      record.error = static_cast<std::int32_t>(block->errors.size() - 1);
    }
    block->records.push_back(record);
    block->next_offset = next_offset_;
    return {};
  }

  Status Read(const TarMember& member, Arena* arena, RawRecord* record, std::string* error) {
    const std::uint64_t size = member.content_bytes;
    if (size > record_bytes_) {
      *error = StrCat("the member has ", size,
                      " bytes, more than errors.record_bytes = ", record_bytes_);
      return {};
    }
    if (selection_.field.empty()) {
      if (size == 0) return {};
      char* const text = arena->Allocate(size);
      WS_RETURN_IF_ERROR(ReadExactly(*file_, member.content_at, size, text));
      if (!simdjson::validate_utf8(text, size)) {
        *error = "invalid UTF-8";
      } else {
        record->text = {text, size};
      }
      return {};
    }
    json_.resize(size + kLinePaddingBytes);
    WS_RETURN_IF_ERROR(ReadExactly(*file_, member.content_at, size, json_.data()));
    std::fill(json_.begin() + static_cast<std::ptrdiff_t>(size), json_.end(), '\0');
    std::string_view text;
    if (extractor_.Extract(std::string_view(json_.data(), size), &text, error)) {
      record->text = arena->Copy(text);
    }
    if (json_.capacity() > kKeptBytes) std::vector<char>().swap(json_);
    return {};
  }

  static constexpr std::size_t kKeptBytes = 1U << 20;

  const std::shared_ptr<const RandomAccessFile> file_;
  const std::uint64_t record_bytes_;
  const Selection selection_;
  JsonTextExtractor extractor_;
  TarReader tar_;
  std::optional<Sample> sample_;  // begun
  std::uint64_t next_offset_;
  bool ended_ = false;
  Status fault_;
  std::vector<char> json_;
};

class WebDatasetShardReader final : public ShardReader {
 public:
  WebDatasetShardReader(std::shared_ptr<const RandomAccessFile> file, ReadOptions options)
      : file_(std::move(file)), options_(std::move(options)) {
    ShardUnit unit;
    unit.bytes = file_->size_bytes();
    units_.push_back(unit);
  }

  const std::vector<ShardUnit>& units() const override { return units_; }

  Result<std::unique_ptr<UnitReader>> OpenUnit(std::uint64_t unit, std::uint64_t offset) override {
    if (unit != 0 || offset % 512 != 0 || offset > file_->size_bytes()) {
      return Status::InvalidArgument(StrCat("'", file_->path(), "': there is no sample at byte ",
                                            offset, " of unit ", unit,
                                            "; a tar file is one unit, of blocks of 512 bytes"));
    }
    return std::unique_ptr<UnitReader>(
        std::make_unique<WebDatasetUnitReader>(file_, options_, offset));
  }

  std::vector<std::string> Schema() const override { return {}; }

 private:
  const std::shared_ptr<const RandomAccessFile> file_;
  const ReadOptions options_;
  std::vector<ShardUnit> units_;
};

}  // namespace

Result<std::shared_ptr<ShardReader>> OpenWebDatasetShard(FileSystem& fs, const std::string& path,
                                                         const ReadOptions& options) {
  if (options.text.empty()) return Status::InvalidArgument("the name of the text member is empty");
  if (options.record_bytes == 0 || options.record_bytes > JsonTextExtractor::kMaxLineBytes) {
    return Status::InvalidArgument(StrCat("errors.record_bytes is ", options.record_bytes,
                                          "; it must be 1 to ", JsonTextExtractor::kMaxLineBytes));
  }
  WS_ASSIGN_OR_RETURN(std::shared_ptr<const RandomAccessFile> file, fs.Open(path));
  char head[4] = {};
  const auto size =
      static_cast<std::size_t>(std::min<std::uint64_t>(sizeof(head), file->size_bytes()));
  WS_RETURN_IF_ERROR(ReadExactly(*file, 0, size, head));
  const std::string_view start(head, size);
  if (CompressionFromName(path) != Compression::kNone || Lower(path).ends_with(".tgz") ||
      start.substr(0, 2) == "\x1f\x8b" || start == "\x28\xb5\x2f\xfd") {
    return Status::InvalidArgument(
        StrCat("'", path, "' is a compressed tar file: reading could not go on in its middle ",
               "without decompressing all before; unpack it to a .tar file"));
  }
  return std::shared_ptr<ShardReader>(
      std::make_shared<WebDatasetShardReader>(std::move(file), options));
}

}  // namespace widestream
