// DataConstructor: executes a plan for one rank. docs/stream.md sections 2 and 5; /docs/batch.md
// has the tensor contract.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/base/status.h"
#include "engine/construct/batch.h"
#include "engine/job/spec.h"
#include "engine/plan/place_tree.h"
#include "engine/plan/plan.h"
#include "engine/source/sample.h"

namespace widestream {

// The ids of a record, by (source, epoch, position).
using IdsProvider = std::function<Result<Ids>(std::uint32_t, std::uint32_t, std::uint64_t)>;

// How messages name the record of a piece: "source 'code', data/a.jsonl, record 7".
using PieceNamer = std::function<std::string(const Piece&)>;

// Shapes and offsets of the tensors of a data-parallel rank, for all its cp ranks; needs no
// payload. Pure.
Result<BatchView> LayOut(const BatchSpec& batch, const MeshSpec& mesh,
                         std::shared_ptr<const StepPlan> plan, std::uint32_t rank);

// What one place needs of its bucket, in the same memory: its cp slice, and the tensors of its
// pipeline stage. tp peers get the same. Pure.
BatchView SelectFor(const BatchView& bucket, const Place& place);

// Fills `memory` (view.size_bytes, 64-byte aligned). Every byte of every tensor is written.
// DataCorruption if a record's ids are not those that were planned: its text or the tokenizer
// changed.
Status Construct(const BatchSpec& batch, const MeshSpec& mesh, const BatchView& view,
                 const IdsProvider& ids, const PieceNamer& name, std::span<std::byte> memory);

}  // namespace widestream
