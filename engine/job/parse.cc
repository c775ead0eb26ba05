// ParseJob: JSON text to JobSpec. Member by member here; rules that join keys in validate.cc.
#include "engine/job/enum_names.h"
#include "engine/job/json_object.h"
#include "engine/job/mixture_reader.h"
#include "engine/job/spec.h"
#include "engine/job/validate.h"

namespace widestream {
namespace {

using job_internal::Describe;
using job_internal::JsonObject;
using nlohmann::json;

constexpr std::uint64_t kMaxBlock = 1ULL << 40;

void ReadTokenizer(const json& value, std::optional<TokenizerSpec>* tokenizer, Status* error) {
  if (value.is_null()) return;
  TokenizerSpec spec;
  JsonObject object(value, "tokenizer", {"file", "pattern", "append"}, error);
  object.Require("file", "write the path of a .tiktoken or tokenizer.json file");
  object.Read("file", &spec.file);
  object.Read("pattern", &spec.pattern);
  object.Read("append", &spec.append, 16);
  *tokenizer = std::move(spec);
}

void ReadSource(const json& value, const std::string& path, SourceSpec* source, Status* error) {
  JsonObject object(value, path,
                    {"name", "paths", "format", "text", "max_epochs", "on_exhausted", "shuffle"},
                    error);
  object.Require("name", "write a short name that is unique in the job");
  object.Read("name", &source->name, 128);
  object.Require("paths", "write an array of files, folders or globs");
  object.Read("paths", &source->paths, kMaxPathsPerSource);
  object.Read("format", &source->format);
  object.Read("text", &source->text, 1024);
  const json* max_epochs = object.Find("max_epochs");
  if (max_epochs != nullptr && !max_epochs->is_null()) {
    std::uint32_t epochs = 0;
    object.Read("max_epochs", &epochs, 1, 4'294'967'295U);
    source->max_epochs = epochs;
  }
  object.Read("on_exhausted", &source->on_exhausted, job_internal::ExhaustedNames());
  if (const json* shuffle = object.Find("shuffle")) {
    JsonObject inner(*shuffle, path + ".shuffle", {"mode", "records", "bytes"}, error);
    inner.Read("mode", &source->shuffle.mode, job_internal::ShuffleNames());
    inner.Read("records", &source->shuffle.records, std::uint64_t{1}, kMaxBlock);
    inner.Read("bytes", &source->shuffle.bytes, std::uint64_t{1}, kMaxBlock);
  }
}

void ReadSources(const json& value, std::vector<SourceSpec>* sources, Status* error) {
  if (!error->ok()) return;
  if (!value.is_array() || value.empty() || value.size() > kMaxSources) {
    *error = Status::InvalidArgument("sources: found " + Describe(value) +
                                     ", expected an array of 1 to " + std::to_string(kMaxSources) +
                                     " sources");
    return;
  }
  for (std::size_t i = 0; i < value.size() && error->ok(); ++i) {
    sources->emplace_back();
    ReadSource(value[i], "sources[" + std::to_string(i) + "]", &sources->back(), error);
  }
}

void ReadBatch(const json& value, BatchSpec* batch, Status* error) {
  JsonObject object(value, "batch",
                    {"layout", "sequence_length", "rows", "tokens", "max_piece_tokens",
                     "microbatch_tokens", "overflow", "last_step", "cross_document_attention",
                     "pad_documents_to", "pad_microbatch_to", "microbatch_pieces", "fixed_shapes"},
                    error);
  constexpr std::uint32_t kMaxLength = 1U << 24;
  object.Read("layout", &batch->layout, job_internal::LayoutNames());
  object.Require("sequence_length", "write the tokens of a row, e.g. 1024");
  object.Read("sequence_length", &batch->sequence_length, 1, kMaxLength);
  object.Read("rows", &batch->rows, 0, 1U << 24);
  object.Read("tokens", &batch->tokens, std::uint64_t{0}, kMaxStepTokens);
  object.Read("max_piece_tokens", &batch->max_piece_tokens, 0, kMaxLength);
  object.Read("microbatch_tokens", &batch->microbatch_tokens, std::uint64_t{0}, kMaxStepTokens);
  object.Read("overflow", &batch->overflow, job_internal::OverflowNames());
  object.Read("last_step", &batch->last_step, job_internal::LastStepNames());
  object.Read("cross_document_attention", &batch->cross_document_attention);
  object.Read("pad_documents_to", &batch->pad_documents_to, 0, kMaxPadding);
  object.Read("pad_microbatch_to", &batch->pad_microbatch_to, 0, kMaxPadding);
  object.Read("microbatch_pieces", &batch->microbatch_pieces, 0, 1U << 24);
  object.Read("fixed_shapes", &batch->fixed_shapes);
}

void ReadCost(const json& value, CostSpec* cost, Status* error) {
  JsonObject object(
      value, "cost",
      {"linear_tokens", "constant_tokens", "window_tokens", "window_layers", "layers"}, error);
  constexpr std::uint32_t kMaxLayers = 1U << 16;
  object.Read("linear_tokens", &cost->linear_tokens, 0, kMaxLinearTokens);
  object.Read("constant_tokens", &cost->constant_tokens, 0, kMaxConstantTokens);
  object.Read("window_tokens", &cost->window_tokens, 0, 1U << 24);
  object.Read("layers", &cost->layers, 1, kMaxLayers);
  object.Read("window_layers", &cost->window_layers, 0, kMaxLayers);
}

void ReadAxes(const JsonObject& object, const char* key, std::vector<MeshAxis>* axes,
              Status* error) {
  const json* found = object.Find(key);
  if (found == nullptr) return;
  axes->clear();
  const auto wrong = [&](const json& value) {
    *error = Status::InvalidArgument(object.Path(key) + ": found " + Describe(value) +
                                     ", expected an array of \"dp\", \"cp\", \"tp\", \"pp\"");
  };
  if (!found->is_array() || found->size() > 4) return wrong(*found);
  for (const json& item : *found) {
    const std::size_t before = axes->size();
    for (const auto& [name, axis] : job_internal::AxisNames()) {
      if (item == name) axes->push_back(axis);
    }
    if (axes->size() == before) return wrong(item);
  }
}

void ReadMesh(const json& value, MeshSpec* mesh, Status* error) {
  JsonObject object(value, "mesh",
                    {"dp", "cp", "tp", "pp", "vpp", "ep", "dp_replicate", "order",
                     "sequence_parallel", "cp_split", "every_stage", "broadcast_at"},
                    error);
  constexpr std::uint32_t kMaxDimension = 65'536;
  object.Read("dp", &mesh->dp, 1, kMaxDimension);
  object.Read("cp", &mesh->cp, 1, kMaxDimension);
  object.Read("tp", &mesh->tp, 1, kMaxDimension);
  object.Read("pp", &mesh->pp, 1, kMaxDimension);
  object.Read("vpp", &mesh->vpp, 1, kMaxDimension);
  object.Read("ep", &mesh->ep, 1, kMaxDimension);
  object.Read("dp_replicate", &mesh->dp_replicate, 1, kMaxDimension);
  ReadAxes(object, "order", &mesh->order, error);
  object.Read("sequence_parallel", &mesh->sequence_parallel);
  const json* split = object.Find("cp_split");
  if (split != nullptr && !split->is_null()) {
    ContextSplit value_found = ContextSplit::kZigzagDocument;
    object.Read("cp_split", &value_found, job_internal::SplitNames());
    mesh->cp_split = value_found;
  }
  object.Read("every_stage", &mesh->every_stage, 8);
  ReadAxes(object, "broadcast_at", &mesh->broadcast_at, error);
}

void ReadErrors(const json& value, ErrorSpec* errors, Status* error) {
  JsonObject object(value, "errors", {"skip_bad_records", "record_bytes", "budget"}, error);
  object.Read("skip_bad_records", &errors->skip_bad_records);
  object.Read("record_bytes", &errors->record_bytes, std::uint64_t{1}, std::uint64_t{1} << 30);
  object.Read("budget", &errors->budget, 0.0, 1.0);
}

void ReadLimits(const json& value, LimitSpec* limits, Status* error) {
  JsonObject object(value, "limits", {"host_memory_bytes", "threads", "read_deadline_seconds"},
                    error);
  object.Read("host_memory_bytes", &limits->host_memory_bytes, std::uint64_t{16} << 20,
              std::uint64_t{1} << 50);
  object.Read("threads", &limits->threads, 0, 1024);
  object.Read("read_deadline_seconds", &limits->read_deadline_seconds, 0.001, 86'400.0);
}

}  // namespace

Result<MeshSpec> ParseMesh(std::string_view text) {
  WS_ASSIGN_OR_RETURN(const json value, job_internal::ParseStrict(text));
  Status error;
  MeshSpec mesh;
  ReadMesh(value, &mesh, &error);
  WS_RETURN_IF_ERROR(error);
  WS_RETURN_IF_ERROR(ValidateMesh(mesh));
  return mesh;
}

Result<JobSpec> ParseJob(std::string_view text) {
  WS_ASSIGN_OR_RETURN(const json value, job_internal::ParseStrict(text));
  Status error;
  JobSpec job;
  JsonObject root(value, "",
                  {"name", "seed", "run_dir", "data_roots", "tokenizer", "sources", "mixture",
                   "batch", "validation_fraction", "lookahead_steps", "balance",
                   "balance_group_size", "cost", "mesh", "errors", "limits"},
                  &error);
  root.Read("name", &job.name, 128);
  root.Read("seed", &job.seed, std::uint64_t{0}, ~std::uint64_t{0});
  root.Read("run_dir", &job.run_dir);
  root.Read("data_roots", &job.data_roots, 1000);
  if (const json* found = root.Find("tokenizer")) ReadTokenizer(*found, &job.tokenizer, &error);
  if (const json* found = root.Require("sources", "write an array of sources")) {
    ReadSources(*found, &job.sources, &error);
    // First of the rules, since the mixture goes by the names.
    if (error.ok()) error = ValidateSources(job.sources);
  }
  if (const json* found = root.Find("mixture")) {
    job_internal::ReadMixture(*found, job.sources, &job.mixture, &error);
  } else {
    job.mixture.stages.push_back({.until = {}, .weights = std::vector(job.sources.size(), 1.0)});
  }
  if (const json* found =
          root.Require("batch", "write {\"sequence_length\": 1024, \"rows\": 64}")) {
    ReadBatch(*found, &job.batch, &error);
  }
  root.Read("validation_fraction", &job.validation_fraction, 0.0, 1.0);
  root.Read("lookahead_steps", &job.lookahead_steps, 1, 1024);
  root.Read("balance", &job.balance);
  root.Read("balance_group_size", &job.balance_group_size, 0, 1U << 22);
  if (const json* found = root.Find("cost")) ReadCost(*found, &job.cost, &error);
  if (const json* found = root.Find("mesh")) ReadMesh(*found, &job.mesh, &error);
  if (const json* found = root.Find("errors")) ReadErrors(*found, &job.errors, &error);
  if (const json* found = root.Find("limits")) ReadLimits(*found, &job.limits, &error);
  WS_RETURN_IF_ERROR(error);
  WS_RETURN_IF_ERROR(ValidateJob(job));
  return job;
}

}  // namespace widestream
