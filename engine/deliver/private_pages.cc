#include "engine/deliver/private_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cstdint>

namespace widestream::delivery {
namespace {

// As in linux/fs.h, which older distributions ship without them.
struct PageRegion {
  std::uint64_t start, end, categories;
};
struct ScanArgument {
  std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  std::uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);  // NOLINT(google-runtime-int)
constexpr std::uint64_t kPageIsFile = 1U << 2;
constexpr std::uint64_t kPageIsPresent = 1U << 3;
constexpr std::uint64_t kPageIsSwapped = 1U << 4;
constexpr std::size_t kRegionsAtOnce = 32;

void Unmap(std::uint64_t begin, std::uint64_t end) {
  // Fails only for memory that is locked: then nothing is stale, for nothing was written.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // NOLINT
}

}  // namespace

PrivatePages::PrivatePages(const std::string& pagemap_path)
    : pagemap_(open(pagemap_path.c_str(), O_RDONLY | O_CLOEXEC)) {}

void PrivatePages::Drop(std::byte* begin, std::size_t size_bytes) const {
  if (size_bytes == 0) return;
  const auto start = reinterpret_cast<std::uint64_t>(begin);
  PageRegion regions[kRegionsAtOnce];
  ScanArgument scan{};
  scan.size = sizeof(scan);
  scan.start = start;
  scan.end = start + size_bytes;
  scan.vec = reinterpret_cast<std::uint64_t>(regions);
  scan.vec_len = kRegionsAtOnce;
  // Present or swapped out, and not the file's.
  scan.category_inverted = kPageIsFile;
  scan.category_mask = kPageIsFile;
  scan.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
  scan.return_mask = kPageIsPresent;
  while (scan.start < scan.end) {
    const int found = pagemap_.valid() ? ioctl(pagemap_.get(), kPagemapScan, &scan) : -1;
    if (found < 0) return Unmap(scan.start, scan.end);
    for (int i = 0; i < found; ++i) Unmap(regions[i].start, regions[i].end);
    scan.start = scan.walk_end;
  }
}

}  // namespace widestream::delivery
