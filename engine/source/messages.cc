#include "engine/source/messages.h"

#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/wire.h"

namespace widestream {
namespace {

constexpr std::uint32_t kRequestMagic = WireMagic("WSRQ");
constexpr std::uint32_t kMetadataMagic = WireMagic("WSMD");
// More records than any block holds; a column's bytes bound it further before it is allocated.
constexpr std::uint64_t kMaxRecords = std::uint64_t{1} << 28;
constexpr std::uint64_t kMaxProblemBytes = 64U << 10;

}  // namespace

std::string Encode(const ReadRequest& request) {
  WireWriter writer;
  writer.Header(kRequestMagic, kMessageVersion);
  writer.U32(request.source);
  writer.U32(request.epoch);
  writer.U64(request.position);
  writer.U64(request.records);
  writer.U64(request.incarnation);
  return writer.Take();
}

Result<ReadRequest> DecodeReadRequest(std::string_view bytes) {
  WireReader reader(bytes, "read request");
  ReadRequest request;
  WS_RETURN_IF_ERROR(reader.Header(kRequestMagic, kMessageVersion, kMessageVersion).status());
  WS_ASSIGN_OR_RETURN(request.source, reader.U32());
  WS_ASSIGN_OR_RETURN(request.epoch, reader.U32());
  WS_ASSIGN_OR_RETURN(request.position, reader.U64());
  WS_ASSIGN_OR_RETURN(request.records, reader.U64());
  WS_ASSIGN_OR_RETURN(request.incarnation, reader.U64());
  WS_RETURN_IF_ERROR(reader.Finish());
  return request;
}

std::string Encode(const MetadataBatch& batch) {
  WireWriter writer;
  writer.Header(kMetadataMagic, kMessageVersion);
  writer.U32(batch.source);
  writer.U32(batch.epoch);
  writer.U64(batch.position);
  writer.Bool(batch.end_of_epoch);
  writer.U32(batch.restart.epoch);
  writer.U64(batch.restart.position);
  writer.U64(batch.restart.unit);
  writer.U64(batch.restart.block);
  writer.U64(batch.restart.offset);
  writer.U64(batch.restart.record);
  std::vector<std::uint8_t> outcome;
  outcome.reserve(batch.size());
  for (const RecordOutcome o : batch.outcome) outcome.push_back(static_cast<std::uint8_t>(o));
  writer.Column(outcome);
  writer.Column(batch.tokens);
  writer.Column(batch.bytes);
  writer.Column(batch.ids_hash);
  writer.Column(batch.shard);
  writer.Column(batch.record);
  writer.U64(batch.problems.size());
  for (const auto& [index, text] : batch.problems) {
    writer.U32(index);
    writer.Bytes(text);
  }
  return writer.Take();
}

Result<MetadataBatch> DecodeMetadataBatch(std::string_view bytes) {
  WireReader reader(bytes, "metadata batch");
  MetadataBatch batch;
  WS_RETURN_IF_ERROR(reader.Header(kMetadataMagic, kMessageVersion, kMessageVersion).status());
  WS_ASSIGN_OR_RETURN(batch.source, reader.U32());
  WS_ASSIGN_OR_RETURN(batch.epoch, reader.U32());
  WS_ASSIGN_OR_RETURN(batch.position, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.end_of_epoch, reader.Bool());
  WS_ASSIGN_OR_RETURN(batch.restart.epoch, reader.U32());
  WS_ASSIGN_OR_RETURN(batch.restart.position, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.restart.unit, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.restart.block, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.restart.offset, reader.U64());
  WS_ASSIGN_OR_RETURN(batch.restart.record, reader.U64());
  WS_ASSIGN_OR_RETURN(const auto outcome, reader.Column<std::uint8_t>(kMaxRecords));
  const std::size_t n = outcome.size();
  batch.outcome.reserve(n);
  for (const std::uint8_t o : outcome) {
    if (o > static_cast<std::uint8_t>(RecordOutcome::kQuarantined)) {
      return reader.Corrupt(StrCat("outcome ", o, " is unknown"));
    }
    batch.outcome.push_back(static_cast<RecordOutcome>(o));
  }
  WS_ASSIGN_OR_RETURN(batch.tokens, reader.Column<std::uint32_t>(n));
  WS_ASSIGN_OR_RETURN(batch.bytes, reader.Column<std::uint32_t>(n));
  WS_ASSIGN_OR_RETURN(batch.ids_hash, reader.Column<std::uint64_t>(n));
  WS_ASSIGN_OR_RETURN(batch.shard, reader.Column<std::uint32_t>(n));
  WS_ASSIGN_OR_RETURN(batch.record, reader.Column<std::uint64_t>(n));
  WS_ASSIGN_OR_RETURN(const std::uint64_t problems, reader.U64());
  if (problems > n) return reader.Corrupt(StrCat(problems, " problems of ", n, " records"));
  for (std::uint64_t i = 0; i < problems; ++i) {
    WS_ASSIGN_OR_RETURN(const std::uint32_t index, reader.U32());
    WS_ASSIGN_OR_RETURN(const auto text, reader.Bytes(kMaxProblemBytes));
    if (index >= n) return reader.Corrupt(StrCat("problem of record ", index, " of ", n));
    batch.problems.emplace_back(index, std::string(text));
  }
  if (batch.tokens.size() != n || batch.bytes.size() != n || batch.ids_hash.size() != n ||
      batch.shard.size() != n || batch.record.size() != n) {
    return reader.Corrupt(StrCat("columns differ in length from the ", n, " outcomes"));
  }
  for (std::size_t i = 0; i < n; ++i) {
    const bool delivered = batch.outcome[i] == RecordOutcome::kDelivered;
    if (!delivered && (batch.tokens[i] != 0 || batch.ids_hash[i] != 0)) {
      return reader.Corrupt(StrCat("record ", i, " is not delivered but has tokens"));
    }
  }
  if (batch.position > UINT64_MAX - n) return reader.Corrupt("the position overflows");
  WS_RETURN_IF_ERROR(reader.Finish());
  return batch;
}

}  // namespace widestream
