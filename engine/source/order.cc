#include "engine/source/order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/hash.h"

namespace widestream {

std::uint64_t SourceIdOf(const std::string& name) { return Xxh3_64(std::string_view(name)); }

UnitOrder::UnitOrder(const ShuffleSpec& shuffle, std::uint64_t seed, std::uint64_t source_id,
                     std::uint64_t epoch, std::uint64_t units) {
  if (shuffle.mode == ShuffleSpec::Mode::kOff) return;
  Result<Permutation> permutation =
      Permutation::Make(units, DeriveKey(seed, source_id, epoch, "units", 0));
  if (permutation.ok()) permutation_ = *permutation;
}

BlockReader::BlockReader(std::shared_ptr<FileSystem> fs, SourceSpec source, std::uint64_t seed,
                         std::uint64_t record_bytes, Manifest manifest)
    : fs_(std::move(fs)),
      source_(std::move(source)),
      seed_(seed),
      source_id_(SourceIdOf(source_.name)),
      record_bytes_(record_bytes),
      manifest_(std::move(manifest)) {}

Result<std::unique_ptr<BlockReader>> BlockReader::Make(std::shared_ptr<FileSystem> fs,
                                                       const SourceSpec& source, std::uint64_t seed,
                                                       std::uint64_t record_bytes,
                                                       Manifest manifest) {
  std::unique_ptr<BlockReader> reader(
      new BlockReader(std::move(fs), source, seed, record_bytes, std::move(manifest)));
  const bool known = CountsAreKnown(reader->manifest_.format);
  for (std::uint32_t shard = 0; shard < reader->manifest_.shards.size(); ++shard) {
    if (!known) {
      ShardUnit info;
      info.bytes = reader->manifest_.shards[shard].size_bytes;
      reader->units_.push_back({shard, 0, info});
      continue;
    }
    WS_ASSIGN_OR_RETURN(const std::shared_ptr<ShardReader> open, reader->Open(shard));
    for (std::uint32_t unit = 0; unit < open->units().size(); ++unit) {
      reader->units_.push_back({shard, unit, open->units()[unit]});
    }
  }
  return reader;
}

std::optional<std::uint64_t> BlockReader::records() const {
  std::uint64_t sum = 0;
  for (const UnitRef& unit : units_) {
    if (!unit.info.records) return std::nullopt;
    sum += *unit.info.records;
  }
  return sum;
}

Result<std::shared_ptr<ShardReader>> BlockReader::Open(std::uint32_t shard) {
  const ShardEntry& entry = manifest_.shards[shard];
  const std::string where = "source '" + source_.name + "'";
  // It may go at any moment: between two of the calls below, too.
  const auto failed = [&](const Status& status) {
    if (status.code() != StatusCode::kNotFound) return status.WithContext(where);
    return Status::NotFound(where + ": " + entry.path +
                            " is gone since the job began; put it back, or start a new run");
  };
  ShardEntry now;
  if (const Status status = IdentifyShard(*fs_, manifest_.format, entry.path, &now); !status.ok()) {
    return failed(status);
  }
  if (now.size_bytes != entry.size_bytes || now.fingerprint != entry.fingerprint) {
    return Status::DataCorruption(where + ": " + entry.path + " changed since the job began (" +
                                  std::to_string(entry.size_bytes) + " bytes then, " +
                                  std::to_string(now.size_bytes) +
                                  " now); put the original back, or start a new run");
  }
  ReadOptions options;
  options.text = source_.text;
  options.record_bytes = record_bytes_;
  Result<std::shared_ptr<ShardReader>> reader =
      OpenShard(fs_, manifest_.format, entry.path, options);
  if (!reader.ok()) return failed(reader.status());
  return reader;
}

std::uint64_t BlockReader::BlockRecords(const UnitRef& unit) const {
  if (!unit.info.records || *unit.info.records == 0) return source_.shuffle.records;
  const auto by_bytes =
      static_cast<std::uint64_t>(static_cast<unsigned __int128>(source_.shuffle.bytes) *
                                 *unit.info.records / std::max<std::uint64_t>(1, unit.info.bytes));
  return std::min(source_.shuffle.records, std::max<std::uint64_t>(1, by_bytes));
}

Status BlockReader::Seek(const RestartPoint& point) {
  if (point.unit > units_.size() || (point.unit == units_.size() && point.offset != 0)) {
    return Status::InvalidArgument(
        "source '" + source_.name + "': the state's restart point is in unit " +
        std::to_string(point.unit) + ", the source has " + std::to_string(units_.size()));
  }
  unit_reader_.reset();
  open_shard_.reset();
  at_ = point;
  return Status::Ok();
}

void BlockReader::Shrink() {
  if (unit_reader_ && unit_reader_->DecodedRecords()) unit_reader_.reset();
}

Result<RawBlock> BlockReader::Next() {
  RawBlock out;
  // Of no units: the identity, which nothing asks.
  const UnitOrder order(source_.shuffle, seed_, source_id_, at_.epoch, units_.size());
  while (at_.unit < units_.size()) {
    const UnitRef& unit = units_[order.At(at_.unit)];
    if (!unit_reader_) {
      if (open_shard_ != unit.shard) {
        open_shard_.reset();
        WS_ASSIGN_OR_RETURN(shard_reader_, Open(unit.shard));
        open_shard_ = unit.shard;
      }
      Result<std::unique_ptr<UnitReader>> opened = shard_reader_->OpenUnit(unit.unit, at_.offset);
      if (!opened.ok()) return opened.status().WithContext("source '" + source_.name + "'");
      unit_reader_ = std::move(opened).value();
    }
    out.block.Clear();
    const Status status = unit_reader_->Next(BlockRecords(unit), source_.shuffle.bytes, &out.block);
    if (!status.ok()) return status.WithContext("source '" + source_.name + "'");
    const std::uint64_t count = out.block.records.size();
    if (count > 0) {
      out.restart = at_;
      if (at_.block == 0) out.restart.record = unit.info.first_record;
      out.shard = unit.shard;
      out.order.resize(count);
      if (source_.shuffle.mode == ShuffleSpec::Mode::kOff) {
        std::iota(out.order.begin(), out.order.end(), 0U);
      } else {
        WS_ASSIGN_OR_RETURN(const Permutation inside,
                            Permutation::Make(count, DeriveKey(seed_, source_id_, at_.epoch,
                                                               "records", at_.position)));
        for (std::uint64_t i = 0; i < count; ++i)
          out.order[i] = static_cast<std::uint32_t>(inside.At(i));
      }
      at_.position += count;
      at_.record = out.restart.record + count;
      at_.offset = out.block.next_offset;
      ++at_.block;
    }
    if (const auto decoded = unit_reader_->DecodedRecords(); decoded && unit.info.records) {
      const std::uint64_t left = *unit.info.records - std::min(at_.offset, *unit.info.records);
      out.next_is_decoded = left > 0 && *decoded >= std::min(BlockRecords(unit), left);
    }
    if (out.block.end_of_unit) {
      unit_reader_.reset();
      ++at_.unit;
      at_.block = at_.offset = at_.record = 0;
    }
    if (count > 0) return out;
  }
  open_shard_.reset();  // checked against the manifest again in the next epoch
  shard_reader_.reset();
  out.restart = at_;
  out.end_of_epoch = true;
  const std::uint32_t epoch = at_.epoch + 1;
  at_ = RestartPoint{};
  at_.epoch = epoch;
  return out;
}

}  // namespace widestream
