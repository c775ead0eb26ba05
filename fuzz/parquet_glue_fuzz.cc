// Parquet through the glue: no file crashes or asks for absurd memory, and restarting at every
// block gives the same records. The library inside the pyarrow wheel is not instrumented: the
// fuzzer is guided by our glue and the footer check alone.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/formats/parquet.h"
#include "fuzz/memory_file_system.h"
#include "fuzz/read_records.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (!widestream::SetArrowGluePath(WS_ARROW_GLUE_PATH).ok()) __builtin_trap();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace widestream;
  constexpr std::uint64_t kMaxRecords = 2000;
  constexpr std::size_t kMaxUnits = 16;
  MemoryFileSystem fs(std::string_view(reinterpret_cast<const char*>(data), size));
  for (const char* column : {"text", "meta.text"}) {
    ReadOptions options;
    options.text = column;
    options.record_bytes = 1U << 20;
    const auto shard = OpenParquetShard(fs, "/f.parquet", options);
    if (!shard.ok()) continue;
    for (std::size_t unit = 0; unit < (*shard)->units().size() && unit < kMaxUnits; ++unit) {
      ReadRecords records;
      if (ReadInOneGo(**shard, unit, kMaxRecords, &records) && records.size() < kMaxRecords) {
        CheckRestarts(**shard, unit, records.size() / 3 + 1, 0, records);
      }
    }
  }
  return 0;
}
