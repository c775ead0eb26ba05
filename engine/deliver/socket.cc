#include "engine/deliver/socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/format_text.h"

namespace widestream::delivery {
namespace {

// At most one descriptor travels with a frame, and a read may end many frames, but the kernel does
// not join what came with different descriptors.
constexpr std::size_t kMaxDescriptorsAtOnce = 4;
constexpr int kBacklog = 128;

Result<sockaddr_un> Address(const std::string& path) {
  if (path.empty() || path.size() > kMaxSocketPathBytes || path.find('\0') != std::string::npos) {
    return Status::InvalidArgument(StrCat("the socket path ", Quoted(path, 200), " has ",
                                          path.size(), " bytes; a Unix socket takes 1 to ",
                                          kMaxSocketPathBytes,
                                          ". Choose a shorter folder (WIDESTREAM_RUNTIME_DIR)"));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<FileDescriptor> NewSocket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.valid()) return fd;
  const int error = errno;
  if (error == EMFILE || error == ENFILE) {
    return Status(StatusCode::kResourceExhausted,
                  "a Unix socket: too many open files; raise the limit (ulimit -n)", error);
  }
  return Status::IoError("a Unix socket cannot be made", error);
}

}  // namespace

void FileDescriptor::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Status CheckPrivateFolder(const std::string& folder) {
  struct stat info{};
  if (lstat(folder.c_str(), &info) != 0) {
    return Status::IoError(StrCat("the host's folder ", folder), errno);
  }
  if (!S_ISDIR(info.st_mode)) {
    return Status::InvalidArgument(StrCat("the host's folder ", folder, " is not a folder"));
  }
  if (info.st_uid != geteuid()) {
    return Status::InvalidArgument(StrCat("the host's folder ", folder, " belongs to user ",
                                          info.st_uid, ", not to user ", geteuid(),
                                          "; choose another (WIDESTREAM_RUNTIME_DIR)"));
  }
  if ((info.st_mode & 077) != 0) {
    return Status::InvalidArgument(
        StrCat("the host's folder ", folder, " is open to other users; type: chmod 700 ", folder));
  }
  return Status::Ok();
}

Result<FileDescriptor> Connect(const std::string& path) {
  WS_ASSIGN_OR_RETURN(const sockaddr_un address, Address(path));
  WS_ASSIGN_OR_RETURN(FileDescriptor fd, NewSocket());
  int result = 0;
  do {
    result = connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return fd;
  const int error = errno;
  if (error == EACCES) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the host at ", path,
               " belongs to another user, or its folder does; start both as the same user"),
        error);
  }
  if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN) {
    return Status(StatusCode::kUnavailable,
                  StrCat("no host listens at ", path, ": ", std::strerror(error)), error);
  }
  return Status::IoError(StrCat("connecting to the host at ", path), error);
}

Result<FileDescriptor> Listen(const std::string& path) {
  WS_ASSIGN_OR_RETURN(const sockaddr_un address, Address(path));
  WS_ASSIGN_OR_RETURN(FileDescriptor fd, NewSocket());
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (bind(fd.get(), raw, sizeof(address)) != 0) {
    if (errno != EADDRINUSE) return Status::IoError(StrCat("listening at ", path), errno);
    // Whose socket is it? A killed server leaves the file, but nobody answers.
    struct stat info{};
    if (lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
      return Status::InvalidArgument(StrCat(path, " is in the way and is no socket; remove it"));
    }
    const Result<FileDescriptor> other = Connect(path);
    if (other.ok() || other.status().error_number() == EAGAIN) {
      std::string who = "another process";
      if (other.ok()) {
        const Result<PeerCredentials> peer = Peer(other->get());
        if (peer.ok()) who = StrCat("process ", peer->pid);
      }
      return Status::Unavailable(
          StrCat(who, " already serves ", path, "; two hosts cannot share a folder"));
    }
    if (unlink(path.c_str()) != 0 && errno != ENOENT) {
      return Status::IoError(StrCat("removing the old socket ", path), errno);
    }
    if (bind(fd.get(), raw, sizeof(address)) != 0) {
      return Status::IoError(StrCat("listening at ", path), errno);
    }
  }
  // The folder is private already; this is for who looks at the file.
  if (chmod(path.c_str(), 0600) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    unlink(path.c_str());
    return Status::IoError(StrCat("listening at ", path), error);
  }
  return fd;
}

Result<PeerCredentials> Peer(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Status::IoError("the credentials of a peer", errno);
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

FileDescriptor WatchProcess(pid_t pid) {
  if (pid <= 0) return {};
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

SendOutcome SendSome(int socket, std::string_view bytes, int descriptor, std::size_t* sent_bytes) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  *sent_bytes = 0;
  for (;;) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      *sent_bytes = static_cast<std::size_t>(sent);
      return SendOutcome::kSent;
    }
    if (errno == EINTR) continue;
    // ETOOMANYREFS: too many descriptors are under way; they go when the peer reads.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS) {
      return SendOutcome::kWouldBlock;
    }
    return SendOutcome::kBroken;
  }
}

Received ReceiveSome(int socket, char* buffer, std::size_t buffer_bytes,
                     std::vector<FileDescriptor>* descriptors) {
  iovec part{buffer, buffer_bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptorsAtOnce * sizeof(int))];
  if (descriptors != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return {errno == EAGAIN || errno == EWOULDBLOCK ? Received::Outcome::kWouldBlock
                                                    : Received::Outcome::kBroken,
            0};
  }
  if (descriptors != nullptr) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        descriptors->emplace_back(fd);
      }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) return {Received::Outcome::kTruncated, 0};
  }
  if (got == 0) return {Received::Outcome::kClosed, 0};
  return {Received::Outcome::kBytes, static_cast<std::size_t>(got)};
}

Result<FileDescriptor> TextToDescriptor(std::string_view text) {
  FileDescriptor fd(memfd_create("widestream-text", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Status::IoError("a memfd for a long answer", errno);
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(fd.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Status::IoError("writing a long answer to a memfd", errno);
    written += static_cast<std::size_t>(count);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return Status::IoError("sealing a long answer", errno);
  }
  return fd;
}

Result<std::string> TextFromDescriptor(int fd, std::uint64_t size_bytes) {
  struct stat info{};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_WRITE) == 0 || fstat(fd, &info) != 0 ||
      static_cast<std::uint64_t>(info.st_size) != size_bytes) {
    return Status::InvalidArgument(
        StrCat("a long answer of the host is not a sealed file of ", size_bytes, " bytes"));
  }
  std::string text(size_bytes, '\0');
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t count = pread(fd, text.data() + got, text.size() - got, static_cast<off_t>(got));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Status::IoError("reading a long answer of the host", errno);
    got += static_cast<std::size_t>(count);
  }
  return text;
}

}  // namespace widestream::delivery
