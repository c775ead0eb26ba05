#include "engine/convert/tokenize_part.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace widestream::internal {
namespace {

constexpr std::uint64_t kBlockBytes = 1U << 20;
constexpr std::uint64_t kBlockRecords = 8192;
constexpr std::uint64_t kMaxStateBytes = 1U << 16;

std::string Numbered(const std::string& folder, std::size_t number, const char* suffix) {
  std::string digits = std::to_string(number);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return folder + "/" + digits + suffix;
}

bool IsCount(const nlohmann::json& object, const char* key) {
  return object.contains(key) && object[key].is_number_unsigned();
}

// False if it is not a checkpoint that this code wrote.
bool ParseState(const std::string& text, PartState* state) {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return false;
  for (const char* key :
       {"unit", "offset", "ids_bytes", "documents", "empty", "bad", "tokens", "text_bytes"}) {
    if (!IsCount(object, key)) return false;
  }
  if (!object.contains("done") || !object["done"].is_boolean()) return false;
  state->unit = object["unit"];
  state->offset = object["offset"];
  state->ids_bytes = object["ids_bytes"];
  state->counts = {.documents = object["documents"],
                   .empty = object["empty"],
                   .bad = object["bad"],
                   .tokens = object["tokens"],
                   .text_bytes = object["text_bytes"]};
  state->done = object["done"];
  return true;
}

void Add(const TokenizeCounts& more, TokenizeCounts* counts) {
  counts->documents += more.documents;
  counts->empty += more.empty;
  counts->bad += more.bad;
  counts->tokens += more.tokens;
  counts->text_bytes += more.text_bytes;
}

template <typename Stored>
void AppendIds(const std::uint32_t* ids, std::size_t count, char* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto stored = static_cast<Stored>(ids[i]);
    std::memcpy(out + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

}  // namespace

TokenizePart::TokenizePart(std::shared_ptr<FileSystem> fs, const ShardEntry& shard, Format format,
                           const TokenizeOptions& options, const std::string& folder,
                           std::size_t number)
    : fs_(std::move(fs)),
      shard_(shard),
      format_(format),
      options_(options),
      ids_path_(Numbered(folder, number, ".ids")),
      lengths_path_(Numbered(folder, number, ".lengths")),
      state_path_(Numbered(folder, number, ".state")) {}

Status TokenizePart::Forget() {
  state_ = {};
  for (const std::string& path : {state_path_, ids_path_, lengths_path_}) {
    const Status status = fs_->Remove(path);
    if (!status.ok() && status.error_number() != ENOENT) return status;
  }
  return {};
}

Status TokenizePart::Restore() {
  const Result<std::string> text = fs_->ReadAll(state_path_, kMaxStateBytes);
  if (!text.ok()) {
    if (text.status().code() != StatusCode::kNotFound) return text.status();
    return Forget();  // what is there without a checkpoint has no known end
  }
  PartState state;
  if (!ParseState(*text, &state)) {
    return Status::DataCorruption("'" + state_path_ +
                                  "' is not a checkpoint of this program; start afresh with "
                                  "--restart");
  }
  const Result<FileInfo> ids = fs_->Stat(ids_path_);
  const Result<FileInfo> lengths = fs_->Stat(lengths_path_);
  const std::uint64_t lengths_bytes = state.counts.documents * sizeof(std::int32_t);
  if (!ids.ok() || !lengths.ok() || ids->size_bytes < state.ids_bytes ||
      lengths->size_bytes < lengths_bytes) {
    return Forget();  // a machine that lost power may have lost them: do the shard again
  }
  WS_RETURN_IF_ERROR(fs_->Truncate(ids_path_, state.ids_bytes));
  WS_RETURN_IF_ERROR(fs_->Truncate(lengths_path_, lengths_bytes));
  state_ = state;
  read_ = state;
  records_read_ = state.counts.documents + state.counts.bad;
  checkpointed_bytes_ = state.ids_bytes;
  return {};
}

Status TokenizePart::Read(RecordBlock* block, PartState* after, std::uint64_t* first_record) {
  block->Clear();
  *first_record = records_read_;
  if (!reader_) {
    ReadOptions options;
    options.text = options_.input.text;
    options.record_bytes = options_.record_bytes;
    WS_ASSIGN_OR_RETURN(reader_, OpenShard(fs_, format_, shard_.path, options));
  }
  const std::vector<ShardUnit>& units = reader_->units();
  while (read_.unit < units.size() && block->records.empty()) {
    const ShardUnit& unit = units[static_cast<std::size_t>(read_.unit)];
    if (!unit_reader_) {
      WS_ASSIGN_OR_RETURN(unit_reader_, reader_->OpenUnit(read_.unit, read_.offset));
    }
    // Formats that count records do not count bytes, so the number of records stands for both.
    std::uint64_t records = kBlockRecords;
    if (unit.records.has_value()) {
      const std::uint64_t each = unit.bytes / std::max<std::uint64_t>(*unit.records, 1);
      records =
          std::clamp<std::uint64_t>(kBlockBytes / std::max<std::uint64_t>(each, 1), 1, records);
    }
    WS_RETURN_IF_ERROR(unit_reader_->Next(records, kBlockBytes, block));
    read_.offset = block->next_offset;
    if (block->end_of_unit) {
      ++read_.unit;
      read_.offset = 0;
      unit_reader_.reset();
    }
  }
  records_read_ += block->records.size();
  read_.done = read_.unit >= units.size();
  if (read_.done) reader_.reset();
  after->unit = read_.unit;
  after->offset = read_.offset;
  after->done = read_.done;
  return {};
}

EncodedBlock TokenizePart::Encode(const TextEncoder& encoder, MegatronIdType type,
                                  const RecordBlock& block, const PartState& after,
                                  std::uint64_t first_record) const {
  EncodedBlock out;
  out.after = after;
  std::vector<std::string_view> texts;
  std::vector<std::size_t> records;
  texts.reserve(block.records.size());
  for (std::size_t i = 0; i < block.records.size(); ++i) {
    const RawRecord& record = block.records[i];
    if (record.error < 0) {
      texts.push_back(record.text);
      out.counts.text_bytes += record.text.size();
      records.push_back(i);
      continue;
    }
    std::string why = "'" + shard_.path + "', record " + std::to_string(first_record + i) +
                      " (at " + std::to_string(record.offset) +
                      "): " + block.errors[static_cast<std::size_t>(record.error)];
    if (!options_.skip_bad_records) {
      out.failure = Status::DataCorruption(
          why + "; mend it, or leave such records out with --bad-records skip");
      return out;
    }
    ++out.counts.bad;
    if (out.bad_record.empty()) out.bad_record = std::move(why);
  }
  IdBuffer<std::uint32_t> ids;
  std::vector<std::uint64_t> ends;
  ends.reserve(texts.size());
  out.failure = encoder.Encode(texts, &ids, &ends);
  if (!out.failure.ok()) {
    out.failure = out.failure.WithContext("'" + shard_.path + "', in the block of record " +
                                          std::to_string(first_record));
    return out;
  }
  const std::size_t id_bytes = MegatronIdBytes(type);
  out.ids.resize((ids.size() + texts.size() * options_.append.size()) * id_bytes);
  out.lengths.reserve(texts.size());
  std::size_t written = 0;
  std::uint64_t begin = 0;
  const auto add = [&](const std::uint32_t* more, std::size_t count) {
    char* const at = out.ids.data() + written * id_bytes;
    if (type == MegatronIdType::kUint16) {
      AppendIds<std::uint16_t>(more, count, at);
    } else {
      AppendIds<std::int32_t>(more, count, at);
    }
    written += count;
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::uint64_t count = ends[i] - begin;
    const std::uint64_t length = count == 0 ? 0 : count + options_.append.size();
    if (length > static_cast<std::uint64_t>(INT32_MAX)) {
      out.failure = Status::InvalidArgument(
          "'" + shard_.path + "', record " + std::to_string(first_record + records[i]) + " has " +
          std::to_string(count) + " tokens; the format allows 2^31 - 1 of a document");
      return out;
    }
    add(ids.data() + begin, static_cast<std::size_t>(count));
    if (count == 0) {
      ++out.counts.empty;
    } else {
      add(options_.append.data(), options_.append.size());
    }
    out.lengths.push_back(static_cast<std::int32_t>(length));
    begin = ends[i];
  }
  out.ids.resize(written * id_bytes);
  out.counts.documents = texts.size();
  out.counts.tokens = written;
  return out;
}

Status TokenizePart::OpenFiles() {
  if (ids_) return {};
  WS_ASSIGN_OR_RETURN(ids_, fs_->OpenAppend(ids_path_));
  WS_ASSIGN_OR_RETURN(lengths_, fs_->OpenAppend(lengths_path_));
  return {};
}

Status TokenizePart::Write(const EncodedBlock& block) {
  WS_RETURN_IF_ERROR(block.failure);
  WS_RETURN_IF_ERROR(OpenFiles());
  WS_RETURN_IF_ERROR(ids_->Append(block.ids));
  std::string lengths(block.lengths.size() * sizeof(std::int32_t), '\0');
  if (!lengths.empty()) std::memcpy(lengths.data(), block.lengths.data(), lengths.size());
  WS_RETURN_IF_ERROR(lengths_->Append(lengths));
  state_.unit = block.after.unit;
  state_.offset = block.after.offset;
  state_.done = block.after.done;
  state_.ids_bytes += block.ids.size();
  Add(block.counts, &state_.counts);
  if (!state_.done && state_.ids_bytes - checkpointed_bytes_ < options_.checkpoint_bytes) return {};
  return Checkpoint();
}

Status TokenizePart::Checkpoint() {
  WS_RETURN_IF_ERROR(ids_->Sync());
  WS_RETURN_IF_ERROR(lengths_->Sync());
  nlohmann::json object = {{"unit", state_.unit},
                           {"offset", state_.offset},
                           {"ids_bytes", state_.ids_bytes},
                           {"documents", state_.counts.documents},
                           {"empty", state_.counts.empty},
                           {"bad", state_.counts.bad},
                           {"tokens", state_.counts.tokens},
                           {"text_bytes", state_.counts.text_bytes},
                           {"done", state_.done}};
  WS_RETURN_IF_ERROR(fs_->WriteAtomically(state_path_, object.dump() + "\n"));
  checkpointed_bytes_ = state_.ids_bytes;
  if (!state_.done) return {};
  WS_RETURN_IF_ERROR(ids_->Close());
  WS_RETURN_IF_ERROR(lengths_->Close());
  ids_.reset();
  lengths_.reset();
  return {};
}

std::uint64_t TokenizePart::BytesBefore(const PartState& state) const {
  if (state.done) return shard_.size_bytes;
  const bool plain = format_ == Format::kJsonl && shard_.path.size() > 5 &&
                     shard_.path.find(".gz") == std::string::npos &&
                     shard_.path.find(".zst") == std::string::npos;
  return plain ? std::min(state.offset, shard_.size_bytes) : 0;
}

}  // namespace widestream::internal
