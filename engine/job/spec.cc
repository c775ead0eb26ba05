// ToJson: the canonical JSON of a job.
#include "engine/job/spec.h"

#include <charconv>
#include <cmath>

#include "engine/job/enum_names.h"
#include "engine/job/json_object.h"
#include "engine/job/mixture_reader.h"

namespace widestream {
namespace job_internal {
namespace {

using nlohmann::json;

void Append(const json& value, std::string* out) {
  if (value.is_object()) {
    *out += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {  // std::map: sorted by bytes
      if (!first) *out += ',';
      first = false;
      *out += Quote(key);
      *out += ':';
      Append(member, out);
    }
    *out += '}';
  } else if (value.is_array()) {
    *out += '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i != 0) *out += ',';
      Append(value[i], out);
    }
    *out += ']';
  } else if (value.is_number_float() && std::isfinite(value.get<double>())) {
    // nlohmann's dump() round-trips too, but is not always the shortest.
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value.get<double>()).ptr;
    std::string text(buffer, end);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    *out += text;
  } else if (value.is_string()) {
    *out += Quote(value.get_ref<const std::string&>());
  } else {
    *out += value.dump();
  }
}

json SourceTree(const SourceSpec& source) {
  return {{"name", source.name},
          {"paths", source.paths},
          {"format", source.format},
          {"text", source.text},
          {"max_epochs", source.max_epochs ? json(*source.max_epochs) : json()},
          {"on_exhausted", NameOf(ExhaustedNames(), source.on_exhausted)},
          {"shuffle",
           {{"mode", NameOf(ShuffleNames(), source.shuffle.mode)},
            {"records", source.shuffle.records},
            {"bytes", source.shuffle.bytes}}}};
}

json AxesTree(const std::vector<MeshAxis>& axes) {
  json names = json::array();
  for (const MeshAxis axis : axes) names.push_back(NameOf(AxisNames(), axis));
  return names;
}

json MeshTree(const MeshSpec& mesh) {
  return {{"dp", mesh.dp},
          {"cp", mesh.cp},
          {"tp", mesh.tp},
          {"pp", mesh.pp},
          {"vpp", mesh.vpp},
          {"ep", mesh.ep},
          {"dp_replicate", mesh.dp_replicate},
          {"order", AxesTree(mesh.order)},
          {"sequence_parallel", mesh.sequence_parallel},
          {"cp_split", mesh.cp_split ? json(NameOf(SplitNames(), *mesh.cp_split)) : json()},
          {"every_stage", mesh.every_stage},
          {"broadcast_at", AxesTree(mesh.broadcast_at)}};
}

}  // namespace

std::string DumpCanonical(const json& value) {
  std::string out;
  Append(value, &out);
  return out;
}

}  // namespace job_internal

std::string ToJson(const JobSpec& job) {
  using job_internal::NameOf;
  using nlohmann::json;
  json tokenizer;
  if (job.tokenizer) {
    tokenizer = {{"file", job.tokenizer->file},
                 {"pattern", job.tokenizer->pattern},
                 {"append", job.tokenizer->append}};
  }
  json sources = json::array();
  for (const SourceSpec& source : job.sources) sources.push_back(job_internal::SourceTree(source));
  const json tree = {{"name", job.name},
                     {"seed", job.seed},
                     {"run_dir", job.run_dir},
                     {"data_roots", job.data_roots},
                     {"tokenizer", std::move(tokenizer)},
                     {"sources", std::move(sources)},
                     {"mixture", job_internal::MixtureTree(job.mixture, job.sources)},
                     {"batch",
                      {{"layout", NameOf(job_internal::LayoutNames(), job.batch.layout)},
                       {"sequence_length", job.batch.sequence_length},
                       {"rows", job.batch.rows},
                       {"tokens", job.batch.tokens},
                       {"max_piece_tokens", job.batch.max_piece_tokens},
                       {"microbatch_tokens", job.batch.microbatch_tokens},
                       {"overflow", NameOf(job_internal::OverflowNames(), job.batch.overflow)},
                       {"last_step", NameOf(job_internal::LastStepNames(), job.batch.last_step)},
                       {"cross_document_attention", job.batch.cross_document_attention},
                       {"pad_documents_to", job.batch.pad_documents_to},
                       {"pad_microbatch_to", job.batch.pad_microbatch_to},
                       {"microbatch_pieces", job.batch.microbatch_pieces},
                       {"fixed_shapes", job.batch.fixed_shapes}}},
                     {"validation_fraction", job.validation_fraction},
                     {"lookahead_steps", job.lookahead_steps},
                     {"balance", job.balance},
                     {"balance_group_size", job.balance_group_size},
                     {"cost",
                      {{"linear_tokens", job.cost.linear_tokens},
                       {"constant_tokens", job.cost.constant_tokens},
                       {"window_tokens", job.cost.window_tokens},
                       {"window_layers", job.cost.window_layers},
                       {"layers", job.cost.layers}}},
                     {"mesh", job_internal::MeshTree(job.mesh)},
                     {"errors",
                      {{"skip_bad_records", job.errors.skip_bad_records},
                       {"record_bytes", job.errors.record_bytes},
                       {"budget", job.errors.budget}}},
                     {"limits",
                      {{"host_memory_bytes", job.limits.host_memory_bytes},
                       {"threads", job.limits.threads},
                       {"read_deadline_seconds", job.limits.read_deadline_seconds}}}};
  return job_internal::DumpCanonical(tree);
}

}  // namespace widestream
