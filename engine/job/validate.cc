#include "engine/job/validate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

#include "engine/job/enum_names.h"
#include "engine/job/json_object.h"
#include "engine/job/padding.h"

namespace widestream {
namespace {

using job_internal::Quote;

Status Bad(const std::string& path, const std::string& message) {
  return Status::InvalidArgument(path + ": " + message);
}

std::string Item(const char* list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

bool IsName(const std::string& name) {
  if (name.empty() || name.size() > 128) return false;
  for (const char c : name) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
    if (!fits) return false;
  }
  return true;
}

Status CheckPath(const std::string& path, const std::string& key) {
  if (path.find("://") != std::string::npos) {
    return Bad(key, "found the address " + Quote(path) +
                        "; this version reads local files only: copy the data and give its folder");
  }
  if (path.empty() || path[0] != '/') {
    return Bad(key, "found " + Quote(path) + ", expected an absolute path (it begins with \"/\")");
  }
  return {};
}

Status ValidateSource(const SourceSpec& source, const std::string& path) {
  if (!IsName(source.name)) {
    return Bad(
        path + ".name",
        "found " + Quote(source.name) +
            ", expected 1 to 128 letters, digits, \"_\", \".\" or \"-\"; write e.g. \"novels\"");
  }
  if (source.paths.empty()) {
    return Bad(path + ".paths", "source " + Quote(source.name) +
                                    " has no path; write at least one file, folder or glob");
  }
  if (source.paths.size() > kMaxPathsPerSource) {
    return Bad(path + ".paths", "found " + std::to_string(source.paths.size()) +
                                    " paths, expected at most " +
                                    std::to_string(kMaxPathsPerSource) + "; use a glob");
  }
  for (std::size_t i = 0; i < source.paths.size(); ++i) {
    WS_RETURN_IF_ERROR(CheckPath(source.paths[i], path + "." + Item("paths", i)));
  }
  static const std::vector<std::string> formats = {"",         "parquet", "jsonl",
                                                   "megatron", "text",    "webdataset"};
  if (std::find(formats.begin(), formats.end(), source.format) == formats.end()) {
    return Bad(path + ".format", "found " + Quote(source.format) +
                                     ", expected \"parquet\", \"jsonl\", \"megatron\", \"text\", "
                                     "\"webdataset\" or \"\" (from the names)");
  }
  if (source.text.empty()) {
    return Bad(path + ".text", "is empty; name the column or key that holds the text");
  }
  if (source.max_epochs && *source.max_epochs == 0) {
    return Bad(
        path + ".max_epochs",
        "found 0, expected at least 1; leave it out for no limit, or give the source weight 0");
  }
  if (source.shuffle.mode == ShuffleSpec::Mode::kFull) {
    return Bad(path + ".shuffle.mode",
               "\"full\" needs a format with random access to single records: a Parquet row group "
               "is decoded as a whole and JSON Lines has no index; write \"blocks\" with larger "
               "\"records\" and \"bytes\"");
  }
  if (source.shuffle.records == 0 || source.shuffle.bytes == 0) {
    return Bad(path + ".shuffle",
               "a block of 0 records or 0 bytes; expected at least 1, or mode \"off\"");
  }
  return {};
}

Status ValidateBatch(const BatchSpec& batch, const LimitSpec& limits) {
  const std::uint64_t length = batch.sequence_length;
  if (length == 0) {
    return Bad("batch.sequence_length", "is 0 or missing; write e.g. 1024");
  }
  std::uint64_t step_tokens = 0;
  std::uint64_t atom_tokens = length;  // the smallest thing a microbatch must hold
  if (batch.layout == BatchLayout::kThd) {
    if (batch.tokens == 0) {
      return Bad("batch.tokens",
                 "is 0 or missing; layout \"thd\" needs the real tokens of a step, e.g. 65536");
    }
    if (batch.rows != 0) {
      return Bad("batch.rows", "found " + std::to_string(batch.rows) +
                                   "; layout \"thd\" has no rows: remove it, \"tokens\" says the "
                                   "size of a step");
    }
    if (batch.max_piece_tokens != 0) atom_tokens = batch.max_piece_tokens;
    if (batch.tokens < atom_tokens) {
      return Bad("batch.tokens", "found " + std::to_string(batch.tokens) +
                                     ", but one piece may hold " + std::to_string(atom_tokens) +
                                     " tokens; raise tokens or lower max_piece_tokens");
    }
    step_tokens = batch.tokens;
  } else {
    const char* layout = batch.layout == BatchLayout::kRows ? "rows" : "padded";
    if (batch.rows == 0) {
      return Bad("batch.rows", std::string("is 0 or missing; layout \"") + layout +
                                   "\" needs the rows of a step over all ranks, e.g. 64");
    }
    if (batch.tokens != 0) {
      return Bad("batch.tokens", "found " + std::to_string(batch.tokens) + "; layout \"" + layout +
                                     "\" is sized by \"rows\": remove tokens, or use layout "
                                     "\"thd\"");
    }
    if (batch.max_piece_tokens != 0) {
      return Bad("batch.max_piece_tokens",
                 "found " + std::to_string(batch.max_piece_tokens) + "; layout \"" + layout +
                     "\" cuts pieces at sequence_length: remove it, or use layout \"thd\"");
    }
    step_tokens = length * batch.rows;
  }
  if (step_tokens > kMaxStepTokens) {
    return Bad("batch", "a step of " + std::to_string(step_tokens) + " tokens, expected at most " +
                            std::to_string(kMaxStepTokens) +
                            "; lower rows, tokens or sequence_length");
  }
  if (batch.microbatch_tokens != 0 && batch.microbatch_tokens < atom_tokens) {
    return Bad("batch.microbatch_tokens",
               "found " + std::to_string(batch.microbatch_tokens) +
                   ", but a single row or piece holds " + std::to_string(atom_tokens) +
                   " tokens; raise it to at least that, or lower the length");
  }
  const std::uint64_t two_steps = 2 * kSlabBytesPerToken * step_tokens;
  if (two_steps > limits.host_memory_bytes) {
    return Bad("limits.host_memory_bytes", "found " + std::to_string(limits.host_memory_bytes) +
                                               ", but two steps of " + std::to_string(step_tokens) +
                                               " tokens take " + std::to_string(two_steps) +
                                               " bytes; raise it or make the step smaller");
  }
  return {};
}

Status CheckAxes(const std::vector<MeshAxis>& axes, const char* key) {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[i] == axes[j]) {
        return Bad(key, "\"" +
                            std::string(job_internal::NameOf(job_internal::AxisNames(), axes[i])) +
                            "\" is there twice; name each axis once");
      }
    }
  }
  return {};
}

Status ValidateLimits(const JobSpec& job) {
  constexpr std::uint64_t kMinMemory = 16ULL << 20;
  constexpr std::uint64_t kMaxMemory = 1ULL << 50;
  const LimitSpec& limits = job.limits;
  if (limits.host_memory_bytes < kMinMemory || limits.host_memory_bytes > kMaxMemory) {
    return Bad("limits.host_memory_bytes", "found " + std::to_string(limits.host_memory_bytes) +
                                               ", expected " + std::to_string(kMinMemory) + " to " +
                                               std::to_string(kMaxMemory));
  }
  if (limits.threads > 1024) {
    return Bad("limits.threads",
               "found " + std::to_string(limits.threads) + ", expected 0 (one per core) to 1024");
  }
  if (!(limits.read_deadline_seconds >= 0.001 && limits.read_deadline_seconds <= 86'400)) {
    return Bad("limits.read_deadline_seconds", "found " +
                                                   std::to_string(limits.read_deadline_seconds) +
                                                   ", expected 0.001 to 86400 seconds");
  }
  if (job.errors.record_bytes == 0 || job.errors.record_bytes > (1ULL << 30)) {
    return Bad("errors.record_bytes",
               "found " + std::to_string(job.errors.record_bytes) + ", expected 1 to 1073741824");
  }
  if (job.errors.record_bytes > limits.host_memory_bytes) {
    return Bad("errors.record_bytes", "found " + std::to_string(job.errors.record_bytes) +
                                          ", more than limits.host_memory_bytes " +
                                          std::to_string(limits.host_memory_bytes) +
                                          "; lower it or raise the limit");
  }
  if (!(job.errors.budget >= 0 && job.errors.budget <= 1)) {
    return Bad("errors.budget",
               "found " + std::to_string(job.errors.budget) + ", expected a share from 0 to 1");
  }
  return {};
}

}  // namespace

Status ValidateSources(const std::vector<SourceSpec>& sources) {
  if (sources.empty() || sources.size() > kMaxSources) {
    return Bad("sources", "found " + std::to_string(sources.size()) + ", expected 1 to " +
                              std::to_string(kMaxSources) + " sources");
  }
  std::unordered_map<std::string, std::size_t> names;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    WS_RETURN_IF_ERROR(ValidateSource(sources[i], Item("sources", i)));
    const auto [before, is_new] = names.emplace(sources[i].name, i);
    if (!is_new) {
      return Bad(Item("sources", i) + ".name", "found " + Quote(sources[i].name) + " again, as " +
                                                   Item("sources", before->second) +
                                                   "; give each source a name of its own");
    }
  }
  return {};
}

Status ValidateMixture(const MixtureSpec& mixture, const std::vector<SourceSpec>& sources) {
  const std::size_t count = mixture.stages.size();
  if (count == 0) {
    return Bad("mixture.stages", "is empty; write at least one stage with weights");
  }
  if (count > kMaxStages || count * sources.size() > kMaxStageWeights) {
    return Bad("mixture.stages", std::to_string(count) + " stages of " +
                                     std::to_string(sources.size()) +
                                     " sources, expected at most 1000 stages and 1000000 weights");
  }
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const StageSpec& stage = mixture.stages[i];
    const std::string path = "mixture." + Item("stages", i);
    if (stage.weights.size() != sources.size()) {
      return Bad(path + ".weights", "found " + std::to_string(stage.weights.size()) +
                                        " weights, expected one per source, " +
                                        std::to_string(sources.size()));
    }
    double sum = 0;
    for (std::size_t s = 0; s < stage.weights.size(); ++s) {
      const double weight = stage.weights[s];
      if (!std::isfinite(weight) || weight < 0 || weight > 1e15) {
        return Bad(path + ".weights." + sources[s].name,
                   "found " + std::to_string(weight) + ", expected a number from 0 to 1e15");
      }
      sum += weight;
    }
    if (!(sum > 0)) {
      return Bad(path + ".weights", "all are 0, nothing would be drawn; give a source a weight");
    }
    if (!stage.until && i + 1 < count) {
      return Bad(path + ".until",
                 "missing; only the last stage may go on for ever: say where this one ends");
    }
    if (stage.until && (*stage.until <= begin || *stage.until > kMaxClock)) {
      return Bad(path + ".until",
                 "found " + std::to_string(*stage.until) + ", expected more than " +
                     std::to_string(begin) + (i == 0 ? "" : ", where the stage before ends,") +
                     " and at most " + std::to_string(kMaxClock) + "; until counts from the start");
    }
    if (i == 0 && stage.ramp != 0) {
      return Bad(path + ".ramp", "found " + std::to_string(stage.ramp) +
                                     ", but the first stage has no weights before it to move "
                                     "from; remove it");
    }
    const std::uint64_t length = (stage.until ? *stage.until : kMaxClock) - begin;
    if (stage.ramp > length) {
      return Bad(path + ".ramp", "found " + std::to_string(stage.ramp) +
                                     ", longer than its stage of " + std::to_string(length) +
                                     "; shorten the ramp or move until");
    }
    if (stage.until) begin = *stage.until;
  }
  return {};
}

Status ValidateMesh(const MeshSpec& mesh) {
  std::uint64_t ranks = 1;
  for (const auto& [key, value] : {std::pair<const char*, std::uint32_t>{"mesh.dp", mesh.dp},
                                   {"mesh.cp", mesh.cp},
                                   {"mesh.tp", mesh.tp},
                                   {"mesh.pp", mesh.pp},
                                   {"mesh.vpp", mesh.vpp},
                                   {"mesh.ep", mesh.ep},
                                   {"mesh.dp_replicate", mesh.dp_replicate}}) {
    constexpr std::uint32_t kMaxDimension = 65'536;
    if (value == 0 || value > kMaxDimension) {
      return Bad(key, "found " + std::to_string(value) + ", expected 1 to " +
                          std::to_string(kMaxDimension));
    }
    const std::string_view name = std::string_view(key).substr(5);
    if (name == "dp" || name == "cp" || name == "tp" || name == "pp") ranks *= value;
    constexpr std::uint64_t kMaxRanks = 1U << 20;
    if (ranks > kMaxRanks) {
      return Bad("mesh", "dp * cp * tp * pp is more than " + std::to_string(kMaxRanks) +
                             " ranks; lower one of them");
    }
  }
  if (mesh.dp % mesh.dp_replicate != 0) {
    return Bad("mesh.dp_replicate", "found " + std::to_string(mesh.dp_replicate) +
                                        ", which does not divide dp " + std::to_string(mesh.dp) +
                                        "; dp is dp_replicate groups of equally many shards");
  }
  const std::uint64_t stage = std::uint64_t{mesh.dp} * mesh.cp * mesh.tp;
  if (stage % mesh.ep != 0) {
    return Bad("mesh.ep", "found " + std::to_string(mesh.ep) + ", which does not divide the " +
                              std::to_string(stage) +
                              " ranks of a stage (dp * cp * tp); choose a divisor");
  }
  WS_RETURN_IF_ERROR(CheckAxes(mesh.order, "mesh.order"));
  if (mesh.order.size() != 4) {
    return Bad("mesh.order", "found " + std::to_string(mesh.order.size()) +
                                 " axes, expected all of pp, dp, cp and tp, the outermost first");
  }
  WS_RETURN_IF_ERROR(CheckAxes(mesh.broadcast_at, "mesh.broadcast_at"));
  for (const MeshAxis axis : mesh.broadcast_at) {
    if (axis == MeshAxis::kDp) {
      return Bad("mesh.broadcast_at",
                 "found \"dp\", but data-parallel ranks have different data; name tp, cp or pp");
    }
  }
  static const std::vector<std::string> tensors = {"tokens", "labels", "loss_mask", "position_ids",
                                                   "segment_ids"};
  for (const std::string& name : mesh.every_stage) {
    if (std::find(tensors.begin(), tensors.end(), name) == tensors.end()) {
      return Bad("mesh.every_stage", "found " + Quote(name) + job_internal::Hint(name, tensors));
    }
  }
  return {};
}

Status ValidateBalance(const JobSpec& job) {
  constexpr std::string_view kMethods[] = {"lpt", "multifit", "karmarkar_karp", "none"};
  if (std::find(std::begin(kMethods), std::end(kMethods), job.balance) == std::end(kMethods)) {
    return Bad("balance", "found " + Quote(job.balance) +
                              ", expected \"lpt\", \"multifit\", \"karmarkar_karp\" or \"none\"");
  }
  const std::uint32_t group = job.balance_group_size;
  if (group != 0 && job.mesh.dp % group != 0) {
    return Bad("balance_group_size", "found " + std::to_string(group) +
                                         ", which does not divide dp " +
                                         std::to_string(job.mesh.dp) + "; choose a divisor");
  }
  const CostSpec& cost = job.cost;
  if (cost.linear_tokens > kMaxLinearTokens || cost.constant_tokens > kMaxConstantTokens) {
    return Bad("cost", "found linear_tokens " + std::to_string(cost.linear_tokens) +
                           " and constant_tokens " + std::to_string(cost.constant_tokens) +
                           ", expected at most " + std::to_string(kMaxLinearTokens) + " and " +
                           std::to_string(kMaxConstantTokens));
  }
  if (cost.layers == 0 || cost.window_layers > cost.layers) {
    return Bad("cost.window_layers", "found " + std::to_string(cost.window_layers) + " of layers " +
                                         std::to_string(cost.layers) +
                                         ", expected at most all of at least 1");
  }
  if ((cost.window_tokens == 0) != (cost.window_layers == 0)) {
    return Bad("cost.window_tokens", "found " + std::to_string(cost.window_tokens) + " beside " +
                                         std::to_string(cost.window_layers) +
                                         " window_layers; give both or neither");
  }
  return {};
}

Status ValidateJob(const JobSpec& job) {
  if (!job.name.empty() && !IsName(job.name)) {
    return Bad("name", "found " + Quote(job.name) +
                           ", expected up to 128 letters, digits, \"_\", \".\" or \"-\"");
  }
  if (!job.run_dir.empty()) WS_RETURN_IF_ERROR(CheckPath(job.run_dir, "run_dir"));
  if (job.data_roots.empty()) {
    return Bad("data_roots",
               "is empty; name the folders that hold the data: nothing outside them "
               "is opened");
  }
  for (std::size_t i = 0; i < job.data_roots.size(); ++i) {
    WS_RETURN_IF_ERROR(CheckPath(job.data_roots[i], Item("data_roots", i)));
  }
  if (!job.tokenizer) {
    return Bad("tokenizer",
               "missing, but every source of this version holds text; write "
               "{\"file\": \"/path/to/tokenizer.json\"}");
  }
  WS_RETURN_IF_ERROR(CheckPath(job.tokenizer->file, "tokenizer.file"));
  if (job.tokenizer->append.size() > 16) {
    return Bad("tokenizer.append", "found " + std::to_string(job.tokenizer->append.size()) +
                                       " special tokens, expected at most 16");
  }
  for (std::size_t i = 0; i < job.tokenizer->append.size(); ++i) {
    if (job.tokenizer->append[i].empty()) {
      return Bad("tokenizer." + Item("append", i), "is empty; name a special token or remove it");
    }
  }
  WS_RETURN_IF_ERROR(ValidateSources(job.sources));
  WS_RETURN_IF_ERROR(ValidateMixture(job.mixture, job.sources));
  WS_RETURN_IF_ERROR(ValidateLimits(job));
  WS_RETURN_IF_ERROR(ValidateBatch(job.batch, job.limits));
  WS_RETURN_IF_ERROR(ValidateMesh(job.mesh));
  WS_RETURN_IF_ERROR(ValidatePadding(job.batch, job.mesh));
  if (!(job.validation_fraction >= 0 && job.validation_fraction < 1)) {
    return Bad("validation_fraction", "found " + std::to_string(job.validation_fraction) +
                                          ", expected a share from 0 to below 1");
  }
  if (job.lookahead_steps == 0 || job.lookahead_steps > 1024) {
    return Bad("lookahead_steps",
               "found " + std::to_string(job.lookahead_steps) + ", expected 1 to 1024");
  }
  WS_RETURN_IF_ERROR(ValidateBalance(job));
  return {};
}

}  // namespace widestream
