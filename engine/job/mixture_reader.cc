#include "engine/job/mixture_reader.h"

#include <unordered_map>

#include "engine/job/enum_names.h"
#include "engine/job/json_object.h"
#include "engine/job/validate.h"

namespace widestream::job_internal {
namespace {

using nlohmann::json;

void ReadWeights(const json& value, const std::string& path, const std::vector<SourceSpec>& sources,
                 const std::unordered_map<std::string, std::size_t>& index,
                 std::vector<double>* weights, Status* error) {
  if (!error->ok()) return;
  if (!value.is_object()) {
    *error = Status::InvalidArgument(path + ": found " + Describe(value) +
                                     ", expected an object {source name: number}");
    return;
  }
  weights->assign(sources.size(), 0.0);
  for (const auto& [name, weight] : value.items()) {
    const auto found = index.find(name);
    if (found == index.end()) {
      std::vector<std::string> names;
      names.reserve(sources.size());
      for (const SourceSpec& source : sources) names.push_back(source.name);
      *error = Status::InvalidArgument(path + ": unknown source " + Quote(name.substr(0, 128)) +
                                       Hint(name, names));
      return;
    }
    const double number = weight.is_number() ? weight.get<double>() : -1.0;
    if (!(number >= 0 && number <= 1e15)) {
      std::string message = path;
      message.append(".").append(name).append(": found ").append(Describe(weight));
      *error = Status::InvalidArgument(message + ", expected a number from 0 to 1e15");
      return;
    }
    (*weights)[found->second] = number == 0 ? 0.0 : number;
  }
}

}  // namespace

void ReadMixture(const json& value, const std::vector<SourceSpec>& sources, MixtureSpec* mixture,
                 Status* error) {
  JsonObject object(value, "mixture", {"unit", "stages"}, error);
  object.Read("unit", &mixture->unit, UnitNames());
  const json* stages = object.Require("stages", "write an array of {\"weights\": {...}}");
  if (stages == nullptr) return;
  if (!stages->is_array() || stages->empty() || stages->size() > kMaxStages ||
      stages->size() * sources.size() > kMaxStageWeights) {
    object.Fail("stages", "found " + Describe(*stages) +
                              ", expected an array of 1 to 1000 stages, with at most 1000000 "
                              "weights in all");
    return;
  }
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t s = 0; s < sources.size(); ++s) index.emplace(sources[s].name, s);
  for (std::size_t i = 0; i < stages->size() && error->ok(); ++i) {
    const std::string path = "mixture.stages[" + std::to_string(i) + "]";
    StageSpec stage;
    JsonObject inner((*stages)[i], path, {"until", "weights", "ramp"}, error);
    const json* until = inner.Find("until");
    if (until != nullptr && !until->is_null()) {
      std::uint64_t end = 0;
      inner.Read("until", &end, std::uint64_t{1}, kMaxClock);
      stage.until = end;
    }
    inner.Read("ramp", &stage.ramp, std::uint64_t{0}, kMaxClock);
    if (const json* weights = inner.Require("weights", "write {source name: number}")) {
      ReadWeights(*weights, path + ".weights", sources, index, &stage.weights, error);
    }
    mixture->stages.push_back(std::move(stage));
  }
}

json MixtureTree(const MixtureSpec& mixture, const std::vector<SourceSpec>& sources) {
  json stages = json::array();
  for (const StageSpec& stage : mixture.stages) {
    json weights = json::object();
    for (std::size_t s = 0; s < stage.weights.size() && s < sources.size(); ++s) {
      weights[sources[s].name] = stage.weights[s];
    }
    stages.push_back({{"until", stage.until ? json(*stage.until) : json()},
                      {"weights", std::move(weights)},
                      {"ramp", stage.ramp}});
  }
  return {{"unit", NameOf(UnitNames(), mixture.unit)}, {"stages", std::move(stages)}};
}

}  // namespace widestream::job_internal

namespace widestream {

std::string MixtureToJson(const JobSpec& job) {
  return job_internal::DumpCanonical(job_internal::MixtureTree(job.mixture, job.sources));
}

}  // namespace widestream
