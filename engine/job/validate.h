// The rules that join several keys of a job, on the plain structs: for ParseJob, and for C++
// callers that fill a JobSpec themselves.
#pragma once

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream {

// Upper limits of a job, so that no value can make the engine allocate without bound.
inline constexpr std::size_t kMaxSources = 10'000;
inline constexpr std::size_t kMaxStages = 1'000;
// sources x stages: the weights of all stages are kept in memory.
inline constexpr std::size_t kMaxStageWeights = 1'000'000;
inline constexpr std::size_t kMaxPathsPerSource = 100'000;
inline constexpr std::uint64_t kMaxClock = 1'000'000'000'000'000'000;  // tokens or samples
// Keep the cost of a step (kMaxStepTokens in all) below 2^62.
inline constexpr std::uint32_t kMaxLinearTokens = 1U << 22;
inline constexpr std::uint32_t kMaxConstantTokens = 255;
inline constexpr std::uint64_t kMaxStepTokens = 2'147'483'647;  // cu_seqlens are int32
// tokens, labels and position_ids of 8 bytes, segment_ids of 4, loss_mask of 1.
inline constexpr std::uint64_t kSlabBytesPerToken = 29;
inline constexpr std::uint32_t kMaxPadding = 1U << 20;  // of the pad_*_to keys

// InvalidArgument naming the key, or OK.
Status ValidateJob(const JobSpec& job);
Status ValidateSources(const std::vector<SourceSpec>& sources);
// The rules of a mesh alone, without a batch.
Status ValidateMesh(const MeshSpec& mesh);
// `balance`, `balance_group_size` and `cost`, with the mesh.
Status ValidateBalance(const JobSpec& job);
Status ValidateMixture(const MixtureSpec& mixture, const std::vector<SourceSpec>& sources);

}  // namespace widestream
