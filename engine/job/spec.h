// The resolved job: what every role of the engine is configured by. Plain values; sizes in bytes,
// durations in seconds, paths absolute. Python resolves the YAML job file to the JSON form that
// ParseJob reads (docs/formats/job.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace widestream {

struct ShuffleSpec {
  enum class Mode : std::uint8_t { kBlocks, kOff, kFull };
  Mode mode = Mode::kBlocks;
  std::uint64_t records = 1000;    // a block closes on reaching this many records
  std::uint64_t bytes = 1U << 20;  // or this many raw bytes
};

enum class ExhaustedPolicy : std::uint8_t { kRenormalise, kStop, kError };

struct SourceSpec {
  std::string name;                // unique; [A-Za-z0-9_.-]{1,128}
  std::vector<std::string> paths;  // files, folders or globs
  std::string format;              // "parquet", "jsonl" or "" (from the file names)
  std::string text = "text";       // the column or key that holds the text
  std::optional<std::uint32_t> max_epochs;
  ExhaustedPolicy on_exhausted = ExhaustedPolicy::kRenormalise;
  ShuffleSpec shuffle;
};

struct TokenizerSpec {
  std::string file;
  std::string pattern;              // "" = the file says it
  std::vector<std::string> append;  // special tokens after each text, by name
};

enum class MixtureUnit : std::uint8_t { kTokens, kSamples };

struct StageSpec {
  std::optional<std::uint64_t>
      until;                    // on the clock of units drawn; only the last stage may omit it
  std::vector<double> weights;  // one per source, in the order of JobSpec::sources; 0 = not drawn
  std::uint64_t ramp =
      0;  // units over which the weights move from the previous stage's, 0 = at once
};

struct MixtureSpec {
  MixtureUnit unit = MixtureUnit::kTokens;
  std::vector<StageSpec> stages;
};

enum class BatchLayout : std::uint8_t { kRows, kThd, kPadded };
enum class OverflowPolicy : std::uint8_t { kSplit, kTruncate, kDrop, kError };
enum class LastStepPolicy : std::uint8_t { kFill, kDrop };

struct BatchSpec {
  BatchLayout layout = BatchLayout::kRows;
  std::uint32_t sequence_length = 0;    // S
  std::uint32_t rows = 0;               // R (rows) or B (padded) per step over all ranks; 0 for thd
  std::uint64_t tokens = 0;             // thd: real tokens per step; 0 otherwise
  std::uint32_t max_piece_tokens = 0;   // thd; 0 = sequence_length
  std::uint64_t microbatch_tokens = 0;  // padded cap per rank; 0 = one microbatch
  OverflowPolicy overflow = OverflowPolicy::kSplit;
  LastStepPolicy last_step = LastStepPolicy::kFill;
  bool cross_document_attention = false;
  // The rest is layout: it changes padding and shapes, never the stream (padding.h).
  std::uint32_t pad_documents_to = 0;   // thd: each piece fills a multiple of it; 0 = no wish
  std::uint32_t pad_microbatch_to = 0;  // thd: the tokens of each context rank are a multiple of it
  std::uint32_t microbatch_pieces = 0;  // thd: most pieces of a microbatch; 0 = no cap
  bool fixed_shapes = false;            // every microbatch of the job has the same shapes
};

enum class MeshAxis : std::uint8_t { kDp, kCp, kTp, kPp };

// How context ranks share a microbatch; docs/batch.md.
enum class ContextSplit : std::uint8_t { kZigzagDocument, kZigzagRow, kContiguous, kUlysses };

// The trainer's ranks. A rank's coordinates follow from `order`, outermost first.
struct MeshSpec {
  std::uint32_t dp = 1, cp = 1, tp = 1, pp = 1, vpp = 1;
  std::uint32_t ep = 1;            // expert ranks, inside dp * cp * tp of a stage
  std::uint32_t dp_replicate = 1;  // HSDP: dp is dp_replicate groups of dp / dp_replicate shards
  std::vector<MeshAxis> order = {MeshAxis::kPp, MeshAxis::kDp, MeshAxis::kCp, MeshAxis::kTp};
  bool sequence_parallel = false;             // tp ranks split the sequence between their layers
  std::optional<ContextSplit> cp_split = {};  // none: zigzag, by document in thd and else by row
  std::vector<std::string> every_stage = {};  // tensors that every pipeline stage gets
  std::vector<MeshAxis> broadcast_at = {};    // along these axes only the first rank fetches
};

struct ErrorSpec {
  bool skip_bad_records = true;            // false: the first bad record is an error
  std::uint64_t record_bytes = 32U << 20;  // longer records are bad
  double budget = 0.001;                   // an error once bad > 10 + budget * examined, per source
};

struct LimitSpec {
  std::uint64_t host_memory_bytes = 2ULL << 30;
  std::uint32_t threads = 0;  // 0 = one per core
  double read_deadline_seconds = 30.0;
};

// What a piece costs (engine/plan/cost_model.h); the default is a dense model of hidden size 4096.
struct CostSpec {
  std::uint32_t linear_tokens = 49'152;  // the length at which both parts cost the same
  std::uint32_t constant_tokens = 0;     // added to each piece's length in the linear part
  std::uint32_t window_tokens = 0;       // sliding-window attention; 0 without
  std::uint32_t window_layers = 0;       // layers that have it, of
  std::uint32_t layers = 1;

  friend bool operator==(const CostSpec&, const CostSpec&) = default;
};

struct JobSpec {
  std::string name;
  std::uint64_t seed = 0;
  std::string run_dir;                  // "" = no journal
  std::vector<std::string> data_roots;  // nothing outside these is opened
  std::optional<TokenizerSpec> tokenizer;
  std::vector<SourceSpec> sources;
  MixtureSpec mixture;
  BatchSpec batch;
  double validation_fraction = 0.0;  // share of records held out, by hash of their text
  std::uint32_t lookahead_steps = 4;
  std::string balance = "lpt";           // or "multifit", "karmarkar_karp", "none"
  std::uint32_t balance_group_size = 0;  // data-parallel ranks balanced together; 0 = all
  CostSpec cost;
  MeshSpec mesh;
  ErrorSpec errors;
  LimitSpec limits;
  // Set by the runtime, not part of the JSON: the stream of the held-out records, in which a source
  // may have none.
  bool held_out_stream = false;
};

// The versions of docs/stream.md that this engine implements.
inline constexpr std::uint32_t kOrderVersion = 1;
inline constexpr std::uint32_t kMembershipVersion = 1;

// Parses and validates. Unknown keys, wrong types, values out of range and contradictions are
// InvalidArgument; the message names the key by its path ("sources[2].shuffle.records"), what was
// found and what would fit.
Result<JobSpec> ParseJob(std::string_view json);
// The `mesh` of that JSON alone; validated without a batch.
Result<MeshSpec> ParseMesh(std::string_view json);
// The canonical JSON of a job: ParseJob(ToJson(job)) == job, equal jobs give equal bytes.
std::string ToJson(const JobSpec& job);
// The `mixture` of that JSON alone, as Decision::mixture_json takes it.
std::string MixtureToJson(const JobSpec& job);

// What may change the stream, one entry a key (docs/stream.md section 6), as (key, canonical
// value): used to name the key that differs on resume. `tokenizer_digest` is Tokenizer::Digest().
std::vector<std::pair<std::string, std::string>> StreamKeys(const JobSpec& job,
                                                            std::string_view tokenizer_digest);
// 32 hex digits over StreamKeys.
std::string StreamHash(const JobSpec& job, std::string_view tokenizer_digest);

}  // namespace widestream
