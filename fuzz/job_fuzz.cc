// Any bytes as job JSON: an error or a job whose canonical form reads back to itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/job/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto job = widestream::ParseJob(text);
  if (!job.ok()) {
    if (job.status().code() != widestream::StatusCode::kInvalidArgument) std::abort();
    return 0;
  }
  const std::string canonical = widestream::ToJson(*job);
  const auto again = widestream::ParseJob(canonical);
  if (!again.ok() || widestream::ToJson(*again) != canonical) std::abort();
  if (widestream::StreamHash(*again, "d") != widestream::StreamHash(*job, "d")) std::abort();
  return 0;
}
