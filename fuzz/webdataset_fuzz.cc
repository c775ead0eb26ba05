// WebDataset tar files: no input crashes, and restarting at every block gives the same records.
// Three control bytes, then the file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/formats/shard_reader.h"
#include "fuzz/memory_file_system.h"
#include "fuzz/read_records.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace widestream;
  constexpr std::size_t kControlBytes = 3;
  constexpr std::uint64_t kMaxRecords = 2000;
  if (size < kControlBytes) return 0;
  ReadOptions options;
  if ((data[0] & 1) != 0) options.text = "json.a.b";
  options.record_bytes = 1U << (data[1] % 20);
  const std::string_view content(reinterpret_cast<const char*>(data) + kControlBytes,
                                 size - kControlBytes);
  const auto shard = OpenShard(std::make_shared<MemoryFileSystem>(content), Format::kWebDataset,
                               "/f.tar", options);
  if (!shard.ok()) return 0;
  ReadRecords records;
  if (ReadInOneGo(**shard, 0, kMaxRecords, &records) && records.size() < kMaxRecords) {
    CheckRestarts(**shard, 0, 1 + data[2] % 16, 1ULL << (data[2] / 16), records);
  }
  return 0;
}
