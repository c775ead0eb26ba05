#include "engine/runtime/run_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "engine/base/format_text.h"

namespace widestream {
namespace {

constexpr std::chrono::seconds kCommitInterval{1};

}  // namespace

// flock on a file of the folder: gone with the process, however it dies.
class RunJournal::FolderLock {
 public:
  static Result<std::unique_ptr<FolderLock>> Take(const std::string& run_dir) {
    const std::string path = run_dir + "/journal.lock";
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return Status::IoError(StrCat("cannot open ", path), errno);
    auto lock = std::unique_ptr<FolderLock>(new FolderLock(descriptor));
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Status::IoError(StrCat("cannot lock ", path), errno);
      return Status::Unavailable(
          StrCat("the run folder ", run_dir,
                 " is in use by another loader or process; close it, or choose "
                 "another run_dir"));
    }
    return lock;
  }
  ~FolderLock() { ::close(descriptor_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  const int descriptor_;
};

Result<std::unique_ptr<RunJournal>> RunJournal::Open(const std::shared_ptr<FileSystem>& fs,
                                                     const std::string& run_dir,
                                                     const JournalIdentity& identity,
                                                     std::uint64_t step, bool fork) {
  WS_RETURN_IF_ERROR(fs->CreateFolders(run_dir));
  WS_ASSIGN_OR_RETURN(std::unique_ptr<FolderLock> lock, FolderLock::Take(run_dir));
  const std::string path = run_dir + "/journal.bin";
  if (fs->Stat(path).ok()) {
    const auto repaired = RepairJournal(fs, path);
    if (!repaired.ok()) return repaired.status();
  }
  Result<std::unique_ptr<JournalWriter>> writer =
      fork ? JournalWriter::OpenFork(fs, path, identity, step)
           : JournalWriter::Open(fs, path, identity);
  if (!writer.ok()) return writer.status();
  return std::unique_ptr<RunJournal>(new RunJournal(std::move(lock), std::move(writer).value()));
}

RunJournal::RunJournal(std::unique_ptr<FolderLock> lock, std::unique_ptr<JournalWriter> writer)
    : lock_(std::move(lock)), writer_(std::move(writer)), committer_([this] { CommitLoop(); }) {}

RunJournal::~RunJournal() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  committer_.join();
  MutexLock lock(mutex_);
  // Nobody is left to tell; what is lost is planned again.
  static_cast<void>(writer_->Close());
}

void RunJournal::CommitLoop() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (!dirty_) {
      changed_.Wait(mutex_);
      continue;
    }
    const auto until = std::chrono::steady_clock::now() + kCommitInterval;
    while (!stopping_ && std::chrono::steady_clock::now() < until) {
      changed_.WaitUntil(mutex_, until);
    }
    if (dirty_ && fault_.ok()) fault_ = writer_->Commit();
    dirty_ = false;
  }
}

std::vector<Decision> RunJournal::DecisionsFrom(std::uint64_t step) const {
  MutexLock lock(mutex_);
  std::vector<Decision> out;
  for (const Decision& decision : writer_->contents().decisions) {
    if (decision.step >= step) out.push_back(decision);
  }
  return out;
}

Status RunJournal::AppendStep(const StepPlan& plan) {
  MutexLock lock(mutex_);
  WS_RETURN_IF_ERROR(fault_);
  WS_RETURN_IF_ERROR(writer_->AppendStep(plan));
  dirty_ = true;
  changed_.NotifyAll();
  return Status::Ok();
}

Status RunJournal::AppendDecision(const Decision& decision) {
  MutexLock lock(mutex_);
  WS_RETURN_IF_ERROR(fault_);
  return writer_->AppendDecision(decision);
}

Status RunJournal::AppendManifest(const JournalManifest& manifest) {
  MutexLock lock(mutex_);
  WS_RETURN_IF_ERROR(fault_);
  return writer_->AppendManifest(manifest);
}

Status RunJournal::Commit() {
  MutexLock lock(mutex_);
  WS_RETURN_IF_ERROR(fault_);
  dirty_ = false;
  return writer_->Commit();
}

}  // namespace widestream
