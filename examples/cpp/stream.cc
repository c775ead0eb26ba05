// Prints the batches of a job: widestream_stream JOB.json [STEPS]. JOB.json is what `widestream
// lint JOB.yaml --resolved` prints.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "engine/job/spec.h"
#include "engine/runtime/host.h"

namespace {

int Fail(const widestream::Status& status) {
  std::cerr << status.ToString() << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: widestream_stream JOB.json [STEPS]\n";
    return 2;
  }
  std::ifstream file(argv[1]);
  const std::string json((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::uint64_t steps = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : UINT64_MAX;

  auto job = widestream::ParseJob(json);
  if (!job.ok()) return Fail(job.status());
  job->run_dir.clear();  // look only: no journal
  auto host = widestream::Host::Make(*job, {});
  if (!host.ok()) return Fail(host.status());

  for (std::uint64_t n = 0; n < steps; ++n) {
    auto step = (*host)->Next(std::chrono::steady_clock::now() + std::chrono::minutes(1));
    if (!step.ok()) return Fail(step.status());
    if (*step == nullptr) break;
    const widestream::Bucket& bucket = (*step)->buckets.front();  // of data-parallel rank 0
    const widestream::BatchView& view = bucket.view;
    std::cout << "step " << view.step << " digest " << view.plan->digest << " tokens "
              << view.plan->real_tokens << "\n";
    for (const auto& microbatch : view.microbatches) {
      const auto& tokens = microbatch.tensors.front();  // int64 [rows, width]
      const auto* ids =
          reinterpret_cast<const std::int64_t*>(bucket.slab->memory().data() + tokens.offset_bytes);
      std::cout << "  " << tokens.shape[0] << " x " << tokens.shape[1] << ":";
      for (int i = 0; i < 8 && i < tokens.shape[0] * tokens.shape[1]; ++i)
        std::cout << " " << ids[i];
      std::cout << " ...\n";
    }
  }
  return 0;
}
