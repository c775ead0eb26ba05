// Where a server gets its steps: implemented by the runtime, and by tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/status.h"
#include "engine/deliver/step.h"
#include "engine/plan/planner.h"

namespace widestream {

// One run of a stream from one state. Thread-safe. The destructor stops it.
class StepProvider {
 public:
  virtual ~StepProvider() = default;

  // The next step in order; null if it is not ready or the stream has `*ended`. Does not wait. An
  // error stays until a decision lets the stream be planned again.
  virtual Result<std::shared_ptr<const Step>> TryNext(bool* ended) = 0;
  // Whether the next step waits for the memory of earlier ones: the server then says who holds them
  // instead of waiting for ever. Does not wait.
  virtual bool WaitsForMemory() { return false; }
  // `wake` is called, from any thread and perhaps without need, whenever TryNext may have something
  // new. It takes no lock that is held while the provider is called, and is not called after the
  // destructor returned.
  virtual void NotifyWhenReady(std::function<void()> wake) = 0;
  // The following may wait. The state after the last step that TryNext returned, or before `step`
  // if that is retained.
  virtual Result<std::string> StateJson(std::optional<std::uint64_t> step) = 0;
  // The step at which the decision takes effect: at or after the first that TryNext has not
  // returned.
  virtual Result<std::uint64_t> Decide(Decision decision) = 0;
  // Makes the journal durable up to the last step that TryNext returned.
  virtual Status CommitJournal() = 0;
  // What the pipeline is doing, for people and reports.
  virtual std::string StatusJson() = 0;
  // Sources, shards, vocabulary and the like; opaque here, sent to every client once.
  virtual std::string DescriptionJson() = 0;
  // Ends all waiting; afterwards every call fails with Cancelled.
  virtual void Stop() = 0;
};

// Called by one thread at a time.
class SessionFactory {
 public:
  virtual ~SessionFactory() = default;
  // Begins the stream at a state ("" = at its beginning). `fork` accepts a state of another stream.
  // May take long.
  virtual Result<std::unique_ptr<StepProvider>> Open(const std::string& state_json, bool fork) = 0;
};

}  // namespace widestream
