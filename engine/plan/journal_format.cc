#include "engine/plan/journal_format.h"

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/wire.h"
#include "engine/job/validate.h"

namespace widestream::journal_format {
namespace {

constexpr std::uint32_t kHeaderMagic = WireMagic("WSJN");
constexpr std::uint64_t kMaxTextBytes = 256U << 20;

std::uint64_t Checksum(std::string_view length_and_type, std::string_view payload) {
  Xxh3Digest digest;
  digest.Update(length_and_type);
  digest.Update(payload);
  return digest.Digest64();
}

void PutIdentity(WireWriter& writer, const JournalIdentity& identity) {
  writer.Bytes(identity.stream_hash);
  writer.U32(static_cast<std::uint32_t>(identity.sources.size()));
  for (const std::string& name : identity.sources) writer.Bytes(name);
}

Result<JournalIdentity> GetIdentity(WireReader& reader) {
  JournalIdentity identity;
  WS_ASSIGN_OR_RETURN(const std::string_view hash, reader.Bytes(64));
  identity.stream_hash = hash;
  WS_ASSIGN_OR_RETURN(const std::uint32_t sources, reader.U32());
  if (sources > kMaxSources) return reader.Corrupt(StrCat(sources, " sources"));
  for (std::uint32_t s = 0; s < sources; ++s) {
    WS_ASSIGN_OR_RETURN(const std::string_view name, reader.Bytes(1024));
    identity.sources.emplace_back(name);
  }
  return identity;
}

struct StepHead {
  std::uint64_t step = 0;
  Hash128 digest;
};

Result<StepHead> GetStepHead(WireReader& reader) {
  StepHead head;
  WS_ASSIGN_OR_RETURN(head.step, reader.U64());
  WS_ASSIGN_OR_RETURN(head.digest.high, reader.U64());
  WS_ASSIGN_OR_RETURN(head.digest.low, reader.U64());
  return head;
}

void VoidSteps(JournalContents& contents, std::uint64_t from) {
  while (!contents.steps.empty() && contents.steps.back().step >= from) contents.steps.pop_back();
}

void BookStep(const JournalContents::Step& step, JournalContents& contents) {
  const auto at = std::lower_bound(
      contents.steps.begin(), contents.steps.end(), step.step,
      [](const JournalContents::Step& a, std::uint64_t number) { return a.step < number; });
  if (at != contents.steps.end() && at->step == step.step) {
    *at = step;
  } else {
    contents.steps.insert(at, step);
  }
}

void BookDecision(Decision decision, JournalContents& contents) {
  VoidSteps(contents, decision.step);
  const auto at =
      std::upper_bound(contents.decisions.begin(), contents.decisions.end(), decision.step,
                       [](std::uint64_t number, const Decision& a) { return number < a.step; });
  contents.decisions.insert(at, std::move(decision));
}

}  // namespace

std::string Frame(RecordType type, std::string_view payload) {
  WireWriter head;
  head.U32(static_cast<std::uint32_t>(payload.size()));
  head.U32(static_cast<std::uint32_t>(type));  // a byte and three zeros
  const std::uint64_t checksum = Checksum(head.bytes(), payload);
  head.U64(checksum);
  std::string record = head.Take();
  record.append(payload);
  return record;
}

std::string HeaderPayload(const JournalIdentity& identity) {
  WireWriter writer;
  writer.Header(kHeaderMagic, kVersion);
  PutIdentity(writer, identity);
  return writer.Take();
}

std::string StepPayload(const StepPlan& plan, const Hash128& digest) {
  WireWriter writer;
  writer.U64(plan.step);
  writer.U64(digest.high);
  writer.U64(digest.low);
  std::string payload = writer.Take();
  payload += Encode(plan);
  return payload;
}

std::string ManifestPayload(const JournalManifest& manifest) {
  WireWriter writer;
  writer.U32(manifest.source);
  writer.U32(manifest.epoch);
  writer.Bytes(manifest.hash);
  writer.Bytes(manifest.bytes);
  return writer.Take();
}

std::string ForkPayload(std::uint64_t step, const JournalIdentity& identity) {
  WireWriter writer;
  writer.U64(step);
  PutIdentity(writer, identity);
  return writer.Take();
}

Result<StepPlan> ParseStep(std::string_view payload) {
  WireReader reader(payload, "step record");
  WS_ASSIGN_OR_RETURN(const StepHead head, GetStepHead(reader));
  WS_ASSIGN_OR_RETURN(StepPlan plan, DecodeStepPlan(payload.substr(reader.offset_bytes())));
  if (plan.step != head.step || plan.digest != head.digest.ToHex()) {
    return reader.Corrupt(StrCat("the plan in the record of step ", head.step, " is of step ",
                                 plan.step, " or has another digest"));
  }
  return plan;
}

Result<JournalManifest> ParseManifest(std::string_view payload) {
  WireReader reader(payload, "manifest record");
  JournalManifest manifest;
  WS_ASSIGN_OR_RETURN(manifest.source, reader.U32());
  WS_ASSIGN_OR_RETURN(manifest.epoch, reader.U32());
  WS_ASSIGN_OR_RETURN(const std::string_view hash, reader.Bytes(1024));
  manifest.hash = hash;
  WS_ASSIGN_OR_RETURN(const std::string_view bytes, reader.Bytes(kMaxPayloadBytes));
  manifest.bytes = bytes;
  WS_RETURN_IF_ERROR(reader.Finish());
  return manifest;
}

Result<Record> ReadRecord(const RandomAccessFile& file, std::uint64_t offset_bytes) {
  const std::uint64_t size = file.size_bytes();
  const auto torn = [&](const std::string& why) {
    return Status::DataCorruption(
        StrCat("journal ", file.path(), ", byte ", offset_bytes, ": ", why));
  };
  if (offset_bytes > size || size - offset_bytes < kFrameBytes) {
    return torn("the file ends inside a record's frame");
  }
  std::string head(kFrameBytes, '\0');
  WS_ASSIGN_OR_RETURN(const std::size_t got, file.ReadAt(offset_bytes, kFrameBytes, head.data()));
  if (got != kFrameBytes) return torn("the file ends inside a record's frame");
  WireReader reader(head, "journal frame");
  WS_ASSIGN_OR_RETURN(const std::uint32_t length, reader.U32());
  WS_ASSIGN_OR_RETURN(const std::uint32_t type, reader.U32());
  WS_ASSIGN_OR_RETURN(const std::uint64_t checksum, reader.U64());
  if (length > kMaxPayloadBytes || type > static_cast<std::uint32_t>(RecordType::kFork)) {
    return torn(StrCat("no record begins here (length ", length, ", type ", type, ")"));
  }
  if (length > size - offset_bytes - kFrameBytes) {
    return torn(StrCat("a record of ", length, " bytes is cut short"));
  }
  Record record;
  record.type = static_cast<RecordType>(type);
  record.offset_bytes = offset_bytes;
  record.payload.resize(length);
  WS_ASSIGN_OR_RETURN(const std::size_t read,
                      file.ReadAt(offset_bytes + kFrameBytes, length, record.payload.data()));
  if (read != length) return torn(StrCat("a record of ", length, " bytes is cut short"));
  if (Checksum(std::string_view(head).substr(0, 8), record.payload) != checksum) {
    return torn(StrCat("the checksum of a record of ", length, " bytes does not match"));
  }
  return record;
}

Status Apply(const Record& record, JournalContents& contents) {
  WireReader reader(record.payload, StrCat("journal record at byte ", record.offset_bytes));
  switch (record.type) {
    case RecordType::kHeader: {
      if (record.offset_bytes != 0) return reader.Corrupt("a second header");
      WS_RETURN_IF_ERROR(reader.Header(kHeaderMagic, kVersion, kVersion).status());
      WS_ASSIGN_OR_RETURN(contents.identity, GetIdentity(reader));
      return reader.Finish();
    }
    case RecordType::kStep: {
      WS_ASSIGN_OR_RETURN(const StepHead head, GetStepHead(reader));
      BookStep({head.step, record.offset_bytes, head.digest}, contents);
      return Status::Ok();
    }
    case RecordType::kDecision: {
      WS_ASSIGN_OR_RETURN(Decision decision, DecodeDecision(record.payload));
      if (decision.kind == Decision::Kind::kQuarantine &&
          decision.source >= contents.identity.sources.size()) {
        return reader.Corrupt("a quarantine of no source");
      }
      BookDecision(std::move(decision), contents);
      return Status::Ok();
    }
    case RecordType::kManifest: {
      WS_ASSIGN_OR_RETURN(const JournalManifest manifest, ParseManifest(record.payload));
      if (manifest.source >= contents.identity.sources.size()) {
        return reader.Corrupt("a manifest of no source");
      }
      contents.manifests.push_back(
          {manifest.source, manifest.epoch, manifest.hash, record.offset_bytes});
      return Status::Ok();
    }
    case RecordType::kNote:
      contents.notes.push_back(record.payload);
      return Status::Ok();
    case RecordType::kFork: {
      WS_ASSIGN_OR_RETURN(const std::uint64_t step, reader.U64());
      WS_ASSIGN_OR_RETURN(contents.identity, GetIdentity(reader));
      WS_RETURN_IF_ERROR(reader.Finish());
      VoidSteps(contents, step);
      std::erase_if(contents.decisions, [&](const Decision& d) { return d.step >= step; });
      // Files may have changed with the identity: epochs are frozen anew.
      contents.manifests.clear();
      return Status::Ok();
    }
  }
  return reader.Corrupt("unknown type");
}

namespace {

// Repairing cuts off what a crash left of a journal; another file must not be emptied by it.
Status CheckIsJournal(const RandomAccessFile& file) {
  const std::string begin = Frame(RecordType::kHeader, HeaderPayload(JournalIdentity()));
  std::string head(kFrameBytes + sizeof(std::uint32_t), '\0');
  WS_ASSIGN_OR_RETURN(const std::size_t got, file.ReadAt(0, head.size(), head.data()));
  for (std::size_t i = 0; i < got; ++i) {
    const bool fixed = (i >= 4 && i < 8) || i >= kFrameBytes;  // type, zeros, magic
    if (fixed && head[i] != begin[i]) {
      return Status::DataCorruption(StrCat(file.path(),
                                           " is no journal, or its first bytes are damaged (byte ",
                                           i, "); move it away, or use another run_dir"));
    }
  }
  return Status::Ok();
}

// Whether behind damage at `offset` there is a whole record before which everything was synced: no
// crash leaves that. For the header that is every record, else those that are synced themselves.
Result<bool> SyncedRecordFollows(const RandomAccessFile& file, std::uint64_t offset) {
  constexpr std::uint64_t kChunkBytes = 1U << 20;
  // Damage that looks like the beginnings of many long records is no crash's either.
  std::uint64_t may_read_bytes = 256U << 20;
  const std::uint64_t size = file.size_bytes();
  std::string chunk;
  for (std::uint64_t at = offset + 1; at + kFrameBytes <= size; at += kChunkBytes) {
    chunk.resize(std::min(kChunkBytes + kFrameBytes, size - at));
    WS_ASSIGN_OR_RETURN(const std::size_t got, file.ReadAt(at, chunk.size(), chunk.data()));
    for (std::size_t i = 0; i < kChunkBytes && i + kFrameBytes <= got; ++i) {
      const auto type = static_cast<RecordType>(chunk[i + 4]);
      const bool synced = type == RecordType::kDecision || type == RecordType::kManifest ||
                          type == RecordType::kFork ||
                          (offset == 0 && (type == RecordType::kStep || type == RecordType::kNote));
      if (!synced || chunk[i + 5] != 0 || chunk[i + 6] != 0 || chunk[i + 7] != 0) continue;
      WS_ASSIGN_OR_RETURN(const std::uint32_t length,
                          WireReader(std::string_view(chunk).substr(i, 4), "journal frame").U32());
      if (length > size - (at + i) - kFrameBytes) continue;
      if (length > may_read_bytes) return true;
      may_read_bytes -= length;
      if (ReadRecord(file, at + i).ok()) return true;
    }
  }
  return false;
}

}  // namespace

Result<JournalContents> Scan(const RandomAccessFile& file) {
  JournalContents contents;
  const std::uint64_t size = file.size_bytes();
  while (contents.valid_bytes < size) {
    const std::uint64_t offset = contents.valid_bytes;
    auto record = ReadRecord(file, offset);
    Status status = record.status();
    if (offset == 0) WS_RETURN_IF_ERROR(CheckIsJournal(file));
    if (status.ok() && (offset == 0) != (record->type == RecordType::kHeader)) {
      status = Status::DataCorruption(StrCat("journal ", file.path(), ", byte ", offset,
                                             ": the header is not the first record"));
    }
    if (status.ok()) status = Apply(*record, contents);
    if (status.ok()) {
      contents.valid_bytes = offset + kFrameBytes + record->payload.size();
      continue;
    }
    // A newer format is not damage, and a read that failed says nothing about the bytes.
    if (status.code() != StatusCode::kDataCorruption) return status;
    JournalTear tear;
    tear.offset_bytes = offset;
    tear.lost_bytes = size - offset;
    tear.reason = status.message();
    std::string head(4, '\0');
    WS_ASSIGN_OR_RETURN(const std::size_t got, file.ReadAt(offset, head.size(), head.data()));
    if (got == head.size()) {
      WS_ASSIGN_OR_RETURN(const std::uint32_t length, WireReader(head, "journal frame").U32());
      const std::uint64_t next = offset + kFrameBytes + length;
      tear.records_follow = next < size && ReadRecord(file, next).ok();
    }
    if (!tear.records_follow) {
      WS_ASSIGN_OR_RETURN(tear.records_follow, SyncedRecordFollows(file, offset));
    }
    contents.tear = std::move(tear);
    break;
  }
  return contents;
}

}  // namespace widestream::journal_format

namespace widestream {

std::string Encode(const Decision& decision) {
  WireWriter writer;
  writer.U8(static_cast<std::uint8_t>(decision.kind));
  writer.U64(decision.step);
  writer.Bytes(decision.mixture_json);
  writer.U64(decision.steps);
  writer.U32(decision.source);
  writer.U32(decision.epoch);
  writer.U64(decision.position);
  writer.Bytes(decision.reason);
  return writer.Take();
}

Result<Decision> DecodeDecision(std::string_view payload) {
  WireReader reader(payload, "decision");
  Decision decision;
  WS_ASSIGN_OR_RETURN(const std::uint8_t kind, reader.U8());
  if (kind > static_cast<std::uint8_t>(Decision::Kind::kQuarantine)) {
    return reader.Corrupt(StrCat("decision of kind ", kind));
  }
  decision.kind = static_cast<Decision::Kind>(kind);
  WS_ASSIGN_OR_RETURN(decision.step, reader.U64());
  WS_ASSIGN_OR_RETURN(const std::string_view mixture, reader.Bytes(journal_format::kMaxTextBytes));
  decision.mixture_json = mixture;
  WS_ASSIGN_OR_RETURN(decision.steps, reader.U64());
  WS_ASSIGN_OR_RETURN(decision.source, reader.U32());
  WS_ASSIGN_OR_RETURN(decision.epoch, reader.U32());
  WS_ASSIGN_OR_RETURN(decision.position, reader.U64());
  WS_ASSIGN_OR_RETURN(const std::string_view reason, reader.Bytes(journal_format::kMaxTextBytes));
  decision.reason = reason;
  WS_RETURN_IF_ERROR(reader.Finish());
  return decision;
}

}  // namespace widestream
