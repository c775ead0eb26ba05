// Glob: a walk that lists each folder once, however many `**` the pattern has, because it carries
// the set of pattern parts that the next name may match.
#include <algorithm>
#include <utility>

#include "engine/storage/file_system.h"
#include "engine/storage/wildcard.h"

namespace widestream {
namespace {

constexpr std::size_t kMaxMatches = 4'000'000;
constexpr int kMaxDepth = 256;

// Matches the set that begins at pattern[at] == '['. False if it is not closed; else *end is the
// index after it.
bool MatchSet(std::string_view pattern, std::size_t at, char byte, std::size_t* end,
              bool* matches) {
  std::size_t i = at + 1;
  bool negated = false;
  if (i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^')) {
    negated = true;
    ++i;
  }
  bool found = false;
  for (const std::size_t first = i; i < pattern.size(); ++i) {
    if (pattern[i] == ']' && i != first) {
      *end = i + 1;
      *matches = found != negated;
      return true;
    }
    const auto low = static_cast<unsigned char>(pattern[i]);
    auto high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = static_cast<unsigned char>(pattern[i + 2]);
      i += 2;
    }
    const auto b = static_cast<unsigned char>(byte);
    found = found || (low <= b && b <= high);
  }
  return false;
}

bool HasWildcard(std::string_view part) { return part.find_first_of("*?[") != std::string::npos; }

std::vector<std::string> SplitPath(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    if (slash > at) parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return parts;
}

std::string_view LastName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

class Walk {
 public:
  Walk(FileSystem& fs, std::vector<std::string> parts) : fs_(fs), parts_(std::move(parts)) {}

  // `active`: indices of the parts that an entry of `folder` may match, ascending.
  Status Visit(const std::string& folder, const std::vector<std::size_t>& active, int depth) {
    if (depth > kMaxDepth) {
      return Status::InvalidArgument("folders are nested more than " + std::to_string(kMaxDepth) +
                                     " deep at '" + folder + "'");
    }
    WS_ASSIGN_OR_RETURN(const std::vector<FileInfo> entries, fs_.List(folder));
    for (const FileInfo& entry : entries) {
      const std::string_view name = LastName(entry.path);
      std::vector<std::size_t> next;
      bool matched = false;
      for (const std::size_t part : active) Step(part, entry, name, &next, &matched);
      if (matched && !entry.is_directory) {
        if (matches_.size() >= kMaxMatches) {
          return Status::ResourceExhausted("more than " + std::to_string(kMaxMatches) +
                                           " files match; give a narrower pattern");
        }
        matches_.push_back(entry);
      }
      if (entry.is_directory && !next.empty()) {
        std::sort(next.begin(), next.end());
        next.erase(std::unique(next.begin(), next.end()), next.end());
        WS_RETURN_IF_ERROR(Visit(entry.path, next, depth + 1));
      }
    }
    return {};
  }
  std::vector<FileInfo> TakeMatches() { return std::move(matches_); }

 private:
  // What remains of the pattern once `entry` was matched against part `part`.
  void Step(std::size_t part, const FileInfo& entry, std::string_view name,
            std::vector<std::size_t>* next, bool* matched) const {
    if (part >= parts_.size()) return;
    if (parts_[part] == "**") {
      Step(part + 1, entry, name, next, matched);  // `**` for no folder at all
      const bool passed_over = name.front() == '.' || name.front() == '_' ||
                               (entry.is_directory && entry.is_symbolic_link);
      if (passed_over) return;
      if (entry.is_directory) next->push_back(part);
      if (part + 1 == parts_.size()) *matched = true;  // a trailing `**` takes every file
      return;
    }
    if (name.front() == '.' && parts_[part].front() != '.') return;
    if (!WildcardMatch(parts_[part], name)) return;
    if (part + 1 == parts_.size()) {
      *matched = true;
    } else {
      next->push_back(part + 1);
    }
  }

  FileSystem& fs_;
  const std::vector<std::string> parts_;
  std::vector<FileInfo> matches_;
};

Status NothingMatches(FileSystem& fs, const std::string& pattern, std::string folder) {
  while (folder.size() > 1) {
    const Result<FileInfo> info = fs.Stat(folder);
    if (info.ok() && info->is_directory) break;
    // Outside the roots of a restricted view nothing may be probed.
    if (!info.ok() && info.status().code() != StatusCode::kNotFound) return info.status();
    const std::size_t slash = folder.rfind('/');
    folder.resize(slash == 0 || slash == std::string::npos ? 1 : slash);
  }
  return Status::NotFound("no file matches '" + pattern + "'; the nearest existing folder is '" +
                          folder + "': correct the path");
}

}  // namespace

bool WildcardMatch(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;  // the last `*` and where its match was tried from
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
      continue;
    }
    bool matches = false;
    std::size_t after = p + 1;
    if (p < pattern.size()) {
      if (pattern[p] == '?') {
        matches = true;
      } else if (pattern[p] != '[' || !MatchSet(pattern, p, name[n], &after, &matches)) {
        after = p + 1;
        matches = pattern[p] == name[n];
      }
    }
    if (matches) {
      p = after;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<std::vector<FileInfo>> Glob(FileSystem& fs, const std::string& pattern) {
  if (pattern.empty() || pattern.front() != '/') {
    return Status::InvalidArgument("the path '" + pattern + "' is not absolute");
  }
  std::vector<std::string> parts = SplitPath(pattern);
  const Result<FileInfo> exact = fs.Stat(pattern);
  if (exact.ok() && !exact->is_directory) return std::vector<FileInfo>{*exact};
  if (!exact.ok() && exact.status().code() != StatusCode::kNotFound &&
      exact.status().error_number() == 0) {
    return exact.status();  // refused
  }
  std::size_t literal = 0;
  if (exact.ok()) {
    literal = parts.size();
    parts.emplace_back("**");
  } else {
    while (literal < parts.size() && !HasWildcard(parts[literal])) ++literal;
    if (literal == parts.size()) return NothingMatches(fs, pattern, pattern);
  }
  std::string base;
  for (std::size_t i = 0; i < literal; ++i) base += "/" + parts[i];
  if (base.empty()) base = "/";
  const Result<FileInfo> start = fs.Stat(base);
  if (!start.ok() || !start->is_directory) return NothingMatches(fs, pattern, base);
  Walk walk(fs, {parts.begin() + static_cast<std::ptrdiff_t>(literal), parts.end()});
  WS_RETURN_IF_ERROR(walk.Visit(base, {0}, 0));
  std::vector<FileInfo> matches = walk.TakeMatches();
  if (matches.empty()) return NothingMatches(fs, pattern, base);
  std::sort(matches.begin(), matches.end(),
            [](const FileInfo& a, const FileInfo& b) { return a.path < b.path; });
  return matches;
}

}  // namespace widestream
