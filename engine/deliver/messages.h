// The messages between server and client, as values and as bytes. docs/formats/delivery.md.
// Decoders take hostile bytes: every count is checked before memory is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/construct/batch.h"
#include "engine/plan/planner.h"

namespace widestream::delivery {

inline constexpr std::size_t kMaxStateBytes = std::size_t{12} << 20;
// Texts above this size travel as a sealed memfd.
inline constexpr std::size_t kMaxInlineTextBytes = std::size_t{1} << 20;
// Of a text that comes as a memfd.
inline constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 31;
// NextRequest::after of who has had no step yet.
inline constexpr std::uint64_t kFromBeginning = UINT64_MAX;

struct Hello {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::string job_hash;
  std::vector<std::pair<std::string, std::string>> job_keys;
  std::string launcher_id;
  std::string state_json;
  bool fork = false;
  std::optional<std::uint64_t> begin_step;

  friend bool operator==(const Hello&, const Hello&) = default;
};

struct WelcomeMessage {
  std::int32_t host_pid = 0;
  std::string log_path;
  std::string description_json;
  std::uint32_t dp = 0, cp = 0, tp = 0, pp = 0;
  bool fetches = true;
  std::uint32_t leader = 0;
  std::uint64_t decisions = 0;

  friend bool operator==(const WelcomeMessage&, const WelcomeMessage&) = default;
};

// The tensors of one step for one place. The slab's descriptor comes with the frame when this
// connection sees it for the first time.
struct BatchMessage {
  std::uint64_t step = 0;
  std::uint64_t slab_id = 0;
  std::uint64_t slab_bytes = 0;     // of the file
  std::vector<std::uint64_t> gone;  // slabs that were given up: unmap them
  BatchView view;                   // without the plan
  std::uint64_t real_tokens = 0;    // of the whole step
  std::uint64_t supervised_tokens = 0;
  std::string digest;
  std::vector<double> costs;
  std::vector<std::uint64_t> tokens_by_source;
  std::vector<std::uint64_t> weights;
};

struct StateRequest {
  std::optional<std::uint64_t> step;
};

struct DecideRequest {
  std::uint64_t number = 0;  // of this rank's decisions, from 0
  Decision decision;
};

// A text, or the size of one that comes as a memfd with the frame.
struct TextMessage {
  std::uint64_t size_bytes = 0;
  std::string text;  // empty if it comes as a memfd
};

std::string Encode(const Status& error);
std::string Encode(const Hello& hello);
std::string Encode(const WelcomeMessage& welcome);
std::string Encode(const BatchMessage& batch);
std::string Encode(const StateRequest& request);
std::string Encode(const DecideRequest& request);
std::string Encode(const TextMessage& message);
std::string EncodeNumber(std::uint64_t number);  // next (after), release, plan, number

// The error that was sent, in `error`; the result is about the bytes.
Status DecodeError(std::string_view body, Status* error);
Result<Hello> DecodeHello(std::string_view body);
Result<WelcomeMessage> DecodeWelcome(std::string_view body);
// Also checked: every tensor lies inside the slab, is aligned and has a size that its shape gives.
Result<BatchMessage> DecodeBatch(std::string_view body);
Result<StateRequest> DecodeStateRequest(std::string_view body);
Result<DecideRequest> DecodeDecide(std::string_view body);
// `descriptor`: whether one came with the frame.
Result<TextMessage> DecodeText(std::string_view body, bool descriptor);
Result<std::uint64_t> DecodeNumber(std::string_view body);

}  // namespace widestream::delivery
