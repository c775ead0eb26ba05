// Files of this machine: POSIX calls, every one of them retried on EINTR, errno kept in the Status.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "engine/storage/file_system.h"

namespace widestream {
namespace {

// The largest count that read() and write() take on Linux is just under 2 GiB.
constexpr std::size_t kMaxTransferBytes = 1U << 30;

Status ErrnoStatus(const char* what, const std::string& path, int error_number) {
  const std::string message = std::string(what) + " '" + path + "'";
  Status io = Status::IoError(message, error_number);
  if (error_number == ENOENT || error_number == ENOTDIR) {
    return {StatusCode::kNotFound, io.message(), error_number};
  }
  if (error_number == ENAMETOOLONG || error_number == ELOOP || error_number == EISDIR) {
    return {StatusCode::kInvalidArgument, io.message(), error_number};
  }
  return io;
}

Status CheckPath(const std::string& path) {
  if (path.empty()) return Status::InvalidArgument("a path is empty");
  if (path.find('\0') != std::string::npos) {
    return Status::InvalidArgument("the path '" + std::string(path.c_str()) +
                                   "...' holds a zero byte");
  }
  return {};
}

// Owns a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  // close() reports write errors of network filesystems; it is never retried (the descriptor is
  // gone).
  int Close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

Result<Descriptor> OpenDescriptor(const std::string& path, int flags, mode_t mode = 0) {
  WS_RETURN_IF_ERROR(CheckPath(path));
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return ErrnoStatus("cannot open", path, errno);
  return Descriptor(fd);
}

Status SyncDescriptor(int fd, const std::string& path) {
  int rc = 0;
  do {
    rc = ::fsync(fd);
  } while (rc != 0 && errno == EINTR);
  return rc == 0 ? Status() : ErrnoStatus("cannot sync", path, errno);
}

std::string ParentFolder(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return "/";
  const std::size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Makes a created, renamed or removed name durable.
Status SyncFolder(const std::string& folder) {
  WS_ASSIGN_OR_RETURN(const Descriptor fd, OpenDescriptor(folder, O_RDONLY | O_DIRECTORY));
  Status status = SyncDescriptor(fd.get(), folder);
  // Some filesystems cannot sync a folder and say so; there is nothing more to do on them.
  if (status.error_number() == EINVAL) return {};
  return status;
}

Status WriteAll(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), kMaxTransferBytes));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus("cannot write to", path, errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

class LocalFile final : public RandomAccessFile {
 public:
  LocalFile(Descriptor fd, std::string path, std::uint64_t size_bytes)
      : fd_(std::move(fd)), path_(std::move(path)), size_bytes_(size_bytes) {}

  Result<std::size_t> ReadAt(std::uint64_t offset, std::size_t size, char* out) const override {
    if (offset >= size_bytes_) return std::size_t{0};
    size = static_cast<std::size_t>(std::min<std::uint64_t>(size, size_bytes_ - offset));
    std::size_t done = 0;
    while (done < size) {
      const ssize_t n = ::pread(fd_.get(), out + done, std::min(size - done, kMaxTransferBytes),
                                static_cast<off_t>(offset + done));
      if (n < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus("cannot read", path_, errno)
            .WithContext("at byte " + std::to_string(offset + done));
      }
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    return done;
  }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& path() const override { return path_; }

 private:
  const Descriptor fd_;
  const std::string path_;
  const std::uint64_t size_bytes_;
};

class LocalAppendFile final : public AppendFile {
 public:
  LocalAppendFile(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Status Append(std::string_view bytes) override {
    WS_RETURN_IF_ERROR(failure_);
    return failure_ = WriteAll(fd_.get(), path_, bytes);
  }
  Status Sync() override {
    WS_RETURN_IF_ERROR(failure_);
    // A second fsync after a failed one may report success although pages were lost: the failure
    // must stay.
    return failure_ = SyncDescriptor(fd_.get(), path_);
  }
  Status Close() override {
    if (fd_.get() < 0) return {};
    const int rc = fd_.Close();
    const int error_number = errno;
    Status result = failure_;
    if (result.ok() && rc != 0) result = ErrnoStatus("cannot close", path_, error_number);
    failure_ = Status::InvalidArgument("the file '" + path_ + "' is closed");
    return result;
  }

 private:
  Descriptor fd_;
  const std::string path_;
  Status failure_;
};

FileInfo InfoOf(std::string path, const struct stat& st) {
  FileInfo info;
  info.path = std::move(path);
  info.is_directory = S_ISDIR(st.st_mode);
  info.size_bytes = S_ISREG(st.st_mode) ? static_cast<std::uint64_t>(st.st_size) : 0;
  return info;
}

class Local final : public FileSystem {
 public:
  Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override {
    // O_NONBLOCK: opening a named pipe must not wait for a writer.
    WS_ASSIGN_OR_RETURN(Descriptor fd, OpenDescriptor(path, O_RDONLY | O_NONBLOCK));
    struct stat st{};
    if (::fstat(fd.get(), &st) != 0) return ErrnoStatus("cannot stat", path, errno);
    if (!S_ISREG(st.st_mode)) {
      return Status::InvalidArgument(
          "cannot open '" + path + "': it is " +
          (S_ISDIR(st.st_mode) ? "a folder, not a file" : "not a regular file"));
    }
    return std::unique_ptr<RandomAccessFile>(
        std::make_unique<LocalFile>(std::move(fd), path, static_cast<std::uint64_t>(st.st_size)));
  }

  Result<FileInfo> Stat(const std::string& path) override {
    WS_RETURN_IF_ERROR(CheckPath(path));
    struct stat st{};
    if (::stat(path.c_str(), &st) != 0) return ErrnoStatus("cannot stat", path, errno);
    return InfoOf(path, st);
  }

  Result<std::vector<FileInfo>> List(const std::string& folder) override {
    WS_ASSIGN_OR_RETURN(Descriptor fd, OpenDescriptor(folder, O_RDONLY | O_DIRECTORY));
    const int copy = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0);
    DIR* stream = copy < 0 ? nullptr : ::fdopendir(copy);
    if (stream == nullptr) {
      const int error_number = errno;
      if (copy >= 0) ::close(copy);
      return ErrnoStatus("cannot list", folder, error_number);
    }
    std::vector<FileInfo> entries;
    std::string prefix = folder;
    if (prefix.back() != '/') prefix += '/';
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(stream);
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat link{};
      if (::fstatat(fd.get(), entry->d_name, &link, AT_SYMLINK_NOFOLLOW) != 0) {
        continue;  // removed since it was read
      }
      struct stat target = link;
      const bool is_link = S_ISLNK(link.st_mode);
      // A dangling link stays in the list as an empty file: opening it says what is wrong, leaving
      // it out would lose data in silence.
      if (is_link && ::fstatat(fd.get(), entry->d_name, &target, 0) != 0) target = link;
      entries.push_back(InfoOf(prefix + entry->d_name, target));
      entries.back().is_symbolic_link = is_link;
    }
    const int error_number = errno;
    ::closedir(stream);
    if (error_number != 0) return ErrnoStatus("cannot list", folder, error_number);
    std::sort(entries.begin(), entries.end(),
              [](const FileInfo& a, const FileInfo& b) { return a.path < b.path; });
    return entries;
  }

  Result<std::unique_ptr<AppendFile>> OpenAppend(const std::string& path) override {
    WS_ASSIGN_OR_RETURN(Descriptor fd, OpenDescriptor(path, O_WRONLY | O_APPEND | O_CREAT, 0644));
    // What Sync() promises includes the name of a file that was just created.
    WS_RETURN_IF_ERROR(SyncFolder(ParentFolder(path)));
    return std::unique_ptr<AppendFile>(std::make_unique<LocalAppendFile>(std::move(fd), path));
  }

  Status WriteAtomically(const std::string& path, std::string_view bytes) override {
    WS_RETURN_IF_ERROR(CheckPath(path));
    static std::atomic<std::uint64_t> counter{0};
    const std::string folder = ParentFolder(path);
    const std::string name = path.substr(path.rfind('/') + 1);  // npos + 1 == 0
    if (name.empty()) return Status::InvalidArgument("cannot write '" + path + "': no file name");
    const std::string temporary = folder + "/." + name.substr(0, 128) + ".tmp-" +
                                  std::to_string(::getpid()) + "-" +
                                  std::to_string(counter.fetch_add(1, std::memory_order_relaxed));
    // A file of that name was left by a dead process with our number.
    if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
      return ErrnoStatus("cannot remove", temporary, errno);
    }
    Status status = WriteNewFile(temporary, bytes);
    if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
      status = ErrnoStatus("cannot rename a temporary file to", path, errno);
    }
    if (!status.ok()) {
      ::unlink(temporary.c_str());
      return status;
    }
    return SyncFolder(folder);
  }

  Result<std::string> ReadAll(const std::string& path, std::uint64_t limit_bytes) override {
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, Open(path));
    if (file->size_bytes() > limit_bytes) {
      return Status::ResourceExhausted(
          "cannot read '" + path + "': it has " + std::to_string(file->size_bytes()) +
          " bytes, the limit for such a file is " + std::to_string(limit_bytes));
    }
    std::string bytes(static_cast<std::size_t>(file->size_bytes()), '\0');
    WS_RETURN_IF_ERROR(ReadExactly(*file, 0, bytes.size(), bytes.data()));
    return bytes;
  }

  Status Truncate(const std::string& path, std::uint64_t size_bytes) override {
    WS_ASSIGN_OR_RETURN(const Descriptor fd, OpenDescriptor(path, O_WRONLY));
    int rc = 0;
    do {
      rc = ::ftruncate(fd.get(), static_cast<off_t>(size_bytes));
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) return ErrnoStatus("cannot truncate", path, errno);
    return SyncDescriptor(fd.get(), path);
  }

  Status CreateFolders(const std::string& path) override {
    WS_RETURN_IF_ERROR(CheckPath(path));
    for (std::size_t end = path.find_first_not_of('/'); end != std::string::npos;) {
      end = path.find('/', end);
      const std::string folder = path.substr(0, end);
      if (::mkdir(folder.c_str(), 0777) == 0) {
        WS_RETURN_IF_ERROR(SyncFolder(ParentFolder(folder)));
      } else {
        const int error_number = errno;  // EROFS and EACCES too may come where the folder exists
        struct stat st{};
        if (::stat(folder.c_str(), &st) != 0) {
          return ErrnoStatus("cannot create the folder", folder, error_number);
        }
        if (!S_ISDIR(st.st_mode)) {
          return FileInTheWay(path, folder);
        }
      }
      if (end != std::string::npos) end = path.find_first_not_of('/', end);
    }
    return {};
  }

  Status Remove(const std::string& path) override {
    WS_RETURN_IF_ERROR(CheckPath(path));
    if (::remove(path.c_str()) != 0) return ErrnoStatus("cannot remove", path, errno);
    return SyncFolder(ParentFolder(path));
  }

 private:
  static Status FileInTheWay(const std::string& path, const std::string& file) {
    return Status::InvalidArgument("cannot create the folder '" + path + "': '" + file +
                                   "' is a file");
  }
  static Status WriteNewFile(const std::string& path, std::string_view bytes) {
    WS_ASSIGN_OR_RETURN(Descriptor fd, OpenDescriptor(path, O_WRONLY | O_CREAT | O_EXCL, 0644));
    WS_RETURN_IF_ERROR(WriteAll(fd.get(), path, bytes));
    WS_RETURN_IF_ERROR(SyncDescriptor(fd.get(), path));
    return fd.Close() == 0 ? Status() : ErrnoStatus("cannot close", path, errno);
  }
};

}  // namespace

Status ReadExactly(const RandomAccessFile& file, std::uint64_t offset, std::size_t size,
                   char* out) {
  std::size_t done = 0;
  while (done < size) {
    WS_ASSIGN_OR_RETURN(const std::size_t n, file.ReadAt(offset + done, size - done, out + done));
    if (n == 0) {
      return Status::DataCorruption(
          "'" + file.path() + "' ends at byte " + std::to_string(offset + done) + ", but " +
          std::to_string(size - done) + " more bytes were expected there (it had " +
          std::to_string(file.size_bytes()) +
          " bytes when it was opened): it was truncated while in use; restore it");
    }
    done += n;
  }
  return {};
}

std::shared_ptr<FileSystem> LocalFileSystem() {
  static const std::shared_ptr<FileSystem> local = std::make_shared<Local>();
  return local;
}

}  // namespace widestream
