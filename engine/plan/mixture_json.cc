#include <string>
#include <unordered_map>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/plan/json_reader.h"
#include "engine/plan/mixture.h"

namespace widestream {
namespace {

using plan_json::JsonValue;
using plan_json::ParseJson;

constexpr std::size_t kMaxMixtureBytes = 16U << 20;

Result<std::vector<double>> ParseWeights(const JsonValue& value,
                                         std::span<const std::string> names) {
  std::vector<double> weights(names.size(), 0.0);
  if (value.raw().is_array()) {
    WS_ASSIGN_OR_RETURN(const auto items, value.Items());
    if (items.size() != names.size()) {
      return value.Wrong(StrCat("one weight for each of the ", names.size(), " sources"));
    }
    for (std::size_t s = 0; s < items.size(); ++s) {
      WS_ASSIGN_OR_RETURN(weights[s], items[s].Number());
    }
    return weights;
  }
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t s = 0; s < names.size(); ++s) index.emplace(names[s], s);
  WS_ASSIGN_OR_RETURN(const auto entries, value.Entries());
  for (const auto& [name, weight] : entries) {
    const auto found = index.find(name);
    if (found == index.end()) {
      return Status::InvalidArgument(
          StrCat(value.path(), ": the job has no source ", Quoted(name)));
    }
    WS_ASSIGN_OR_RETURN(weights[found->second], weight.Number());
  }
  return weights;
}

}  // namespace

Result<MixtureSpec> ParseMixture(std::string_view json, std::span<const std::string> names) {
  WS_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, "mixture", kMaxMixtureBytes));
  const JsonValue root(document, "mixture");
  WS_RETURN_IF_ERROR(root.OnlyKeys({"unit", "stages"}));
  MixtureSpec spec;
  if (root.Has("unit")) {
    WS_ASSIGN_OR_RETURN(const JsonValue unit, root.At("unit"));
    WS_ASSIGN_OR_RETURN(const std::string text, unit.Text());
    if (text != "tokens" && text != "samples") return unit.Wrong("\"tokens\" or \"samples\"");
    spec.unit = text == "tokens" ? MixtureUnit::kTokens : MixtureUnit::kSamples;
  }
  WS_ASSIGN_OR_RETURN(const JsonValue stages, root.At("stages"));
  WS_ASSIGN_OR_RETURN(const auto items, stages.Items());
  for (const JsonValue& item : items) {
    WS_RETURN_IF_ERROR(item.OnlyKeys({"until", "weights", "ramp"}));
    StageSpec stage;
    if (item.Has("until")) {
      WS_ASSIGN_OR_RETURN(const JsonValue until, item.At("until"));
      if (!until.IsNull()) {
        WS_ASSIGN_OR_RETURN(stage.until, until.Unsigned());
      }
    }
    if (item.Has("ramp")) {
      WS_ASSIGN_OR_RETURN(const JsonValue ramp, item.At("ramp"));
      WS_ASSIGN_OR_RETURN(stage.ramp, ramp.Unsigned());
    }
    WS_ASSIGN_OR_RETURN(const JsonValue weights, item.At("weights"));
    WS_ASSIGN_OR_RETURN(stage.weights, ParseWeights(weights, names));
    spec.stages.push_back(std::move(stage));
  }
  return spec;
}

}  // namespace widestream
