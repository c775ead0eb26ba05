// PrivatePages: finds the pages of a private mapping that this process has written to.
#pragma once

#include <cstddef>
#include <string>

#include "engine/deliver/socket.h"

namespace widestream::delivery {

// Thread-safe. Of a MAP_PRIVATE mapping of a file, a page that was written to is a copy of this
// process, while the others are the file's own and show what is written there later (Linux; see
// PAGEMAP_SCAN in the kernel's Documentation/admin-guide/mm/pagemap.rst, Linux 6.7). So only the
// copies must go before the file changes, and the rest can stay mapped: no page fault when the
// memory is used again.
class PrivatePages {
 public:
  explicit PrivatePages(const std::string& pagemap_path = "/proc/self/pagemap");

  // Forgets what was written to [begin, begin + size_bytes); begin is a multiple of the page size.
  // Where the kernel does not tell what that was, all pages are unmapped.
  void Drop(std::byte* begin, std::size_t size_bytes) const;

 private:
  FileDescriptor pagemap_;  // of the process that opened it
};

}  // namespace widestream::delivery
