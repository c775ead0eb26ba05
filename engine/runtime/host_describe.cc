// What a Host says of itself: JSON for reports, the watchdog and clients in other processes.
#include <nlohmann/json.hpp>

#include "engine/runtime/host.h"

namespace widestream {

std::string Host::StatusJson() {
  const HostStatus now = status();
  return nlohmann::json{{"doing", now.doing},
                        {"doing_seconds", now.doing_seconds},
                        {"planned_steps", now.planned_steps},
                        {"delivered_steps", now.delivered_steps},
                        {"ready_batches", now.ready_batches},
                        {"leased_batches", now.leased_batches},
                        {"left_tokens", now.left_tokens}}
      .dump();
}

std::string Host::DescriptionJson() {
  nlohmann::json sources = nlohmann::json::array();
  for (const SourceInfo& info : source_info_) {
    sources.push_back({{"name", info.name},
                       {"format", info.format},
                       {"manifest", info.manifest_hash},
                       {"shards", info.shards},
                       {"records", nullptr}});
    if (info.records) sources.back()["records"] = *info.records;
  }
  return nlohmann::json{{"sources", std::move(sources)},
                        {"vocabulary_size", tokenizer_->VocabularySize()},
                        {"tokenizer_digest", tokenizer_->Digest()},
                        {"append", append_},
                        {"stream_hash", stream_hash_},
                        {"dp", job_.mesh.dp}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace widestream
