// The names of the job's alternatives in JSON. Private to engine/job.
#pragma once

#include <utility>
#include <vector>

#include "engine/job/spec.h"

namespace widestream::job_internal {

template <typename Enum>
using Names = std::vector<std::pair<const char*, Enum>>;

inline const Names<ShuffleSpec::Mode>& ShuffleNames() {
  static const Names<ShuffleSpec::Mode> names = {{"blocks", ShuffleSpec::Mode::kBlocks},
                                                 {"off", ShuffleSpec::Mode::kOff},
                                                 {"full", ShuffleSpec::Mode::kFull}};
  return names;
}
inline const Names<ExhaustedPolicy>& ExhaustedNames() {
  static const Names<ExhaustedPolicy> names = {{"renormalise", ExhaustedPolicy::kRenormalise},
                                               {"stop", ExhaustedPolicy::kStop},
                                               {"error", ExhaustedPolicy::kError}};
  return names;
}
inline const Names<MixtureUnit>& UnitNames() {
  static const Names<MixtureUnit> names = {{"tokens", MixtureUnit::kTokens},
                                           {"samples", MixtureUnit::kSamples}};
  return names;
}
inline const Names<BatchLayout>& LayoutNames() {
  static const Names<BatchLayout> names = {
      {"rows", BatchLayout::kRows}, {"thd", BatchLayout::kThd}, {"padded", BatchLayout::kPadded}};
  return names;
}
inline const Names<OverflowPolicy>& OverflowNames() {
  static const Names<OverflowPolicy> names = {{"split", OverflowPolicy::kSplit},
                                              {"truncate", OverflowPolicy::kTruncate},
                                              {"drop", OverflowPolicy::kDrop},
                                              {"error", OverflowPolicy::kError}};
  return names;
}
inline const Names<LastStepPolicy>& LastStepNames() {
  static const Names<LastStepPolicy> names = {{"fill", LastStepPolicy::kFill},
                                              {"drop", LastStepPolicy::kDrop}};
  return names;
}
inline const Names<MeshAxis>& AxisNames() {
  static const Names<MeshAxis> names = {
      {"dp", MeshAxis::kDp}, {"cp", MeshAxis::kCp}, {"tp", MeshAxis::kTp}, {"pp", MeshAxis::kPp}};
  return names;
}
inline const Names<ContextSplit>& SplitNames() {
  static const Names<ContextSplit> names = {{"zigzag_document", ContextSplit::kZigzagDocument},
                                            {"zigzag_row", ContextSplit::kZigzagRow},
                                            {"contiguous", ContextSplit::kContiguous},
                                            {"ulysses", ContextSplit::kUlysses}};
  return names;
}

template <typename Enum>
const char* NameOf(const Names<Enum>& names, Enum value) {
  for (const auto& [name, alternative] : names) {
    if (alternative == value) return name;
  }
  return "";  // not reached: every alternative is in its table
}

}  // namespace widestream::job_internal
