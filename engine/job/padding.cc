#include "engine/job/padding.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "engine/base/format_text.h"

namespace widestream {
namespace {

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Saturates far above what ValidatePadding lets pass.
std::uint64_t Lcm(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kTooLarge = std::uint64_t{1} << 42;
  const std::uint64_t factor = b / std::gcd(a, b);
  return a >= kTooLarge / factor ? kTooLarge : a * factor;
}

// Tokens of one row, or of one microbatch in thd, that the context and sequence ranks split evenly.
std::uint64_t SplitMultiple(const MeshSpec& mesh, ContextSplit split) {
  const bool zigzag = split == ContextSplit::kZigzagDocument || split == ContextSplit::kZigzagRow;
  const std::uint64_t context = mesh.cp > 1 ? (zigzag ? std::uint64_t{2} * mesh.cp : mesh.cp) : 1;
  return context * (mesh.sequence_parallel ? mesh.tp : 1);
}

Status Bad(const char* key, const std::string& message) {
  return Status::InvalidArgument(StrCat(key, ": ", message));
}

Status ValidateThd(const BatchSpec& batch, const MeshSpec& mesh) {
  const PaddingRule padding = PaddingOf(batch, mesh);
  constexpr std::uint64_t kMaxMultiple = 1U << 24;
  if (padding.microbatch > kMaxMultiple) {
    return Bad("batch.pad_microbatch_to",
               StrCat("with cp, tp and pad_documents_to a microbatch is padded to a multiple of ",
                      padding.microbatch, " tokens, expected at most ", kMaxMultiple,
                      "; lower one of them"));
  }
  const std::uint64_t cap = batch.microbatch_tokens;
  const std::uint64_t piece = padding.Piece(LongestPiece(batch));
  if (batch.fixed_shapes && cap == 0) {
    return Bad("batch.fixed_shapes",
               "every microbatch is padded to microbatch_tokens, which is missing; write it");
  }
  if (batch.fixed_shapes && cap % padding.microbatch != 0) {
    return Bad("batch.microbatch_tokens",
               StrCat("found ", cap, ", but with fixed_shapes it must be a multiple of ",
                      padding.microbatch, " for this padding and mesh; write ",
                      std::max(padding.CapForPieces(cap), padding.Microbatch(piece))));
  }
  if (cap != 0 && padding.CapForPieces(cap) < piece) {
    return Bad("batch.microbatch_tokens",
               StrCat("found ", cap, ", but the longest piece takes ", padding.Microbatch(piece),
                      " tokens with padding; raise it to at least that, or lower "
                      "max_piece_tokens"));
  }
  return Status::Ok();
}

Status ValidateRows(const BatchSpec& batch, const MeshSpec& mesh) {
  const auto only_thd = [](const char* key, std::uint64_t found) {
    return Bad(key, StrCat("found ", found,
                           "; rows are sequence_length wide and are not padded further: remove it, "
                           "or use layout \"thd\""));
  };
  if (batch.pad_documents_to != 0)
    return only_thd("batch.pad_documents_to", batch.pad_documents_to);
  if (batch.pad_microbatch_to != 0)
    return only_thd("batch.pad_microbatch_to", batch.pad_microbatch_to);
  if (batch.microbatch_pieces != 0)
    return only_thd("batch.microbatch_pieces", batch.microbatch_pieces);
  const ContextSplit split = SplitOf(mesh, batch.layout);
  if (split == ContextSplit::kZigzagDocument && mesh.cp > 1) {
    return Bad("mesh.cp_split",
               "found \"zigzag_document\", but the pieces of a row are not padded to multiples of "
               "2 * cp; write \"zigzag_row\", or use layout \"thd\"");
  }
  const std::uint64_t multiple = SplitMultiple(mesh, split);
  if (batch.sequence_length % multiple != 0) {
    const bool context = mesh.cp > 1;
    return Bad(context ? "mesh.cp" : "mesh.tp",
               StrCat("found ", context ? mesh.cp : mesh.tp, ", but sequence_length ",
                      batch.sequence_length, " is no multiple of ", multiple, " (",
                      context ? (split == ContextSplit::kZigzagRow ? "2 * cp" : "cp") : "tp",
                      context && mesh.sequence_parallel ? " * tp" : "",
                      "): the ranks take equal slices of a row; change one of them"));
  }
  return Status::Ok();
}

}  // namespace

ContextSplit SplitOf(const MeshSpec& mesh, BatchLayout layout) {
  return mesh.cp_split.value_or(layout == BatchLayout::kThd ? ContextSplit::kZigzagDocument
                                                            : ContextSplit::kZigzagRow);
}

std::uint64_t PaddingRule::Piece(std::uint64_t length) const {
  return document == 1 ? length : RoundUp(length, document);
}

std::uint64_t PaddingRule::Microbatch(std::uint64_t tokens) const {
  return RoundUp(std::max<std::uint64_t>(tokens, 1), microbatch);
}

PaddingRule PaddingOf(const BatchSpec& batch, const MeshSpec& mesh) {
  PaddingRule rule;
  if (batch.layout != BatchLayout::kThd) return rule;
  const ContextSplit split = SplitOf(mesh, batch.layout);
  const std::uint64_t whole = SplitMultiple(mesh, split);
  if (split == ContextSplit::kZigzagDocument) rule.document = whole;
  if (batch.pad_documents_to != 0) rule.document = Lcm(rule.document, batch.pad_documents_to);
  rule.microbatch = Lcm(rule.document, whole);
  if (batch.pad_microbatch_to != 0) {
    rule.microbatch = Lcm(rule.microbatch, std::uint64_t{batch.pad_microbatch_to} * mesh.cp);
  }
  return rule;
}

std::uint64_t LongestPiece(const BatchSpec& batch) {
  const bool thd = batch.layout == BatchLayout::kThd;
  return thd && batch.max_piece_tokens != 0 ? batch.max_piece_tokens : batch.sequence_length;
}

FixedShape FixedShapeOf(const BatchSpec& batch, const MeshSpec& mesh) {
  FixedShape shape;
  shape.max_seqlen = batch.sequence_length;
  if (batch.layout != BatchLayout::kThd) return shape;
  const PaddingRule padding = PaddingOf(batch, mesh);
  shape.tokens = batch.microbatch_tokens;
  shape.max_seqlen = padding.Piece(LongestPiece(batch));
  // Every segment takes at least the multiple; the filler is cut at max_seqlen.
  shape.segments = shape.tokens / padding.document;
  if (batch.microbatch_pieces != 0) {
    const std::uint64_t filler = (shape.tokens + shape.max_seqlen - 1) / shape.max_seqlen;
    shape.segments = std::min(shape.segments, batch.microbatch_pieces + filler);
  }
  return shape;
}

std::uint64_t MicrobatchMultiple(const MeshSpec& mesh) {
  return mesh.vpp > 1 ? std::lcm<std::uint64_t>(mesh.vpp, mesh.pp) : 1;
}

Status ValidatePadding(const BatchSpec& batch, const MeshSpec& mesh) {
  return batch.layout == BatchLayout::kThd ? ValidateThd(batch, mesh) : ValidateRows(batch, mesh);
}

}  // namespace widestream
