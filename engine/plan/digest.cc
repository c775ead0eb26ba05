#include "engine/plan/digest.h"

#include "engine/base/hash.h"

namespace widestream {

std::string StepDigest(const StepPlan& plan, std::span<const std::uint64_t> source_ids) {
  Xxh3Digest digest;
  digest.UpdateU64(plan.pieces.size());
  for (const Piece& piece : plan.pieces) {
    digest.UpdateU64(source_ids[piece.source]);
    digest.UpdateU64(piece.epoch);
    digest.UpdateU64(piece.position);
    digest.UpdateU64(piece.start);
    digest.UpdateU64(piece.length);
    digest.UpdateU64(piece.ids_hash);
  }
  digest.UpdateU64(plan.rows.size());
  for (const auto& row : plan.rows) {
    digest.UpdateU64(row.size());
    for (const std::uint32_t piece : row) digest.UpdateU64(piece);
  }
  return digest.Digest128().ToHex();
}

}  // namespace widestream
