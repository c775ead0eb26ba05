#include "engine/source/loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"

namespace widestream {
namespace {

constexpr std::size_t kMaxProblemBytes = 512;
// Beyond this many blocks, reading ahead only costs memory: a tiny source would hold epoch after
// epoch.
constexpr std::size_t kMaxReadAheadBlocks = 6;

// The largest hash that is held out is below fraction * 2^64 (docs/stream.md section 1).
std::uint64_t HeldOutBelow(double fraction) {
  return fraction <= 0 ? 0
                       : static_cast<std::uint64_t>(std::ldexp(std::min(fraction, 0.999999), 64));
}

std::string Place(std::uint32_t epoch, std::uint64_t position) {
  return "epoch " + std::to_string(epoch) + ", position " + std::to_string(position);
}

}  // namespace

SourceLoader::SourceLoader(TaskPool* pool, SourceLoaderOptions options,
                           std::unique_ptr<BlockReader> reader)
    : pool_(pool),
      options_(std::move(options)),
      held_out_below_(HeldOutBelow(options_.held_out_fraction)),
      reader_(std::move(reader)) {}

Result<std::unique_ptr<SourceLoader>> SourceLoader::Make(std::shared_ptr<FileSystem> fs,
                                                         TaskPool* pool,
                                                         SourceLoaderOptions options,
                                                         Manifest manifest) {
  if (!options.tokenizer) {
    return Status::InvalidArgument("source '" + options.spec.name +
                                   "'; the job needs a `tokenizer`");
  }
  WS_ASSIGN_OR_RETURN(std::unique_ptr<BlockReader> reader,
                      BlockReader::Make(std::move(fs), options.spec, options.seed,
                                        options.record_bytes, std::move(manifest)));
  return std::unique_ptr<SourceLoader>(
      new SourceLoader(pool, std::move(options), std::move(reader)));
}

SourceLoader::~SourceLoader() {
  Stop();
  MutexLock lock(mutex_);
  while (tasks_ > 0) changed_.Wait(mutex_);
}

Status SourceLoader::Start(const RestartPoint& point) {
  MutexLock lock(mutex_);
  if (started_) return Status::Internal("SourceLoader::Start called twice");
  WS_RETURN_IF_ERROR(reader_->Seek(point));
  started_ = true;
  read_to_ = wanted_ = released_ = {point.epoch, point.position};
  return Status::Ok();
}

bool SourceLoader::LastBlockHalfUsed() const {
  if (slots_.empty()) return true;
  const Slot& last = *slots_.back();
  return wanted_ >= std::make_pair(last.epoch, last.position + last.records / 2);
}

void SourceLoader::UpdateUrgency() {
  const auto waiting = std::find_if(slots_.begin(), slots_.end(),
                                    [](const std::shared_ptr<Slot>& slot) { return !slot->ready; });
  const auto place =
      waiting == slots_.end() ? read_to_ : std::make_pair((*waiting)->epoch, (*waiting)->position);
  const int urgency = waiters_ > 0 ? 2 : asked_ && wanted_ >= place ? 1 : 0;
  if (urgency == urgency_) return;
  urgency_ = urgency;
  pool_->SetUrgency(options_.source, urgency);
}

void SourceLoader::MaybeRead() {
  if (!asked_ || stopped_ || reading_ || !fault_.ok()) return;
  // What is asked for is always read; beyond it, as many blocks as the read-ahead holds, but the
  // next one at the latest when half of this one is used.
  const bool required = wanted_ >= read_to_;
  const bool full = slots_.size() >= kMaxReadAheadBlocks ||
                    (buffered_bytes_ >= options_.read_ahead_bytes && !LastBlockHalfUsed());
  if (!required && full && !(options_.lean && next_is_decoded_)) {
    if (options_.lean) reader_->Shrink();
    return;
  }
  reading_ = true;
  Submit("read", [this] {
    ReadTask();
    return Status::Ok();
  });
}

void SourceLoader::Submit(const char* what, Task task) {
  ++tasks_;
  TaskOptions options;
  options.queue = options_.source;
  options.name = StrCat(what, " of source '", options_.spec.name, "'");
  options.on_done = [this](const Status& status) {
    MutexLock lock(mutex_);
    if (!status.ok()) Fail(status);
    --tasks_;
    changed_.NotifyAll();
  };
  pool_->Submit(std::move(task), std::move(options));
}

void SourceLoader::ReadTask() {
  auto raw = std::make_shared<RawBlock>();
  Result<RawBlock> next = reader_->Next();
  MutexLock lock(mutex_);
  reading_ = false;
  if (!next.ok()) {
    Fail(next.status());
  } else if (!stopped_) {
    *raw = std::move(next).value();
    next_is_decoded_ = raw->next_is_decoded;
    auto slot = std::make_shared<Slot>();
    slot->block = std::make_shared<SampleBlock>();
    slot->epoch = raw->restart.epoch;
    slot->position = raw->restart.position;
    slot->records = raw->block.records.size();
    // Until it is transformed: the text, and ids of about half its bytes in number.
    slot->bytes = raw->block.raw_bytes * 2 + slot->records * sizeof(RawRecord);
    buffered_bytes_ += slot->bytes;
    slots_.push_back(slot);
    read_to_ = raw->end_of_epoch ? std::make_pair(slot->epoch + 1, std::uint64_t{0})
                                 : std::make_pair(slot->epoch, slot->position + slot->records);
    Submit("transform", [this, slot, raw] {
      TransformTask(slot, raw);
      return Status::Ok();
    });
    MaybeRead();
  }
  UpdateUrgency();
  changed_.NotifyAll();
}

void SourceLoader::TransformTask(const std::shared_ptr<Slot>& slot, std::shared_ptr<RawBlock> raw) {
  Transform(*raw, slot->block.get());
  raw.reset();
  MutexLock lock(mutex_);
  slot->ready = true;
  // The slot may have been released while it was being transformed.
  if (std::find(slots_.begin(), slots_.end(), slot) != slots_.end()) {
    buffered_bytes_ += slot->block->bytes - slot->bytes;
  }
  slot->bytes = slot->block->bytes;
  MaybeRead();
  UpdateUrgency();
  changed_.NotifyAll();
}

// The ids of a record that is tokenized already; else why it is bad.
std::string SourceLoader::UnpackIds(const RawBlock& raw, std::string_view text,
                                    std::vector<std::uint32_t>* ids) const {
  const std::uint32_t id_bytes = raw.block.id_bytes;
  ids->resize(text.size() / id_bytes);
  if (id_bytes == sizeof(std::uint32_t)) {
    if (!text.empty()) std::memcpy(ids->data(), text.data(), text.size());
  } else {
    for (std::size_t i = 0; i < ids->size(); ++i) {
      std::uint16_t id = 0;
      std::memcpy(&id, text.data() + i * sizeof(id), sizeof(id));
      (*ids)[i] = id;
    }
  }
  const std::uint32_t vocabulary = options_.tokenizer->VocabularySize();
  // The largest first: a loop that does not stop early is vectorised.
  std::uint32_t largest = 0;
  for (const std::uint32_t id : *ids) largest = std::max(largest, id);
  if (largest < vocabulary) return {};
  const auto bad = std::find_if(ids->begin(), ids->end(),
                                [vocabulary](std::uint32_t id) { return id >= vocabulary; });
  std::string error =
      StrCat("id number ", bad - ids->begin(), " is ", *bad, ", but the tokenizer has ", vocabulary,
             " ids; give the tokenizer that the data set was made with");
  ids->clear();
  return error;
}

void SourceLoader::Transform(const RawBlock& raw, SampleBlock* out) const {
  const std::size_t count = raw.order.size();
  MetadataBatch& metadata = out->metadata;
  metadata.source = options_.source;
  metadata.epoch = raw.restart.epoch;
  metadata.position = raw.restart.position;
  metadata.end_of_epoch = raw.end_of_epoch;
  metadata.restart = raw.restart;
  metadata.outcome.resize(count, RecordOutcome::kDelivered);
  metadata.tokens.resize(count);
  metadata.bytes.resize(count);
  metadata.ids_hash.resize(count);
  metadata.shard.assign(count, raw.shard);
  metadata.record.resize(count);
  out->offsets.assign(1, 0);
  out->offsets.reserve(count + 1);
  const bool narrow = options_.tokenizer->VocabularySize() <= 65536;
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t index = raw.order[i];
    const RawRecord& record = raw.block.records[index];
    metadata.record[i] = raw.restart.record + index;
    ids.clear();
    std::string_view content = record.text;
    std::string problem;
    if (record.error >= 0) {
      problem = raw.block.errors[static_cast<std::size_t>(record.error)];
    } else if (raw.block.id_bytes != 0) {
      problem = UnpackIds(raw, record.text, &ids);
      // The same ids are the same record, however wide they are stored.
      content = {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0])};
    }
    metadata.bytes[i] =
        static_cast<std::uint32_t>(std::min<std::size_t>(record.text.size(), UINT32_MAX));
    if (!problem.empty()) {
      metadata.outcome[i] = RecordOutcome::kCorrupt;
      metadata.problems.emplace_back(
          i, StrCat(reader_->manifest().shards[raw.shard].path, ", at ", record.offset, ": ",
                    problem.substr(0, kMaxProblemBytes)));
    } else if ((held_out_below_ > 0 && Xxh3_64(content) < held_out_below_) !=
               options_.deliver_held_out) {
      metadata.outcome[i] =
          options_.deliver_held_out ? RecordOutcome::kFiltered : RecordOutcome::kHeldOut;
    } else {
      if (raw.block.id_bytes == 0) {
        options_.tokenizer->Encode(record.text, &ids);
        ids.insert(ids.end(), options_.append.begin(), options_.append.end());
      }
      metadata.tokens[i] = static_cast<std::uint32_t>(ids.size());
      metadata.ids_hash[i] = Xxh3_64(
          std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0])));
      if (narrow) {
        out->ids16.insert(out->ids16.end(), ids.begin(), ids.end());
      } else {
        out->ids32.insert(out->ids32.end(), ids.begin(), ids.end());
      }
    }
    out->offsets.push_back(narrow ? out->ids16.size() : out->ids32.size());
  }
  out->ids16.shrink_to_fit();
  out->ids32.shrink_to_fit();
  constexpr std::uint64_t kColumnBytes = 4 + 4 + 8 + 4 + 8 + 8 + 1;
  out->bytes =
      sizeof(SampleBlock) + count * kColumnBytes + out->ids16.size() * 2 + out->ids32.size() * 4;
}

std::shared_ptr<SourceLoader::Slot> SourceLoader::Find(std::uint32_t epoch,
                                                       std::uint64_t position) {
  const auto place = std::make_pair(epoch, position);
  const auto after = std::upper_bound(slots_.begin(), slots_.end(), place,
                                      [](const auto& p, const std::shared_ptr<Slot>& slot) {
                                        return p < std::make_pair(slot->epoch, slot->position);
                                      });
  if (after == slots_.begin()) return nullptr;
  const std::shared_ptr<Slot>& slot = *(after - 1);
  const bool inside =
      slot->epoch == epoch &&
      (slot->records == 0 ? position == slot->position : position < slot->position + slot->records);
  return inside ? slot : nullptr;
}

void SourceLoader::Prepare(const ReadRequest& request) {
  MutexLock lock(mutex_);
  wanted_ = std::max(
      wanted_, {request.epoch, request.position + (request.records > 0 ? request.records - 1 : 0)});
  asked_ = started_;
  MaybeRead();
  UpdateUrgency();
}

Result<std::shared_ptr<SourceLoader::Slot>> SourceLoader::Await(
    std::uint32_t epoch, std::uint64_t position, std::chrono::steady_clock::time_point deadline) {
  const auto place = std::make_pair(epoch, position);
  wanted_ = std::max(wanted_, place);
  asked_ = started_;
  for (;;) {
    if (place < released_) {
      return Status::InvalidArgument(
          StrCat("source '", options_.spec.name, "': ", Place(place.first, place.second),
                 " was released; the oldest held is ", Place(released_.first, released_.second)));
    }
    std::shared_ptr<Slot> slot = Find(epoch, position);
    if (slot && slot->ready) return slot;
    if (!fault_.ok()) return fault_;
    if (stopped_) return Status::Cancelled(StrCat("source '", options_.spec.name, "' was stopped"));
    if (read_to_ > place && !slot) {
      return Status::InvalidArgument(StrCat("source '", options_.spec.name, "': there is no ",
                                            Place(place.first, place.second),
                                            "; the epoch is shorter"));
    }
    MaybeRead();
    ++waiters_;
    UpdateUrgency();
    const bool woken = changed_.WaitUntil(mutex_, deadline);
    --waiters_;
    UpdateUrgency();
    if (!woken && std::chrono::steady_clock::now() >= deadline) {
      return Status::DeadlineExceeded(StrCat(
          "source '", options_.spec.name, "' gave no record for ", Place(place.first, place.second),
          " before limits.read_deadline; the storage is slow or stuck, or the limit too low"));
    }
  }
}

Result<std::shared_ptr<const MetadataBatch>> SourceLoader::Metadata(
    const ReadRequest& request, std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  if (request.incarnation != options_.incarnation) {
    return Status::Unavailable(StrCat("source '", options_.spec.name,
                                      "': the request is for loader incarnation ",
                                      request.incarnation, ", this is ", options_.incarnation));
  }
  WS_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot,
                      Await(request.epoch, request.position, deadline));
  return std::shared_ptr<const MetadataBatch>(slot->block, &slot->block->metadata);
}

Result<Ids> SourceLoader::IdsOf(std::uint32_t epoch, std::uint64_t position,
                                std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  WS_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, Await(epoch, position, deadline));
  if (slot->records == 0) {
    return Status::Internal(StrCat("source '", options_.spec.name, "': there is no record at ",
                                   Place(epoch, position)));
  }
  const std::size_t i = position - slot->position;
  const SampleBlock& block = *slot->block;
  Ids ids;
  ids.block = slot->block;
  ids.size = block.offsets[i + 1] - block.offsets[i];
  if (!block.ids16.empty()) ids.ids16 = block.ids16.data() + block.offsets[i];
  if (!block.ids32.empty()) ids.ids32 = block.ids32.data() + block.offsets[i];
  return ids;
}

void SourceLoader::Release(std::uint32_t epoch, std::uint64_t position) {
  MutexLock lock(mutex_);
  const auto place = std::make_pair(epoch, position);
  released_ = std::max(released_, place);
  while (!slots_.empty()) {
    const Slot& slot = *slots_.front();
    const auto end = slot.records == 0 ? std::make_pair(slot.epoch + 1, std::uint64_t{0})
                                       : std::make_pair(slot.epoch, slot.position + slot.records);
    if (end > released_) break;
    buffered_bytes_ -= slot.bytes;
    slots_.pop_front();
  }
  MaybeRead();
}

void SourceLoader::Fail(const Status& status) {
  if (fault_.ok()) fault_ = status;
  changed_.NotifyAll();
}

void SourceLoader::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

std::uint64_t SourceLoader::buffered_bytes() const {
  MutexLock lock(mutex_);
  return buffered_bytes_;
}

}  // namespace widestream
