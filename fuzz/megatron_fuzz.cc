// Megatron indexes: no input crashes, and restarting at every block gives the same documents. Two
// control bytes, then the index. The .bin has the same bytes, as the file system gives one for all.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/formats/shard_reader.h"
#include "fuzz/memory_file_system.h"
#include "fuzz/read_records.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace widestream;
  constexpr std::size_t kControlBytes = 2;
  constexpr std::uint64_t kMaxRecords = 10'000;
  if (size < kControlBytes) return 0;
  ReadOptions options;
  options.record_bytes = 1U << (data[0] % 20);
  const std::string_view content(reinterpret_cast<const char*>(data) + kControlBytes,
                                 size - kControlBytes);
  const auto shard =
      OpenShard(std::make_shared<MemoryFileSystem>(content), Format::kMegatron, "/f.idx", options);
  if (!shard.ok()) return 0;
  for (std::uint64_t unit = 0; unit < (*shard)->units().size() && unit < 4; ++unit) {
    ReadRecords records;
    if (!ReadInOneGo(**shard, unit, kMaxRecords, &records)) continue;
    if (records.size() != *(*shard)->units()[unit].records) __builtin_trap();
    CheckRestarts(**shard, unit, 1 + data[1] % 16, 1ULL << (data[1] / 16), records);
  }
  return 0;
}
