// What may change the stream, and nothing else (docs/stream.md section 6).
#include <xxhash.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/job/enum_names.h"
#include "engine/job/json_object.h"
#include "engine/job/mixture_reader.h"
#include "engine/job/spec.h"

namespace widestream {
namespace {

using job_internal::DumpCanonical;
using job_internal::NameOf;
using job_internal::Quote;
using nlohmann::json;

}  // namespace

std::vector<std::pair<std::string, std::string>> StreamKeys(const JobSpec& job,
                                                            std::string_view tokenizer_digest) {
  std::vector<std::pair<std::string, std::string>> keys;
  const auto add = [&keys](std::string key, std::string value) {
    keys.emplace_back(std::move(key), std::move(value));
  };
  add("order_version", std::to_string(kOrderVersion));
  add("membership_version", std::to_string(kMembershipVersion));
  add("seed", std::to_string(job.seed));
  add("tokenizer.digest", Quote(job.tokenizer ? tokenizer_digest : ""));
  add("tokenizer.append",
      DumpCanonical(json(job.tokenizer ? job.tokenizer->append : std::vector<std::string>())));
  add("validation_fraction", DumpCanonical(job.validation_fraction));
  add("errors.skip_bad_records", job.errors.skip_bad_records ? "true" : "false");
  add("errors.record_bytes", std::to_string(job.errors.record_bytes));
  add("errors.budget", DumpCanonical(job.errors.budget));
  add("pack", "\"best_fit\"");

  const BatchSpec& batch = job.batch;
  const bool is_thd = batch.layout == BatchLayout::kThd;
  add("batch.layout", Quote(NameOf(job_internal::LayoutNames(), batch.layout)));
  // A thd stream knows only the longest piece, wherever it was written.
  const std::uint32_t piece =
      is_thd && batch.max_piece_tokens != 0 ? batch.max_piece_tokens : batch.sequence_length;
  add(is_thd ? "batch.max_piece_tokens" : "batch.sequence_length", std::to_string(piece));
  add(is_thd ? "batch.tokens" : "batch.rows",
      is_thd ? std::to_string(batch.tokens) : std::to_string(batch.rows));
  add("batch.overflow", Quote(NameOf(job_internal::OverflowNames(), batch.overflow)));
  add("batch.last_step", Quote(NameOf(job_internal::LastStepNames(), batch.last_step)));

  // The order of the sources counts: ties of the mixture are broken by it.
  json names = json::array();
  for (const SourceSpec& source : job.sources) names.push_back(source.name);
  add("sources", DumpCanonical(names));
  for (const SourceSpec& source : job.sources) {
    const std::string path = "sources." + source.name;
    add(path + ".text", Quote(source.text));
    add(path + ".max_epochs", source.max_epochs ? std::to_string(*source.max_epochs) : "null");
    add(path + ".on_exhausted", Quote(NameOf(job_internal::ExhaustedNames(), source.on_exhausted)));
    // Only a block shuffle has a block size.
    std::string shuffle = Quote(NameOf(job_internal::ShuffleNames(), source.shuffle.mode));
    if (source.shuffle.mode == ShuffleSpec::Mode::kBlocks) {
      shuffle =
          DumpCanonical({{"records", source.shuffle.records}, {"bytes", source.shuffle.bytes}});
    }
    add(path + ".shuffle", std::move(shuffle));
  }

  const json mixture = job_internal::MixtureTree(job.mixture, job.sources);
  add("mixture.unit", DumpCanonical(mixture["unit"]));
  for (std::size_t i = 0; i < job.mixture.stages.size(); ++i) {
    add("mixture.stages[" + std::to_string(i) + "]", DumpCanonical(mixture["stages"][i]));
  }
  return keys;
}

std::string StreamHash(const JobSpec& job, std::string_view tokenizer_digest) {
  std::string text;
  for (const auto& [key, value] : StreamKeys(job, tokenizer_digest)) {
    text += Quote(key);  // a JSON string ends where it ends: no two lists give the same text
    text += ':';
    text += value;
    text += '\n';
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(text.data(), text.size()));
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace widestream
