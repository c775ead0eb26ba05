// The JSON form of a mixture alone: part of the job, and the payload of a live mixture edit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream {

// Parses {"unit", "stages": [{"until", "weights": {source: number}, "ramp"}]} against the sources
// it names, as strictly as ParseJob does.
Result<MixtureSpec> ParseMixture(std::string_view json, const std::vector<SourceSpec>& sources);
// The canonical JSON; weights are written for every source, zeros too.
std::string MixtureToJson(const MixtureSpec& mixture, const std::vector<SourceSpec>& sources);

}  // namespace widestream
