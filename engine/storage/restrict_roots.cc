// The gate of `data_roots`: a path is resolved to what it really names before anything is opened.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "engine/storage/file_system.h"

namespace widestream {
namespace {

// What `path` names after symbolic links and "..", or "" with errno set.
std::string RealPath(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return {};
  std::string result = resolved;
  std::free(resolved);
  return result;
}

std::string Join(std::string folder, const std::string& name) {
  if (folder.back() != '/') folder += '/';
  return folder + name;
}

bool IsInside(const std::string& path, const std::string& root) {
  if (root == "/" || path == root) return true;
  return path.size() > root.size() && path.compare(0, root.size(), root) == 0 &&
         path[root.size()] == '/';
}

class RestrictedFileSystem final : public FileSystem {
 public:
  RestrictedFileSystem(std::shared_ptr<FileSystem> inner, std::vector<std::string> roots)
      : inner_(std::move(inner)), given_roots_(std::move(roots)) {
    for (const std::string& root : given_roots_) {
      std::string resolved = RealPath(root);
      if (!resolved.empty()) roots_.push_back(std::move(resolved));
    }
  }

  Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(path, /*may_be_absent=*/false));
    return inner_->Open(real);
  }
  Result<FileInfo> Stat(const std::string& path) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(path, false));
    WS_ASSIGN_OR_RETURN(FileInfo info, inner_->Stat(real));
    info.path = path;
    return info;
  }
  Result<std::vector<FileInfo>> List(const std::string& folder) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(folder, false));
    WS_ASSIGN_OR_RETURN(std::vector<FileInfo> entries, inner_->List(real));
    // Names as the caller spells the folder: manifests hold relative paths.
    const std::string prefix = folder.back() == '/' ? folder : folder + "/";
    for (FileInfo& entry : entries) {
      entry.path = prefix + entry.path.substr(entry.path.rfind('/') + 1);
    }
    return entries;
  }
  Result<std::unique_ptr<AppendFile>> OpenAppend(const std::string& path) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(path, true));
    return inner_->OpenAppend(real);
  }
  Status WriteAtomically(const std::string& path, std::string_view bytes) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(path, true));
    return inner_->WriteAtomically(real, bytes);
  }
  Result<std::string> ReadAll(const std::string& path, std::uint64_t limit_bytes) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(path, false));
    return inner_->ReadAll(real, limit_bytes);
  }
  Status Truncate(const std::string& path, std::uint64_t size_bytes) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(path, false));
    return inner_->Truncate(real, size_bytes);
  }
  Status CreateFolders(const std::string& path) override {
    WS_ASSIGN_OR_RETURN(const std::string real, Resolve(path, true));
    return inner_->CreateFolders(real);
  }
  Status Remove(const std::string& path) override {
    // The name itself goes, not what a link there points to: resolve the folder that holds it.
    std::string trimmed = path;
    while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
    const std::size_t slash = trimmed.rfind('/');
    const std::string name = slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
    if (slash == std::string::npos || name.empty() || name == "." || name == "..") {
      return Status::InvalidArgument("cannot remove '" + path +
                                     "': give an absolute path of a file");
    }
    WS_ASSIGN_OR_RETURN(const std::string folder, Resolve(trimmed.substr(0, slash + 1), false));
    return inner_->Remove(Join(folder, name));
  }

 private:
  Result<std::string> Resolve(const std::string& path, bool may_be_absent) const {
    if (path.empty() || path.front() != '/' || path.find('\0') != std::string::npos) {
      return Status::InvalidArgument("the path '" + path + "' is not absolute");
    }
    std::string real = RealPath(path);
    if (!real.empty()) return Admit(path, std::move(real));
    int error_number = errno;
    if (error_number != ENOENT) {
      const Status status = Status::IoError("cannot resolve '" + path + "'", error_number);
      const bool not_found = error_number == ENOTDIR;
      return Status(not_found ? StatusCode::kNotFound : StatusCode::kIoError, status.message(),
                    error_number);
    }
    // The longest part that exists, then the rest, which must be plain names: a ".." after a
    // missing folder, or a dangling link, could lead anywhere.
    std::string head = path;
    std::string tail;
    while (real.empty()) {
      while (head.size() > 1 && head.back() == '/') head.pop_back();
      const std::size_t slash = head.rfind('/');
      const std::string name = head.substr(slash + 1);
      if (name == "." || name == "..") {
        return Status::NotFound("'" + path + "' does not exist");
      }
      if (IsLink(head)) {
        return DanglingLink(path, head);
      }
      tail = tail.empty() ? name : Join(name, tail);
      head.resize(slash == 0 ? 1 : slash);
      real = RealPath(head);
    }
    WS_ASSIGN_OR_RETURN(std::string admitted, Admit(path, Join(real, tail)));
    if (!may_be_absent) {
      return Status(StatusCode::kNotFound, "'" + path + "' does not exist", ENOENT);
    }
    return admitted;
  }

  static Status DanglingLink(const std::string& path, const std::string& link) {
    return Status::NotFound("'" + path + "': '" + link +
                            "' is a symbolic link to something that does not exist");
  }
  static bool IsLink(const std::string& path) {
    char byte = 0;
    return ::readlink(path.c_str(), &byte, 1) >= 0;
  }

  Result<std::string> Admit(const std::string& path, std::string real) const {
    for (const std::string& root : roots_) {
      if (IsInside(real, root)) return real;
    }
    std::string message = "'" + path + "'";
    if (real != path) message += " (which is '" + real + "')";
    message += " lies outside the data roots [";
    for (std::size_t i = 0; i < given_roots_.size(); ++i) {
      message += (i == 0 ? "'" : ", '") + given_roots_[i] + "'";
    }
    return Status::InvalidArgument(message + "]: move it there, or add its folder to `data_roots`");
  }

  const std::shared_ptr<FileSystem> inner_;
  const std::vector<std::string> given_roots_;
  std::vector<std::string> roots_;  // resolved
};

}  // namespace

std::shared_ptr<FileSystem> RestrictToRoots(std::shared_ptr<FileSystem> inner,
                                            std::vector<std::string> roots) {
  return std::make_shared<RestrictedFileSystem>(std::move(inner), std::move(roots));
}

}  // namespace widestream
