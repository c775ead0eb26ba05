#include "engine/source/manifest.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/hash.h"
#include "engine/storage/fingerprint.h"

namespace widestream {
namespace {

constexpr int kManifestVersion = 1;
constexpr std::size_t kNamedDifferences = 10;

// The folder part of a pattern before its first wildcard: where all its matches lie.
std::string StaticFolder(const std::string& pattern, bool is_folder) {
  const std::size_t wildcard = pattern.find_first_of("*?[");
  if (wildcard == std::string::npos && is_folder) return pattern;
  const std::size_t slash =
      pattern.rfind('/', wildcard == std::string::npos ? std::string::npos : wildcard);
  return slash == std::string::npos ? "" : pattern.substr(0, slash);
}

std::string CommonFolder(const std::string& a, const std::string& b) {
  std::size_t same = 0;
  std::size_t i = 0;
  for (; i < a.size() && i < b.size() && a[i] == b[i]; ++i) {
    if (a[i] == '/') same = i;
  }
  const bool a_ends = i == a.size() && (i == b.size() || b[i] == '/');
  const bool b_ends = i == b.size() && (i == a.size() || a[i] == '/');
  return a_ends || b_ends ? a.substr(0, i) : a.substr(0, same);
}

std::string HashOf(const std::vector<ShardEntry>& shards) {
  Xxh3Digest digest;
  for (const ShardEntry& shard : shards) {
    digest.Update(shard.relative_path);
    digest.Update(std::string_view("\0", 1));
    digest.UpdateU64(shard.size_bytes);
    digest.Update(shard.fingerprint);
  }
  return digest.Digest128().ToHex();
}

}  // namespace

Status IdentifyShard(FileSystem& fs, Format format, const std::string& path, ShardEntry* entry) {
  const std::vector<std::string> files = ShardFiles(format, path);
  entry->size_bytes = 0;
  Xxh3Digest digest;
  for (const std::string& file : files) {
    WS_ASSIGN_OR_RETURN(const Fingerprint fingerprint, ShardFingerprint(fs, file));
    entry->size_bytes += fingerprint.size_bytes;
    entry->fingerprint = fingerprint.Hex();
    digest.UpdateU64(fingerprint.size_bytes);
    digest.Update(entry->fingerprint);
  }
  if (files.size() > 1) entry->fingerprint = digest.Digest128().ToHex();
  return {};
}

Result<Manifest> BuildManifest(FileSystem& fs, const SourceSpec& source,
                               const std::string& ignored) {
  std::string root;
  bool first = true;
  std::map<std::string, FileInfo> files;
  std::optional<Format> format;
  std::string format_path;
  for (const std::string& pattern : source.paths) {
    const Result<FileInfo> direct = fs.Stat(pattern);
    const bool is_folder = direct.ok() && direct->is_directory;
    WS_ASSIGN_OR_RETURN(std::vector<FileInfo> matches, Glob(fs, pattern));
    const std::string folder = StaticFolder(pattern, is_folder);
    root = first ? folder : CommonFolder(root, folder);
    first = false;
    for (FileInfo& file : matches) {
      if (file.is_directory || file.path == ignored) continue;
      const Result<Format> found = FormatFromName(source.format, file.path);
      if (!found.ok()) {
        if (is_folder) continue;
        return found.status();
      }
      // A README.txt beside the data is no data.
      if (is_folder && source.format.empty() && *found == Format::kText) continue;
      if (format && *format != *found) {
        return Status::InvalidArgument(format_path + " and " + file.path +
                                       " have different formats; make two sources of them");
      }
      format = *found;
      format_path = file.path;
      file.path = ShardFiles(*found, file.path).front();
      files.emplace(file.path, std::move(file));
    }
  }
  if (!format) {
    return Status::NotFound(
        "no file of a known format in " +
        (source.paths.empty() ? std::string("(no path)") : source.paths.front()) +
        "; give a glob that matches data files or set `format`");
  }
  Manifest manifest;
  manifest.format = *format;
  for (auto& [path, file] : files) {
    ShardEntry entry;
    entry.path = path;
    entry.relative_path =
        root.empty() || path.size() <= root.size() + 1 ? path : path.substr(root.size() + 1);
    WS_RETURN_IF_ERROR(IdentifyShard(fs, *format, path, &entry));
    manifest.shards.push_back(std::move(entry));
  }
  std::sort(
      manifest.shards.begin(), manifest.shards.end(),
      [](const ShardEntry& a, const ShardEntry& b) { return a.relative_path < b.relative_path; });
  manifest.hash = HashOf(manifest.shards);
  return manifest;
}

std::string ManifestToJson(const std::string& source, const Manifest& manifest) {
  nlohmann::json shards = nlohmann::json::array();
  for (const ShardEntry& shard : manifest.shards) {
    shards.push_back({shard.relative_path, shard.size_bytes, shard.fingerprint});
  }
  const nlohmann::json document = {{"version", kManifestVersion},
                                   {"source", source},
                                   {"format", FormatName(manifest.format)},
                                   {"hash", manifest.hash},
                                   {"shards", shards}};
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<std::string> DescribeManifestChange(const std::string& stored_json, const Manifest& now) {
  const nlohmann::json stored = nlohmann::json::parse(stored_json, nullptr, false);
  if (stored.is_discarded() || !stored.contains("shards") || !stored["shards"].is_array()) {
    return Status::DataCorruption(
        "the stored manifest is not a manifest; remove it to compare by hash alone");
  }
  std::map<std::string, std::pair<std::uint64_t, std::string>> before;
  for (const nlohmann::json& row : stored["shards"]) {
    if (!row.is_array() || row.size() != 3 || !row[0].is_string() || !row[1].is_number_unsigned() ||
        !row[2].is_string()) {
      return Status::DataCorruption("the stored manifest has a malformed shard entry");
    }
    before[row[0].get<std::string>()] = {row[1].get<std::uint64_t>(), row[2].get<std::string>()};
  }
  std::vector<std::string> differences;
  for (const ShardEntry& shard : now.shards) {
    const auto found = before.find(shard.relative_path);
    if (found == before.end()) {
      differences.push_back("shard " + shard.relative_path + " is new");
      continue;
    }
    if (found->second.first != shard.size_bytes) {
      differences.push_back("shard " + shard.relative_path + " changed from " +
                            std::to_string(found->second.first) + " to " +
                            std::to_string(shard.size_bytes) + " bytes");
    } else if (found->second.second != shard.fingerprint) {
      differences.push_back("shard " + shard.relative_path + " changed its content");
    }
    before.erase(found);
  }
  for (const auto& [path, value] : before) differences.push_back("shard " + path + " is missing");
  std::string text;
  for (std::size_t i = 0; i < differences.size() && i < kNamedDifferences; ++i) {
    text += (i == 0 ? "" : "; ") + differences[i];
  }
  if (differences.size() > kNamedDifferences) {
    text += "; and " + std::to_string(differences.size() - kNamedDifferences) + " more";
  }
  return text;
}

}  // namespace widestream
