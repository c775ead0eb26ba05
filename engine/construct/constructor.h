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
#include "engine/plan/plan.h"
#include "engine/source/sample.h"

namespace widestream {

// The ids of a record, by (source, epoch, position).
using IdsProvider = std::function<Result<Ids>(std::uint32_t, std::uint32_t, std::uint64_t)>;

// How messages name the record of a piece: "source 'code', data/a.jsonl, record 7".
using PieceNamer = std::function<std::string(const Piece&)>;

// Shapes and places of the tensors of a data-parallel rank: the bucket of all its places; needs no
// payload. Pure.
Result<BatchView> LayOut(const BatchSpec& batch, std::shared_ptr<const StepPlan> plan,
                         std::uint32_t rank, const MeshSpec& mesh = MeshSpec());

// What the bucket of a step takes, to be reserved before it is planned: an upper bound for rows and
// padded; for thd a bound unless very short pieces need much padding or very many microbatches.
std::uint64_t ReservedBytes(const BatchSpec& batch, const MeshSpec& mesh);

// Fills `memory` (view.size_bytes, 64-byte aligned). Every byte of every tensor is written.
// DataCorruption if a record's ids are not those that were planned: its text or the tokenizer
// changed.
Status Construct(const BatchSpec& batch, const BatchView& view, const IdsProvider& ids,
                 const PieceNamer& name, std::span<std::byte> memory);

}  // namespace widestream
