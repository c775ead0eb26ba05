// SourceLoader: order -> read -> transform -> buffer, for one source.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/task_pool.h"
#include "engine/base/thread_annotations.h"
#include "engine/job/spec.h"
#include "engine/source/messages.h"
#include "engine/source/order.h"
#include "engine/source/sample.h"
#include "engine/transform/tokenizer.h"

namespace widestream {

struct SourceLoaderOptions {
  std::uint32_t source = 0;  // index in JobSpec::sources
  SourceSpec spec;
  std::uint64_t seed = 0;
  std::uint64_t record_bytes = 0;
  double held_out_fraction = 0;
  bool deliver_held_out = false;  // the validation stream: the held-out records, and only those
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::uint32_t> append;
  std::uint64_t read_ahead_bytes =
      4U << 20;  // read ahead until so much is buffered; never delays what is asked for
  // One of many sources: its reader keeps nothing decoded from one block to a later one. What a
  // page holds is transformed as a whole, since ids take less memory than text.
  bool lean = false;
  std::uint64_t incarnation = 0;
};

// Thread-safe. Buffers are read-ahead only: what it answers is a function of (source, seed, files)
// and the request. Blocks are read one after the other and transformed in parallel on the task
// pool. A fault of the source is kept and returned by every later call.
class SourceLoader {
 public:
  static Result<std::unique_ptr<SourceLoader>> Make(std::shared_ptr<FileSystem> fs, TaskPool* pool,
                                                    SourceLoaderOptions options, Manifest manifest);
  ~SourceLoader();  // waits for its tasks

  const Manifest& manifest() const { return reader_->manifest(); }
  std::optional<std::uint64_t> records() const { return reader_->records(); }

  // Sets the place to begin at; reading begins with the first request. Call once, before the rest.
  Status Start(const RestartPoint& point);
  // Says that this request will come; starts reading without waiting.
  void Prepare(const ReadRequest& request);
  // The batch that holds the record at (epoch, position), or the empty end-of-epoch batch at that
  // place. Waits until `deadline` (DeadlineExceeded names the source). A position before the
  // released watermark is InvalidArgument, a stale incarnation Unavailable. The batch shares
  // ownership of the block.
  Result<std::shared_ptr<const MetadataBatch>> Metadata(
      const ReadRequest& request, std::chrono::steady_clock::time_point deadline);
  // The ids of a record that Release has not passed. Waits like Metadata: after a restart the
  // record of a carried piece may not have been read again yet.
  Result<Ids> IdsOf(std::uint32_t epoch, std::uint64_t position,
                    std::chrono::steady_clock::time_point deadline);
  // No record before (epoch, position) will be asked for again.
  void Release(std::uint32_t epoch, std::uint64_t position);
  // Wakes all waiters with Cancelled and starts no more reads.
  void Stop();

  std::uint64_t buffered_bytes() const;

 private:
  struct Slot {
    std::shared_ptr<SampleBlock> block;
    std::uint32_t epoch = 0;
    std::uint64_t position = 0;
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;
    bool ready = false;
  };

  SourceLoader(TaskPool* pool, SourceLoaderOptions options, std::unique_ptr<BlockReader> reader);
  void MaybeRead() WS_REQUIRES(mutex_);
  // The planner has asked for half of the last block that is read or being read.
  bool LastBlockHalfUsed() const WS_REQUIRES(mutex_);
  // Tells the pool how soon this source's tasks are needed.
  void UpdateUrgency() WS_REQUIRES(mutex_);
  // The task must not hold mutex_ when it returns; its failure becomes the loader's fault.
  void Submit(const char* what, Task task) WS_REQUIRES(mutex_);
  void ReadTask();
  void TransformTask(const std::shared_ptr<Slot>& slot, std::shared_ptr<RawBlock> raw);
  void Transform(const RawBlock& raw, SampleBlock* out) const;
  std::string UnpackIds(const RawBlock& raw, std::string_view text,
                        std::vector<std::uint32_t>* ids) const;
  std::shared_ptr<Slot> Find(std::uint32_t epoch, std::uint64_t position) WS_REQUIRES(mutex_);
  Result<std::shared_ptr<Slot>> Await(std::uint32_t epoch, std::uint64_t position,
                                      std::chrono::steady_clock::time_point deadline)
      WS_REQUIRES(mutex_);
  void Fail(const Status& status) WS_REQUIRES(mutex_);

  TaskPool* const pool_;
  const SourceLoaderOptions options_;
  const std::uint64_t held_out_below_;
  const std::unique_ptr<BlockReader> reader_;  // used by the one read task in flight only

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Slot>> slots_ WS_GUARDED_BY(mutex_);
  std::uint64_t buffered_bytes_ WS_GUARDED_BY(mutex_) = 0;
  // Place after the last block read or being read, and the furthest place asked for.
  std::pair<std::uint32_t, std::uint64_t> read_to_ WS_GUARDED_BY(mutex_);
  std::pair<std::uint32_t, std::uint64_t> wanted_ WS_GUARDED_BY(mutex_);
  std::pair<std::uint32_t, std::uint64_t> released_ WS_GUARDED_BY(mutex_);
  bool started_ WS_GUARDED_BY(mutex_) = false;
  bool asked_ WS_GUARDED_BY(mutex_) = false;
  int waiters_ WS_GUARDED_BY(mutex_) = 0;
  int urgency_ WS_GUARDED_BY(mutex_) = 0;  // as the pool knows it
  bool stopped_ WS_GUARDED_BY(mutex_) = false;
  bool reading_ WS_GUARDED_BY(mutex_) = false;
  bool next_is_decoded_ WS_GUARDED_BY(mutex_) = false;  // the next block, in the reader's memory
  int tasks_ WS_GUARDED_BY(mutex_) = 0;
  Status fault_ WS_GUARDED_BY(mutex_);
};

}  // namespace widestream
