#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include "engine/base/status.h"
#include "engine/deliver/step.h"
#include "engine/plan/planner.h"
namespace widestream {
class StepProvider {
 public:
  virtual ~StepProvider() = default;
  virtual Result<std::shared_ptr<const Step>> TryNext(bool* ended) = 0;
  virtual void NotifyWhenReady(std::function<void()> wake) = 0;
  virtual Result<std::string> StateJson(std::optional<std::uint64_t> step) = 0;
  virtual Result<std::uint64_t> Decide(Decision decision) = 0;
  virtual Status CommitJournal() = 0;
  virtual std::string StatusJson() = 0;
  virtual std::string DescriptionJson() = 0;
  virtual void Stop() = 0;
};
}
