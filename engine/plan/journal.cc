#include "engine/plan/journal.h"

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/plan/journal_format.h"

namespace widestream {
namespace {

using journal_format::RecordType;

constexpr std::size_t kBufferBytes = 4U << 20;

const JournalContents::Manifest* FindManifest(const JournalContents& contents, std::uint32_t source,
                                              std::uint32_t epoch) {
  const auto found =
      std::find_if(contents.manifests.begin(), contents.manifests.end(),
                   [&](const auto& m) { return m.source == source && m.epoch == epoch; });
  return found == contents.manifests.end() ? nullptr : &*found;
}

Status Torn(const std::string& path, const JournalTear& tear) {
  return Status::DataCorruption(
      StrCat("journal ", path, " is damaged from byte ", tear.offset_bytes, " on (", tear.reason,
             "; ", tear.lost_bytes, " bytes",
             tear.records_follow ? "; whole records follow the damage, so check the disk" : "",
             "); repair the journal to go on from its last whole record"));
}

}  // namespace

const JournalContents::Step* JournalContents::Find(std::uint64_t step) const {
  const auto at =
      std::lower_bound(steps.begin(), steps.end(), step,
                       [](const Step& a, std::uint64_t number) { return a.step < number; });
  return at != steps.end() && at->step == step ? &*at : nullptr;
}

JournalReader::JournalReader(std::shared_ptr<FileSystem> files,
                             std::unique_ptr<RandomAccessFile> file)
    : files_(std::move(files)), file_(std::move(file)) {}

Result<std::unique_ptr<JournalReader>> JournalReader::Open(std::shared_ptr<FileSystem> files,
                                                           const std::string& path) {
  WS_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, files->Open(path));
  std::unique_ptr<JournalReader> reader(new JournalReader(std::move(files), std::move(file)));
  WS_ASSIGN_OR_RETURN(reader->contents_, journal_format::Scan(*reader->file_));
  if (reader->contents_.valid_bytes == 0) {
    const std::optional<JournalTear>& tear = reader->contents_.tear;
    if (tear) return Torn(path, *tear);
    return Status::DataCorruption(StrCat("journal ", path, " is empty; it has no header"));
  }
  return reader;
}

Result<StepPlan> JournalReader::ReadStep(std::uint64_t step) const {
  const JournalContents::Step* entry = contents_.Find(step);
  if (entry == nullptr) {
    const auto& steps = contents_.steps;
    return Status::NotFound(StrCat(
        "journal ", file_->path(), " has no step ", step, "; it has ",
        steps.empty()
            ? std::string("none")
            : StrCat(steps.size(), " from ", steps.front().step, " to ", steps.back().step)));
  }
  WS_ASSIGN_OR_RETURN(const auto record, journal_format::ReadRecord(*file_, entry->offset_bytes));
  return journal_format::ParseStep(record.payload);
}

Result<JournalManifest> JournalReader::ReadManifest(std::uint32_t source,
                                                    std::uint32_t epoch) const {
  const JournalContents::Manifest* entry = FindManifest(contents_, source, epoch);
  if (entry == nullptr) {
    return Status::NotFound(StrCat("journal ", file_->path(), " has no manifest of source ", source,
                                   ", epoch ", epoch));
  }
  WS_ASSIGN_OR_RETURN(const auto record, journal_format::ReadRecord(*file_, entry->offset_bytes));
  return journal_format::ParseManifest(record.payload);
}

Result<std::optional<JournalTear>> RepairJournal(const std::shared_ptr<FileSystem>& files,
                                                 const std::string& path,
                                                 bool even_if_records_follow) {
  JournalContents contents;
  {
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, files->Open(path));
    WS_ASSIGN_OR_RETURN(contents, journal_format::Scan(*file));
  }
  if (!contents.tear) return std::optional<JournalTear>();
  if (contents.tear->records_follow && !even_if_records_follow) {
    return Torn(path, *contents.tear);
  }
  WS_RETURN_IF_ERROR(files->Truncate(path, contents.valid_bytes));
  return std::move(contents.tear);
}

JournalWriter::JournalWriter(std::shared_ptr<FileSystem> files, std::string path)
    : files_(std::move(files)), path_(std::move(path)) {}

JournalWriter::~JournalWriter() = default;

Result<std::unique_ptr<JournalWriter>> JournalWriter::Open(std::shared_ptr<FileSystem> files,
                                                           const std::string& path,
                                                           const JournalIdentity& identity) {
  return OpenAny(std::move(files), path, identity, std::nullopt);
}

Result<std::unique_ptr<JournalWriter>> JournalWriter::OpenFork(std::shared_ptr<FileSystem> files,
                                                               const std::string& path,
                                                               const JournalIdentity& identity,
                                                               std::uint64_t step) {
  return OpenAny(std::move(files), path, identity, step);
}

Result<std::unique_ptr<JournalWriter>> JournalWriter::OpenAny(std::shared_ptr<FileSystem> files,
                                                              const std::string& path,
                                                              const JournalIdentity& identity,
                                                              std::optional<std::uint64_t> fork) {
  std::unique_ptr<JournalWriter> writer(new JournalWriter(std::move(files), path));
  const auto info = writer->files_->Stat(path);
  if (!info.ok() && info.status().code() != StatusCode::kNotFound) return info.status();
  const std::string header =
      journal_format::Frame(RecordType::kHeader, journal_format::HeaderPayload(identity));
  const bool create = !info.ok() || info->size_bytes == 0;
  if (create) {
    // At once whole: a crash leaves either no journal or one with a header.
    WS_RETURN_IF_ERROR(writer->files_->WriteAtomically(path, header));
  }
  {
    WS_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, writer->files_->Open(path));
    WS_ASSIGN_OR_RETURN(writer->contents_, journal_format::Scan(*file));
  }
  const std::optional<JournalTear>& tear = writer->contents_.tear;
  if (tear) return Torn(path, *tear);
  writer->written_bytes_ = writer->contents_.valid_bytes;
  const JournalIdentity& found = writer->contents_.identity;
  if (!fork && found.stream_hash != identity.stream_hash) {
    return Status::InvalidArgument(
        StrCat("journal ", path, " belongs to the stream ", Quoted(found.stream_hash),
               ", the job is ", Quoted(identity.stream_hash),
               "; resume with the job that wrote it, fork it, or use another run_dir"));
  }
  if (!fork && found.sources != identity.sources) {
    return Status::InvalidArgument(
        StrCat("journal ", path, " has ", found.sources.size(),
               " sources in another order or with other names than the job's ",
               identity.sources.size(), "; keep their order, fork it, or use another run_dir"));
  }
  WS_ASSIGN_OR_RETURN(writer->file_, writer->files_->OpenAppend(path));
  if (fork && !create) {
    const std::string payload = journal_format::ForkPayload(*fork, identity);
    WS_RETURN_IF_ERROR(writer->WriteNow(journal_format::Frame(RecordType::kFork, payload)));
    WS_RETURN_IF_ERROR(journal_format::Apply({RecordType::kFork, 0, payload}, writer->contents_));
  }
  return writer;
}

// All or nothing: what a failed append left behind is cut off again.
Status JournalWriter::AppendBytes(std::string_view bytes) {
  Status appended = file_->Append(bytes);
  if (appended.ok()) {
    written_bytes_ += bytes.size();
    synced_ = false;
    return appended;
  }
  // The file object stays failed, so a new one is opened after the rest was removed.
  Status recovered = files_->Truncate(path_, written_bytes_);
  if (recovered.ok()) {
    auto reopened = files_->OpenAppend(path_);
    recovered = reopened.status();
    if (reopened.ok()) file_ = std::move(reopened).value();
  }
  if (!recovered.ok()) {
    broken_ = recovered.WithContext(
        StrCat("journal ", path_, ": a failed append could not be undone; open the journal anew"));
  }
  return appended.WithContext(StrCat("journal ", path_, ": cannot append ", bytes.size(),
                                     " bytes at byte ", written_bytes_,
                                     "; nothing of it was kept: free space, then go on"));
}

Status JournalWriter::Flush() {
  WS_RETURN_IF_ERROR(broken_);
  if (buffer_.empty()) return Status::Ok();
  WS_RETURN_IF_ERROR(AppendBytes(buffer_));
  buffer_.clear();
  return Status::Ok();
}

Status JournalWriter::Commit() {
  WS_RETURN_IF_ERROR(Flush());
  if (synced_) return Status::Ok();
  Status synced = file_->Sync();
  if (!synced.ok()) {
    broken_ = synced.WithContext(StrCat(
        "journal ", path_, ": sync failed, so what is on disk is unknown; open the journal anew"));
    return broken_;
  }
  synced_ = true;
  contents_.valid_bytes = written_bytes_;
  return synced;
}

Status JournalWriter::Close() {
  WS_RETURN_IF_ERROR(Commit());
  broken_ = Status::InvalidArgument(StrCat("journal ", path_, " is closed"));
  return file_->Close();
}

Status JournalWriter::Buffer(const std::string& record) {
  WS_RETURN_IF_ERROR(broken_);
  if (buffer_.size() + record.size() > kBufferBytes) WS_RETURN_IF_ERROR(Flush());
  buffer_ += record;
  return Status::Ok();
}

Status JournalWriter::WriteNow(const std::string& record) {
  WS_RETURN_IF_ERROR(Flush());
  WS_RETURN_IF_ERROR(AppendBytes(record));
  return Commit();
}

Status JournalWriter::AppendStep(const StepPlan& plan) {
  WS_ASSIGN_OR_RETURN(const Hash128 digest, Hash128::FromHex(plan.digest));
  if (const JournalContents::Step* known = contents_.Find(plan.step)) {
    if (known->digest == digest) return Status::Ok();
    return Status::DataCorruption(
        StrCat("step ", plan.step, " has the digest ", plan.digest, ", but journal ", path_,
               " recorded ", known->digest.ToHex(),
               ": the data, a transform or the engine changed since; restore them, or fork"));
  }
  std::string payload = journal_format::StepPayload(plan, digest);
  if (payload.size() > journal_format::kMaxPayloadBytes) {
    return Status::ResourceExhausted(
        StrCat("step ", plan.step, " takes ", payload.size(), " bytes in the journal, more than ",
               journal_format::kMaxPayloadBytes, "; make the step smaller"));
  }
  const std::uint64_t offset = written_bytes_ + buffer_.size();
  WS_RETURN_IF_ERROR(Buffer(journal_format::Frame(RecordType::kStep, payload)));
  return journal_format::Apply({RecordType::kStep, offset, std::move(payload)}, contents_);
}

Status JournalWriter::AppendDecision(const Decision& decision) {
  if (decision.kind == Decision::Kind::kQuarantine &&
      decision.source >= contents_.identity.sources.size()) {
    return Status::InvalidArgument(StrCat("quarantine of source ", decision.source, " of ",
                                          contents_.identity.sources.size()));
  }
  std::string payload = Encode(decision);
  WS_RETURN_IF_ERROR(WriteNow(journal_format::Frame(RecordType::kDecision, payload)));
  return journal_format::Apply({RecordType::kDecision, written_bytes_, std::move(payload)},
                               contents_);
}

Status JournalWriter::AppendManifest(const JournalManifest& manifest) {
  if (manifest.source >= contents_.identity.sources.size()) {
    return Status::InvalidArgument(
        StrCat("manifest of source ", manifest.source, " of ", contents_.identity.sources.size()));
  }
  const auto* known = FindManifest(contents_, manifest.source, manifest.epoch);
  if (known != nullptr) {
    if (known->hash == manifest.hash) return Status::Ok();
    return Status::DataCorruption(
        StrCat("source ", contents_.identity.sources[manifest.source], ", epoch ", manifest.epoch,
               ": its files have the hash ", manifest.hash, ", but journal ", path_, " recorded ",
               known->hash, "; restore the files of this epoch, or fork"));
  }
  std::string payload = journal_format::ManifestPayload(manifest);
  if (payload.size() > journal_format::kMaxPayloadBytes) {
    return Status::ResourceExhausted(
        StrCat("a manifest of ", payload.size(), " bytes is too large for the journal"));
  }
  WS_RETURN_IF_ERROR(Flush());
  const std::uint64_t offset = written_bytes_;
  WS_RETURN_IF_ERROR(WriteNow(journal_format::Frame(RecordType::kManifest, payload)));
  return journal_format::Apply({RecordType::kManifest, offset, std::move(payload)}, contents_);
}

Status JournalWriter::AppendNote(std::string_view text) {
  if (text.size() > kBufferBytes) {
    return Status::InvalidArgument(
        StrCat("a note of ", text.size(), " bytes; give at most ", kBufferBytes));
  }
  WS_RETURN_IF_ERROR(Buffer(journal_format::Frame(RecordType::kNote, text)));
  contents_.notes.emplace_back(text);
  return Status::Ok();
}

}  // namespace widestream
