// The mixture as part of a JSON tree. Private to engine/job.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream::job_internal {

// Reads members only; ValidateMixture checks the rules between them.
void ReadMixture(const nlohmann::json& value, const std::vector<SourceSpec>& sources,
                 MixtureSpec* mixture, Status* error);
nlohmann::json MixtureTree(const MixtureSpec& mixture, const std::vector<SourceSpec>& sources);

// Sorted keys, no spaces, doubles in the shortest form that reads back to the same double.
std::string DumpCanonical(const nlohmann::json& value);

}  // namespace widestream::job_internal
