#include "engine/storage/rename.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace widestream {

Status RenameLocalFile(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return Status::IoError("cannot rename '" + from + "' to '" + to + "'", errno);
  }
  const std::size_t slash = to.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : to.substr(0, slash + 1);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Status::IoError("cannot open the folder '" + folder + "'", errno);
  // Some file systems cannot sync a folder and say EINVAL; there is nothing more to do on them.
  const int error_number = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  ::close(fd);
  if (error_number == 0) return {};
  return Status::IoError("cannot sync the folder '" + folder + "'", error_number);
}

}  // namespace widestream
