// Manifest: the frozen set of shards of a source (docs/stream.md section 1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/formats/shard_reader.h"
#include "engine/job/spec.h"
#include "engine/storage/file_system.h"

namespace widestream {

struct ShardEntry {
  std::string relative_path;  // below the deepest folder that the source's patterns have in common
  std::string path;           // absolute; not part of the hash
  std::uint64_t size_bytes = 0;  // of all files of the shard
  std::string fingerprint;       // of the first and last 64 KiB of each file, 32 hex digits

  friend bool operator==(const ShardEntry&, const ShardEntry&) = default;
};

// A value. Shards are sorted bytewise by relative path, each once.
struct Manifest {
  Format format = Format::kJsonl;
  std::vector<ShardEntry> shards;
  std::string hash;  // 32 hex digits over relative paths, sizes and fingerprints
};

// Fills size and fingerprint from the files of the shard at `path`.
Status IdentifyShard(FileSystem& fs, Format format, const std::string& path, ShardEntry* entry);

// Lists and fingerprints the files of a source. NotFound if a pattern matches nothing;
// InvalidArgument if the files have different formats, or none that is known. In a folder, files of
// unknown formats are passed over, and text files unless the source's format is text.
// `ignored` is a path that is no data.
Result<Manifest> BuildManifest(FileSystem& fs, const SourceSpec& source,
                               const std::string& ignored = {});

// JSON {version, source, format, hash, shards: [[relative_path, size_bytes, fingerprint], ...]}:
// kept in the run folder so that a resume can say which file differs.
std::string ManifestToJson(const std::string& source, const Manifest& manifest);
// The differences between a stored manifest and the present one, as text ("shard a.parquet changed:
// ..."); at most ten are named. Empty = equal.
Result<std::string> DescribeManifestChange(const std::string& stored_json, const Manifest& now);

}  // namespace widestream
