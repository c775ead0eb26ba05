// StateFromJson, step plans and messages on hostile bytes: no crash, no undefined behaviour, and
// what is accepted comes back as it was. The first byte says which.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/plan/plan.h"
#include "engine/plan/planner.h"
#include "engine/source/messages.h"

namespace {

const widestream::JobSpec& Job() {
  static const widestream::JobSpec job = [] {
    widestream::JobSpec made;
    for (const char* name : {"web", "code"}) {
      widestream::SourceSpec source;
      source.name = name;
      made.sources.push_back(source);
    }
    made.mixture.stages.push_back({.until = {}, .weights = {1, 1}});
    made.batch.sequence_length = 32;
    made.batch.rows = 4;
    return made;
  }();
  return job;
}

void Check(bool ok) {
  if (!ok) std::abort();
}

void State(std::string_view bytes) {
  static const auto planner = widestream::Planner::Make(Job());
  const auto read = widestream::StateFromJson(Job(), bytes);
  if (!read.ok()) return;
  const std::string json = widestream::StateToJson(Job(), *read);
  const auto again = widestream::StateFromJson(Job(), json);
  Check(again.ok() && again->state == read->state && again->stream_keys == read->stream_keys);
  // A state that is accepted may not match the data, but planning from it ends with an answer or an
  // error.
  widestream::Metadata metadata;
  metadata.sources.resize(2);
  const auto outcome = (*planner)->Plan(read->state, metadata, read->decisions);
  static_cast<void>(outcome.ok());
  static_cast<void>((*planner)->Weights(read->state, read->decisions));
}

template <typename Message>
void RoundTrip(widestream::Result<Message> message,
               widestream::Result<Message> (*decode)(std::string_view)) {
  if (!message.ok()) return;
  const auto again = decode(widestream::Encode(*message));
  // A cost that is no number is not equal to itself, so the bytes are compared.
  Check(again.ok() && widestream::Encode(*again) == widestream::Encode(*message));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      State(bytes);
      break;
    case 1:
      RoundTrip(widestream::DecodeStepPlan(bytes), widestream::DecodeStepPlan);
      break;
    case 2:
      RoundTrip(widestream::DecodeMetadataBatch(bytes), widestream::DecodeMetadataBatch);
      break;
    default:
      RoundTrip(widestream::DecodeReadRequest(bytes), widestream::DecodeReadRequest);
      break;
  }
  return 0;
}
