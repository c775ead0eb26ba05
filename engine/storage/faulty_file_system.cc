#include "engine/storage/faulty_file_system.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/storage/wildcard.h"

namespace widestream {
namespace {

const char* OperationName(FileOperation operation) {
  switch (operation) {
    case FileOperation::kOpen:
      return "open";
    case FileOperation::kStat:
      return "stat";
    case FileOperation::kList:
      return "list";
    case FileOperation::kRead:
      return "read";
    case FileOperation::kOpenAppend:
      return "open for appending";
    case FileOperation::kAppend:
      return "append to";
    case FileOperation::kSync:
      return "sync";
    case FileOperation::kWriteAtomically:
      return "write";
    case FileOperation::kTruncate:
      return "truncate";
    case FileOperation::kCreateFolders:
      return "create the folder";
    case FileOperation::kRemove:
      return "remove";
  }
  return "use";
}

Status InjectedError(FileOperation operation, const std::string& path, int error_number) {
  return Status::IoError(
      std::string("injected fault: cannot ") + OperationName(operation) + " '" + path + "'",
      error_number);
}

}  // namespace

class FaultyFileSystem::Core {
 public:
  // What the script says about one operation.
  struct Verdict {
    std::optional<std::uint64_t> bytes;  // kShortRead and kTornAppend
    int error_number = 0;                // kError and kTornAppend
  };
  // Sizes of a file that is being appended to.
  struct Appended {
    std::uint64_t durable_bytes = 0;
    std::uint64_t written_bytes = 0;
  };

  Core(std::shared_ptr<FileSystem> inner, std::vector<Fault> script, std::uint64_t seed,
       std::function<void(double)> sleep)
      : inner_(std::move(inner)),
        script_(std::move(script)),
        seed_(seed),
        sleep_(std::move(sleep)),
        seen_(script_.size(), 0) {
    if (!sleep_) {
      sleep_ = [](double seconds) {
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      };
    }
  }

  FileSystem& inner() { return *inner_; }

  Verdict Judge(FileOperation operation, const std::string& path) {
    Verdict verdict;
    double seconds = 0.0;
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < script_.size(); ++i) {
        const Fault& fault = script_[i];
        if (fault.operation != operation || !WildcardMatch(fault.path_pattern, path)) continue;
        const std::uint64_t number = seen_[i]++;
        if (number < fault.first || number - fault.first >= fault.count) continue;
        if (Draw(i, number) >= fault.probability) continue;
        ++injected_;
        switch (fault.kind) {
          case FaultKind::kLatency:
            seconds += fault.seconds;
            break;
          case FaultKind::kError:
            verdict.error_number = fault.error_number;
            break;
          case FaultKind::kShortRead:
            verdict.bytes = std::max<std::uint64_t>(1, fault.bytes);
            break;
          case FaultKind::kTornAppend:
            verdict.bytes = fault.bytes;
            verdict.error_number = fault.error_number;
            break;
        }
      }
    }
    if (seconds > 0.0) sleep_(seconds);
    return verdict;
  }

  // For operations that only kError and kLatency can hit.
  Status Check(FileOperation operation, const std::string& path) {
    const Verdict verdict = Judge(operation, path);
    if (verdict.error_number == 0) return {};
    return InjectedError(operation, path, verdict.error_number);
  }

  std::uint64_t injected() const {
    const std::lock_guard lock(mutex_);
    return injected_;
  }

  // Bookkeeping of appended files; a handle belongs to the incarnation that it was opened in.
  std::uint64_t StartAppending(const std::string& path, std::uint64_t size_bytes) {
    const std::lock_guard lock(mutex_);
    appended_.try_emplace(path, Appended{size_bytes, size_bytes});
    return incarnation_;
  }
  bool IsCurrent(std::uint64_t incarnation) const {
    const std::lock_guard lock(mutex_);
    return incarnation == incarnation_;
  }
  void Landed(const std::string& path, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    appended_[path].written_bytes += bytes;
  }
  void Synced(const std::string& path) {
    const std::lock_guard lock(mutex_);
    Appended& file = appended_[path];
    file.durable_bytes = file.written_bytes;
  }
  void SizeIsDurable(const std::string& path, std::optional<std::uint64_t> size_bytes) {
    const std::lock_guard lock(mutex_);
    if (size_bytes) {
      if (const auto it = appended_.find(path); it != appended_.end()) {
        it->second = Appended{*size_bytes, *size_bytes};
      }
    } else {
      appended_.erase(path);
    }
  }
  Status Crash(std::uint64_t kept_bytes) {
    std::map<std::string, Appended> files;
    {
      const std::lock_guard lock(mutex_);
      ++incarnation_;
      files.swap(appended_);
    }
    for (const auto& [path, file] : files) {
      const std::uint64_t unsynced = file.written_bytes - file.durable_bytes;
      if (unsynced <= kept_bytes) continue;
      WS_RETURN_IF_ERROR(inner_->Truncate(path, file.durable_bytes + kept_bytes));
    }
    return {};
  }

 private:
  // Uniform in [0, 1): a hash of (seed, fault, number).
  double Draw(std::size_t fault, std::uint64_t number) const {
    const std::array<std::uint64_t, 2> key = {fault, number};
    const std::uint64_t hash = XXH3_64bits_withSeed(key.data(), sizeof(key), seed_);
    return static_cast<double>(hash >> 11) * 0x1.0p-53;
  }

  const std::shared_ptr<FileSystem> inner_;
  const std::vector<Fault> script_;
  const std::uint64_t seed_;
  std::function<void(double)> sleep_;
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> seen_;
  std::uint64_t injected_ = 0;
  std::uint64_t incarnation_ = 0;
  std::map<std::string, Appended> appended_;

 public:
  class ReadFile;
  class WriteFile;
};

class FaultyFileSystem::Core::ReadFile final : public RandomAccessFile {
 public:
  ReadFile(std::shared_ptr<Core> core, std::unique_ptr<RandomAccessFile> inner)
      : core_(std::move(core)), inner_(std::move(inner)) {}

  Result<std::size_t> ReadAt(std::uint64_t offset, std::size_t size, char* out) const override {
    const Verdict verdict = core_->Judge(FileOperation::kRead, path());
    if (verdict.error_number != 0) {
      return InjectedError(FileOperation::kRead, path(), verdict.error_number);
    }
    if (verdict.bytes) {
      size = static_cast<std::size_t>(std::min<std::uint64_t>(size, *verdict.bytes));
    }
    return inner_->ReadAt(offset, size, out);
  }
  std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
  const std::string& path() const override { return inner_->path(); }

 private:
  const std::shared_ptr<Core> core_;
  const std::unique_ptr<RandomAccessFile> inner_;
};

class FaultyFileSystem::Core::WriteFile final : public AppendFile {
 public:
  WriteFile(std::shared_ptr<Core> core, std::unique_ptr<AppendFile> inner, std::string path,
            std::uint64_t incarnation)
      : core_(std::move(core)),
        inner_(std::move(inner)),
        path_(std::move(path)),
        incarnation_(incarnation) {}

  Status Append(std::string_view bytes) override {
    WS_RETURN_IF_ERROR(CheckAlive());
    const Verdict verdict = core_->Judge(FileOperation::kAppend, path_);
    if (verdict.bytes) {
      bytes = bytes.substr(0, static_cast<std::size_t>(*verdict.bytes));
    } else if (verdict.error_number != 0) {
      bytes = {};
    }
    const Status status = inner_->Append(bytes);
    if (status.ok()) core_->Landed(path_, bytes.size());
    if (status.ok() && verdict.error_number != 0) {
      failure_ = InjectedError(FileOperation::kAppend, path_, verdict.error_number);
    } else {
      failure_ = status;
    }
    return failure_;
  }
  Status Sync() override {
    WS_RETURN_IF_ERROR(CheckAlive());
    failure_ = core_->Check(FileOperation::kSync, path_);
    if (failure_.ok()) failure_ = inner_->Sync();
    if (failure_.ok()) core_->Synced(path_);
    return failure_;
  }
  Status Close() override {
    const Status alive = CheckAlive();
    const Status closed = inner_->Close();
    return alive.ok() ? closed : alive;
  }

 private:
  Status CheckAlive() const {
    if (!core_->IsCurrent(incarnation_)) {
      return Status::IoError("injected fault: the machine crashed after '" + path_ + "' was opened",
                             5);
    }
    return failure_;
  }

  const std::shared_ptr<Core> core_;
  const std::unique_ptr<AppendFile> inner_;
  const std::string path_;
  const std::uint64_t incarnation_;
  Status failure_;
};

FaultyFileSystem::FaultyFileSystem(std::shared_ptr<FileSystem> inner, std::vector<Fault> script,
                                   std::uint64_t seed, std::function<void(double)> sleep)
    : core_(std::make_shared<Core>(std::move(inner), std::move(script), seed, std::move(sleep))) {}

FaultyFileSystem::~FaultyFileSystem() = default;

Status FaultyFileSystem::Crash(std::uint64_t kept_bytes) { return core_->Crash(kept_bytes); }

std::uint64_t FaultyFileSystem::faults_injected() const { return core_->injected(); }

Result<std::unique_ptr<RandomAccessFile>> FaultyFileSystem::Open(const std::string& path) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kOpen, path));
  WS_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, core_->inner().Open(path));
  return std::unique_ptr<RandomAccessFile>(
      std::make_unique<Core::ReadFile>(core_, std::move(file)));
}

Result<FileInfo> FaultyFileSystem::Stat(const std::string& path) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kStat, path));
  return core_->inner().Stat(path);
}

Result<std::vector<FileInfo>> FaultyFileSystem::List(const std::string& folder) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kList, folder));
  return core_->inner().List(folder);
}

Result<std::unique_ptr<AppendFile>> FaultyFileSystem::OpenAppend(const std::string& path) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kOpenAppend, path));
  WS_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, core_->inner().OpenAppend(path));
  WS_ASSIGN_OR_RETURN(const FileInfo info, core_->inner().Stat(path));
  const std::uint64_t incarnation = core_->StartAppending(path, info.size_bytes);
  return std::unique_ptr<AppendFile>(
      std::make_unique<Core::WriteFile>(core_, std::move(file), path, incarnation));
}

Status FaultyFileSystem::WriteAtomically(const std::string& path, std::string_view bytes) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kWriteAtomically, path));
  WS_RETURN_IF_ERROR(core_->inner().WriteAtomically(path, bytes));
  core_->SizeIsDurable(path, std::nullopt);
  return {};
}

Result<std::string> FaultyFileSystem::ReadAll(const std::string& path, std::uint64_t limit_bytes) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kRead, path));
  return core_->inner().ReadAll(path, limit_bytes);
}

Status FaultyFileSystem::Truncate(const std::string& path, std::uint64_t size_bytes) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kTruncate, path));
  WS_RETURN_IF_ERROR(core_->inner().Truncate(path, size_bytes));
  core_->SizeIsDurable(path, size_bytes);
  return {};
}

Status FaultyFileSystem::CreateFolders(const std::string& path) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kCreateFolders, path));
  return core_->inner().CreateFolders(path);
}

Status FaultyFileSystem::Remove(const std::string& path) {
  WS_RETURN_IF_ERROR(core_->Check(FileOperation::kRemove, path));
  WS_RETURN_IF_ERROR(core_->inner().Remove(path));
  core_->SizeIsDurable(path, std::nullopt);
  return {};
}

}  // namespace widestream
