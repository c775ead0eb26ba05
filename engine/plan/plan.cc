#include "engine/plan/plan.h"

#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/job/validate.h"
#include "engine/plan/varint.h"

namespace widestream {
namespace {

constexpr std::uint32_t kPlanMagic = WireMagic("WSPL");
constexpr std::uint16_t kPlanVersion = 1;
constexpr std::uint64_t kMax32 = UINT32_MAX;
constexpr std::size_t kLeastPieceBytes = 16;  // eight numbers of a byte or more, and the hash
constexpr std::size_t kDigestDigits = 32;

using Row = std::vector<std::uint32_t>;

void PutRow(WireWriter& writer, const Row& row) {
  for (const std::uint32_t piece : row) PutVarint(writer, piece);
}

Result<Row> GetRow(WireReader& reader, std::uint64_t size, std::size_t pieces) {
  if (size > reader.remaining_bytes()) return reader.Corrupt("a row is longer than the message");
  Row row;
  row.reserve(size);
  for (std::uint64_t i = 0; i < size; ++i) {
    WS_ASSIGN_OR_RETURN(const std::uint64_t piece, GetVarint(reader, kMax32));
    if (piece >= pieces) return reader.Corrupt(StrCat("piece ", piece, " of ", pieces));
    row.push_back(static_cast<std::uint32_t>(piece));
  }
  return row;
}

// A count of things that take at least a byte each.
Result<std::uint64_t> GetCount(WireReader& reader, std::size_t least_bytes = 1) {
  WS_ASSIGN_OR_RETURN(const std::uint64_t count, GetVarint(reader));
  if (count > reader.remaining_bytes() / least_bytes) {
    return reader.Corrupt(StrCat("a count of ", count, " needs more bytes than follow"));
  }
  return count;
}

void PutPieces(WireWriter& writer, const std::vector<Piece>& pieces) {
  PutVarint(writer, pieces.size());
  std::vector<Piece> before(1);  // by source: differences within a source are small
  std::uint64_t draw = 0;
  for (const Piece& piece : pieces) {
    if (piece.source >= before.size()) before.resize(piece.source + 1);
    Piece& base = before[piece.source];
    PutVarint(writer, (std::uint64_t{piece.source} << 1) | (piece.last ? 1 : 0));
    PutDelta(writer, piece.epoch, base.epoch);
    PutDelta(writer, piece.position, base.position);
    PutVarint(writer, piece.start);
    PutVarint(writer, piece.length);
    PutDelta(writer, piece.draw, draw);
    PutDelta(writer, piece.shard, base.shard);
    PutDelta(writer, piece.record, base.record);
    writer.U64(piece.ids_hash);
    base = piece;
    draw = piece.draw;
  }
}

Result<std::vector<Piece>> GetPieces(WireReader& reader) {
  WS_ASSIGN_OR_RETURN(const std::uint64_t count, GetCount(reader, kLeastPieceBytes));
  std::vector<Piece> pieces;
  pieces.reserve(count);
  std::vector<Piece> before(1);
  std::uint64_t draw = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    Piece piece;
    WS_ASSIGN_OR_RETURN(const std::uint64_t source, GetVarint(reader, 2 * kMaxSources - 1));
    piece.source = static_cast<std::uint32_t>(source >> 1);
    piece.last = (source & 1) != 0;
    if (piece.source >= before.size()) before.resize(piece.source + 1);
    Piece& base = before[piece.source];
    WS_ASSIGN_OR_RETURN(const std::uint64_t epoch, GetDelta(reader, base.epoch, kMax32));
    piece.epoch = static_cast<std::uint32_t>(epoch);
    WS_ASSIGN_OR_RETURN(piece.position, GetDelta(reader, base.position));
    WS_ASSIGN_OR_RETURN(const std::uint64_t start, GetVarint(reader, kMax32));
    piece.start = static_cast<std::uint32_t>(start);
    WS_ASSIGN_OR_RETURN(const std::uint64_t length, GetVarint(reader, kMax32 - start));
    if (length == 0) return reader.Corrupt(StrCat("piece ", i, " has no token"));
    piece.length = static_cast<std::uint32_t>(length);
    WS_ASSIGN_OR_RETURN(piece.draw, GetDelta(reader, draw));
    WS_ASSIGN_OR_RETURN(const std::uint64_t shard, GetDelta(reader, base.shard, kMax32));
    piece.shard = static_cast<std::uint32_t>(shard);
    WS_ASSIGN_OR_RETURN(piece.record, GetDelta(reader, base.record));
    WS_ASSIGN_OR_RETURN(piece.ids_hash, reader.U64());
    base = piece;
    draw = piece.draw;
    pieces.push_back(piece);
  }
  return pieces;
}

// A row of a microbatch is mostly one of plan.rows: then 2 * number + 1, else 2 * size and the
// pieces.
void PutRanks(WireWriter& writer, const StepPlan& plan) {
  std::vector<std::uint32_t> row_of(plan.pieces.size(), 0);
  for (std::uint32_t r = 0; r < plan.rows.size(); ++r) {
    if (!plan.rows[r].empty()) row_of[plan.rows[r].front()] = r;
  }
  PutVarint(writer, plan.ranks.size());
  for (const RankPlan& rank : plan.ranks) {
    writer.F64(rank.cost);
    PutVarint(writer, rank.microbatches.size());
    for (const MicrobatchPlan& microbatch : rank.microbatches) {
      PutVarint(writer, microbatch.rows.size());
      for (const Row& row : microbatch.rows) {
        const std::uint32_t number = row.empty() ? 0 : row_of[row.front()];
        if (!row.empty() && number < plan.rows.size() && plan.rows[number] == row) {
          PutVarint(writer, 2 * std::uint64_t{number} + 1);
        } else {
          PutVarint(writer, 2 * static_cast<std::uint64_t>(row.size()));
          PutRow(writer, row);
        }
      }
    }
  }
}

Status GetRanks(WireReader& reader, StepPlan& plan) {
  WS_ASSIGN_OR_RETURN(const std::uint64_t ranks, GetCount(reader, sizeof(double) + 1));
  // A row may be named once only, so that a short message cannot unfold into a huge plan.
  std::vector<bool> used(plan.rows.size(), false);
  for (std::uint64_t r = 0; r < ranks; ++r) {
    RankPlan rank;
    WS_ASSIGN_OR_RETURN(rank.cost, reader.F64());
    WS_ASSIGN_OR_RETURN(const std::uint64_t microbatches, GetCount(reader));
    if (r > 0 && microbatches != plan.ranks.front().microbatches.size()) {
      return reader.Corrupt("ranks differ in their number of microbatches");
    }
    for (std::uint64_t m = 0; m < microbatches; ++m) {
      MicrobatchPlan microbatch;
      WS_ASSIGN_OR_RETURN(const std::uint64_t rows, GetCount(reader));
      for (std::uint64_t i = 0; i < rows; ++i) {
        WS_ASSIGN_OR_RETURN(const std::uint64_t coded, GetVarint(reader));
        const std::uint64_t number = coded >> 1;
        if ((coded & 1) == 0) {
          WS_ASSIGN_OR_RETURN(Row row, GetRow(reader, number, plan.pieces.size()));
          microbatch.rows.push_back(std::move(row));
          continue;
        }
        if (number >= plan.rows.size() || used[number]) {
          return reader.Corrupt(
              StrCat("row ", number, " of ", plan.rows.size(), " does not exist or occurs twice"));
        }
        used[number] = true;
        microbatch.rows.push_back(plan.rows[number]);
      }
      rank.microbatches.push_back(std::move(microbatch));
    }
    plan.ranks.push_back(std::move(rank));
  }
  return Status::Ok();
}

}  // namespace

std::vector<std::uint64_t> TokensBySource(const StepPlan& plan, std::size_t sources) {
  std::vector<std::uint64_t> tokens(sources, 0);
  for (const Piece& piece : plan.pieces) tokens.at(piece.source) += piece.length;
  return tokens;
}

std::string Encode(const StepPlan& plan) {
  WireWriter writer;
  writer.Header(kPlanMagic, kPlanVersion);
  writer.U64(plan.step);
  writer.Bool(plan.skipped);
  writer.Bytes(plan.digest);
  writer.U64(plan.real_tokens);
  writer.U64(plan.supervised_tokens);
  PutPieces(writer, plan.pieces);
  PutVarint(writer, plan.rows.size());
  for (const Row& row : plan.rows) {
    PutVarint(writer, row.size());
    PutRow(writer, row);
  }
  PutRanks(writer, plan);
  return writer.Take();
}

Result<StepPlan> DecodeStepPlan(std::string_view bytes) {
  WireReader reader(bytes, "step plan");
  StepPlan plan;
  WS_RETURN_IF_ERROR(reader.Header(kPlanMagic, kPlanVersion, kPlanVersion).status());
  WS_ASSIGN_OR_RETURN(plan.step, reader.U64());
  WS_ASSIGN_OR_RETURN(plan.skipped, reader.Bool());
  WS_ASSIGN_OR_RETURN(const std::string_view digest, reader.Bytes(kDigestDigits));
  plan.digest = digest;
  WS_RETURN_IF_ERROR(Hash128::FromHex(digest).status());
  WS_ASSIGN_OR_RETURN(plan.real_tokens, reader.U64());
  WS_ASSIGN_OR_RETURN(plan.supervised_tokens, reader.U64());
  WS_ASSIGN_OR_RETURN(plan.pieces, GetPieces(reader));
  std::uint64_t real = 0;
  std::uint64_t supervised = 0;
  for (const Piece& piece : plan.pieces) {
    real += piece.length;
    supervised += piece.length - (piece.last ? 1 : 0);
  }
  if (real != plan.real_tokens || supervised != plan.supervised_tokens) {
    return reader.Corrupt(StrCat("the pieces hold ", real, " tokens and ", supervised,
                                 " targets, the plan says ", plan.real_tokens, " and ",
                                 plan.supervised_tokens));
  }
  WS_ASSIGN_OR_RETURN(const std::uint64_t rows, GetCount(reader));
  for (std::uint64_t r = 0; r < rows; ++r) {
    WS_ASSIGN_OR_RETURN(const std::uint64_t size, GetVarint(reader));
    WS_ASSIGN_OR_RETURN(Row row, GetRow(reader, size, plan.pieces.size()));
    plan.rows.push_back(std::move(row));
  }
  WS_RETURN_IF_ERROR(GetRanks(reader, plan));
  WS_RETURN_IF_ERROR(reader.Finish());
  return plan;
}

}  // namespace widestream
