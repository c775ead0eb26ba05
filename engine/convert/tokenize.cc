#include "engine/convert/tokenize.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/base/thread_annotations.h"
#include "engine/convert/tokenize_part.h"
#include "engine/source/manifest.h"
#include "engine/storage/rename.h"

namespace widestream {
namespace {

using internal::EncodedBlock;
using internal::PartState;
using internal::TokenizePart;

constexpr int kVersion = 1;
constexpr std::uint64_t kMaxSettingsBytes = 1U << 20;
constexpr std::size_t kCopyBytes = 4U << 20;
constexpr std::uint32_t kMaxThreads = 1024;

class TokenizerEncoder final : public TextEncoder {
 public:
  explicit TokenizerEncoder(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}
  Status Encode(std::span<const std::string_view> texts, IdBuffer<std::uint32_t>* ids,
                std::vector<std::uint64_t>* ends) const override {
    return tokenizer_->EncodeBatch<std::uint32_t>(texts, {}, /*threads=*/1, ids, ends);
  }
  std::uint32_t VocabularySize() const override { return tokenizer_->VocabularySize(); }
  std::string Digest() const override { return tokenizer_->Digest(); }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
};

TokenizeCounts Sum(const TokenizeCounts& a, const TokenizeCounts& b) {
  return {.documents = a.documents + b.documents,
          .empty = a.empty + b.empty,
          .bad = a.bad + b.bad,
          .tokens = a.tokens + b.tokens,
          .text_bytes = a.text_bytes + b.text_bytes};
}

class Job final : public TokenizeJob {
 public:
  Job(std::shared_ptr<FileSystem> fs, std::shared_ptr<const TextEncoder> encoder,
      TokenizeOptions options, Manifest manifest)
      : fs_(std::move(fs)),
        encoder_(std::move(encoder)),
        options_(std::move(options)),
        manifest_(std::move(manifest)),
        folder_(options_.output + ".parts"),
        type_(encoder_->VocabularySize() <= 65536 ? MegatronIdType::kUint16
                                                  : MegatronIdType::kInt32) {}

  Status Prepare() {
    for (const char* suffix : {".bin", ".idx"}) {
      const Result<FileInfo> there = fs_->Stat(options_.output + suffix);
      if (there.status().code() == StatusCode::kNotFound) continue;
      WS_RETURN_IF_ERROR(there.status());
      if (there->is_directory) {
        return Status::InvalidArgument("'" + options_.output + suffix + "' is a folder");
      }
      // A .bin without its .idx is what an interrupted run leaves at its very end.
      const bool unfinished = std::string_view(suffix) == ".bin" && !Exists(".idx");
      if (!options_.overwrite && !(unfinished && Exists(".parts"))) {
        return Status::InvalidArgument("'" + options_.output + suffix +
                                       "' is there already; remove it, or give --force");
      }
    }
    const std::string settings_path = folder_ + "/settings.state";
    if (options_.restart && Exists(".parts")) WS_RETURN_IF_ERROR(RemoveFolder());
    WS_RETURN_IF_ERROR(fs_->CreateFolders(folder_));
    const std::string settings = Settings();
    const Result<std::string> found = fs_->ReadAll(settings_path, kMaxSettingsBytes);
    if (found.ok()) {
      WS_RETURN_IF_ERROR(CompareSettings(*found, settings));
    } else if (found.status().code() == StatusCode::kNotFound) {
      WS_RETURN_IF_ERROR(fs_->WriteAtomically(settings_path, settings));
    } else {
      return found.status();
    }
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < manifest_.shards.size(); ++i) {
      Slot slot;
      slot.part = std::make_unique<TokenizePart>(fs_, manifest_.shards[i], manifest_.format,
                                                 options_, folder_, i);
      WS_RETURN_IF_ERROR(slot.part->Restore());
      slot.all_read = slot.finished = slot.part->state().done;
      slot.done = slot.part->state();
      resumed_ = Sum(resumed_, slot.done.counts);
      slots_.push_back(std::move(slot));
    }
    return {};
  }

  Status Run(const CancellationToken& token) override {
    WS_RETURN_IF_ERROR(Encode(token));
    {
      const MutexLock lock(mutex_);
      assembling_ = true;
    }
    return Assemble(token);
  }

  TokenizeProgress Progress() const override {
    const MutexLock lock(mutex_);
    TokenizeProgress progress;
    progress.resumed = resumed_;
    progress.shards = manifest_.shards.size();
    progress.assembling = assembling_;
    for (const Slot& slot : slots_) {
      progress.all = Sum(progress.all, slot.done.counts);
      progress.shards_done += slot.finished ? 1 : 0;
      progress.input_bytes += slot.part->size_bytes();
      progress.input_bytes_done += slot.part->BytesBefore(slot.done);
    }
    return progress;
  }
  std::uint32_t id_bytes() const override {
    return static_cast<std::uint32_t>(MegatronIdBytes(type_));
  }
  std::string FirstBadRecord() const override {
    const MutexLock lock(mutex_);
    return bad_records_.empty() ? "" : bad_records_.begin()->second;
  }

 private:
  struct Slot {
    std::unique_ptr<TokenizePart> part;
    bool reading = false;
    bool writing = false;
    bool all_read = false;
    bool finished = false;
    std::uint64_t next_read = 0;   // numbers of blocks
    std::uint64_t next_write = 0;  // those between the two are being encoded, or wait in `ready`
    std::map<std::uint64_t, EncodedBlock> ready;
    PartState done;  // the part's state, for Progress
  };

  bool Exists(const char* suffix) const { return fs_->Stat(options_.output + suffix).ok(); }

  // What decides the output, one key a line of JSON.
  std::string Settings() const {
    const nlohmann::json object = {{"version", kVersion},
                                   {"input", manifest_.hash},
                                   {"format", FormatName(manifest_.format)},
                                   {"text", options_.input.text},
                                   {"tokenizer", encoder_->Digest()},
                                   {"append", options_.append},
                                   {"id_bytes", MegatronIdBytes(type_)},
                                   {"skip_bad_records", options_.skip_bad_records},
                                   {"record_bytes", options_.record_bytes}};
    return object.dump(1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
           "\n";
  }

  Status CompareSettings(const std::string& found, const std::string& wanted) const {
    if (found == wanted) return {};
    const nlohmann::json now = nlohmann::json::parse(wanted, nullptr, false);
    const nlohmann::json before = nlohmann::json::parse(found, nullptr, false);
    std::string keys;
    if (before.is_object()) {
      for (const auto& [key, value] : now.items()) {
        if (before.contains(key) && before[key] == value) continue;
        keys += (keys.empty() ? "" : ", ") + key;
      }
    }
    return Status::InvalidArgument("'" + folder_ + "' holds the work of an interrupted run with " +
                                   (keys.empty() ? "other settings" : "another " + keys) +
                                   "; give the same again to go on, or --restart to drop it");
  }

  // ---- encoding ----

  Status Encode(const CancellationToken& token) {
    std::uint32_t threads = options_.threads;
    if (threads == 0) threads = std::max(1U, std::thread::hardware_concurrency());
    threads = std::min(threads, kMaxThreads);
    {
      const MutexLock lock(mutex_);
      window_ = 2 * std::uint64_t{threads} + 1;
    }
    std::vector<std::thread> workers;
    workers.reserve(threads);
    for (std::uint32_t i = 0; i + 1 < threads; ++i) {
      try {
        workers.emplace_back([this, &token] { Work(token); });
      } catch (const std::system_error&) {
        break;  // the system refuses more threads: those that run do the work
      }
    }
    Work(token);
    for (std::thread& worker : workers) worker.join();
    const MutexLock lock(mutex_);
    return failure_;
  }

  void Work(const CancellationToken& token) {
    Status status;
    try {
      status = WorkUntilDone(token);
    } catch (const std::bad_alloc&) {
      status = Status::ResourceExhausted("there is no memory left; use fewer threads");
    }
    if (status.ok()) return;
    const MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
    changed_.NotifyAll();
  }

  // Takes the next block of the first shard that nobody reads, encodes it, and writes what is in
  // order. So one shard keeps all threads busy as long as reading is the faster part.
  Status WorkUntilDone(const CancellationToken& token) {
    RecordBlock block;
    for (;;) {
      Slot* slot = nullptr;
      std::uint64_t number = 0;
      {
        MutexLock lock(mutex_);
        for (;;) {
          WS_RETURN_IF_ERROR(failure_);
          bool left = false;
          slot = Pick(&left);
          if (slot != nullptr || !left) break;
          changed_.Wait(mutex_);
        }
        if (slot == nullptr) return {};
        slot->reading = true;
        number = slot->next_read++;
      }
      WS_RETURN_IF_ERROR(token.Check());
      PartState after;
      std::uint64_t first_record = 0;
      WS_RETURN_IF_ERROR(slot->part->Read(&block, &after, &first_record));
      {
        const MutexLock lock(mutex_);
        slot->reading = false;
        slot->all_read = after.done;
        changed_.NotifyAll();
      }
      EncodedBlock encoded = slot->part->Encode(*encoder_, type_, block, after, first_record);
      WS_RETURN_IF_ERROR(Deliver(slot, number, std::move(encoded)));
    }
  }

  Slot* Pick(bool* left) WS_REQUIRES(mutex_) {
    while (first_unread_ < slots_.size() && slots_[first_unread_].all_read) ++first_unread_;
    for (std::size_t i = first_unread_; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (slot.all_read) continue;
      *left = true;
      if (!slot.reading && slot.next_read - slot.next_write < window_) return &slot;
    }
    return nullptr;
  }

  Status Deliver(Slot* slot, std::uint64_t number, EncodedBlock encoded) {
    mutex_.Lock();
    slot->ready.emplace(number, std::move(encoded));
    if (slot->writing) {
      mutex_.Unlock();
      return {};
    }
    slot->writing = true;
    Status status;
    while (status.ok() && !slot->ready.empty() && slot->ready.begin()->first == slot->next_write) {
      const EncodedBlock next = std::move(slot->ready.begin()->second);
      slot->ready.erase(slot->ready.begin());
      mutex_.Unlock();
      status = slot->part->Write(next);
      const PartState state = slot->part->state();
      mutex_.Lock();
      ++slot->next_write;
      if (!next.bad_record.empty()) {
        bad_records_.try_emplace(static_cast<std::size_t>(slot - slots_.data()), next.bad_record);
      }
      if (status.ok()) {
        slot->done = state;
        slot->finished = state.done;
      }
      changed_.NotifyAll();
    }
    slot->writing = false;
    mutex_.Unlock();
    return status;
  }

  // ---- putting the output together ----

  Status Assemble(const CancellationToken& token) {
    std::vector<std::string> ids;
    std::vector<std::string> lengths;
    std::uint64_t ids_bytes = 0;
    {
      const MutexLock lock(mutex_);
      for (const Slot& slot : slots_) {
        if (slot.part->state().counts.documents == 0) continue;
        ids.push_back(slot.part->ids_path());
        lengths.push_back(slot.part->lengths_path());
        ids_bytes += slot.part->state().ids_bytes;
      }
    }
    if (ids_bytes == 0) {
      return Status::InvalidArgument("the input gives no token, so there is no data set to write");
    }
    const std::string index = folder_ + "/idx";
    WS_RETURN_IF_ERROR(RemoveIfThere(index));
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> index_file, fs_->OpenAppend(index));
    const auto visit_all = [&](const LengthVisitor& visit) -> Status {
      for (const std::string& path : lengths) WS_RETURN_IF_ERROR(VisitLengths(path, visit));
      return {};
    };
    WS_RETURN_IF_ERROR(WriteMegatronIndex(type_, visit_all, index_file.get()));
    WS_RETURN_IF_ERROR(index_file->Sync());
    WS_RETURN_IF_ERROR(index_file->Close());
    std::string data = ids.front();  // of a single shard as it is
    if (ids.size() > 1) {
      data = folder_ + "/bin";
      WS_RETURN_IF_ERROR(Concatenate(ids, data, token));
    }
    // From here on an old output is gone; the .idx comes last, and says that the new one is whole.
    WS_RETURN_IF_ERROR(RemoveIfThere(options_.output + ".idx"));
    WS_RETURN_IF_ERROR(RenameLocalFile(data, options_.output + ".bin"));
    WS_RETURN_IF_ERROR(RenameLocalFile(index, options_.output + ".idx"));
    return RemoveFolder();
  }

  Status VisitLengths(const std::string& path, const LengthVisitor& visit) const {
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs_->Open(path));
    std::string bytes;
    std::vector<std::int32_t> some;
    for (std::uint64_t at = 0; at < file->size_bytes(); at += bytes.size()) {
      bytes.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, file->size_bytes() - at)));
      WS_RETURN_IF_ERROR(ReadExactly(*file, at, bytes.size(), bytes.data()));
      some.resize(bytes.size() / sizeof(std::int32_t));
      std::memcpy(some.data(), bytes.data(), some.size() * sizeof(std::int32_t));
      WS_RETURN_IF_ERROR(visit(some));
    }
    return {};
  }

  Status Concatenate(const std::vector<std::string>& paths, const std::string& to,
                     const CancellationToken& token) const {
    WS_RETURN_IF_ERROR(RemoveIfThere(to));
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> out, fs_->OpenAppend(to));
    std::string buffer(kCopyBytes, '\0');
    for (const std::string& path : paths) {
      WS_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs_->Open(path));
      for (std::uint64_t at = 0; at < file->size_bytes();) {
        WS_RETURN_IF_ERROR(token.Check());
        const auto bytes =
            static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, file->size_bytes() - at));
        WS_RETURN_IF_ERROR(ReadExactly(*file, at, bytes, buffer.data()));
        WS_RETURN_IF_ERROR(out->Append(std::string_view(buffer.data(), bytes)));
        at += bytes;
      }
    }
    WS_RETURN_IF_ERROR(out->Sync());
    return out->Close();
  }

  Status RemoveIfThere(const std::string& path) const {
    const Status status = fs_->Remove(path);
    return status.error_number() == ENOENT ? Status() : status;
  }

  // Removes only files that a run makes there; anything else stays, and so does the folder.
  Status RemoveFolder() const {
    WS_ASSIGN_OR_RETURN(const std::vector<FileInfo> files, fs_->List(folder_));
    for (const FileInfo& file : files) {
      if (file.is_directory) {
        return Status::InvalidArgument("'" + file.path + "' is a folder, which no run of this " +
                                       "program makes; remove it by hand");
      }
      WS_RETURN_IF_ERROR(fs_->Remove(file.path));
    }
    return fs_->Remove(folder_);
  }

  const std::shared_ptr<FileSystem> fs_;
  const std::shared_ptr<const TextEncoder> encoder_;
  const TokenizeOptions options_;
  const Manifest manifest_;
  const std::string folder_;
  const MegatronIdType type_;

  mutable Mutex mutex_;
  CondVar changed_;
  // The vector is complete after Prepare; a part itself is its reader's and its writer's.
  std::vector<Slot> slots_ WS_GUARDED_BY(mutex_);
  std::size_t first_unread_ WS_GUARDED_BY(mutex_) = 0;
  std::uint64_t window_ WS_GUARDED_BY(mutex_) = 1;  // blocks of a shard in work at most
  TokenizeCounts resumed_ WS_GUARDED_BY(mutex_);
  bool assembling_ WS_GUARDED_BY(mutex_) = false;
  std::map<std::size_t, std::string> bad_records_ WS_GUARDED_BY(mutex_);  // first, by shard
  Status failure_ WS_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<TextEncoder> MakeTextEncoder(std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_unique<TokenizerEncoder>(std::move(tokenizer));
}

Result<std::unique_ptr<TokenizeJob>> TokenizeJob::Make(std::shared_ptr<FileSystem> fs,
                                                       std::shared_ptr<const TextEncoder> encoder,
                                                       TokenizeOptions options) {
  for (const std::uint32_t id : options.append) {
    if (id < encoder->VocabularySize()) continue;
    return Status::InvalidArgument("the id " + std::to_string(id) +
                                   " to append is not in the vocabulary, which has " +
                                   std::to_string(encoder->VocabularySize()));
  }
  if (options.output.empty() || options.output.back() == '/') {
    return Status::InvalidArgument("the output '" + options.output +
                                   "' must be a path without suffix, such as data/novels");
  }
  // An output that lies in the folder of the input is of a known format, too.
  WS_ASSIGN_OR_RETURN(Manifest manifest,
                      BuildManifest(*fs, options.input, options.output + ".idx"));
  if (IsTokenized(manifest.format)) {
    return Status::InvalidArgument("'" + manifest.shards.front().path +
                                   "' holds ids already; give files of text to tokenize");
  }
  auto job = std::make_unique<Job>(std::move(fs), std::move(encoder), std::move(options),
                                   std::move(manifest));
  WS_RETURN_IF_ERROR(job->Prepare());
  return std::unique_ptr<TokenizeJob>(std::move(job));
}

}  // namespace widestream
