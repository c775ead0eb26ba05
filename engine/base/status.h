// Status and Result<T>: how every fallible call of the engine reports failure. No exceptions cross
// a public function.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace widestream {

// Named by what the caller should do.
enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,    // fix the input
  kNotFound = 2,           // fix the path or the name
  kIoError = 3,            // look at the machine; carries errno
  kUnavailable = 4,        // retry with back-off
  kDeadlineExceeded = 5,   // retry or raise the limit
  kDataCorruption = 6,     // skip within the budget, mend the shard
  kResourceExhausted = 7,  // lower a bound
  kCancelled = 8,          // stop quietly
  kInternal = 9,           // report a bug
};

const char* StatusCodeName(StatusCode code);

// A value, cheap to copy (one pointer). Thread-safe like a shared_ptr. A message has three parts:
// what failed and where (source, file, record), what was found and expected, what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message, int error_number = 0);

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string m) {
    return {StatusCode::kInvalidArgument, std::move(m)};
  }
  static Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
  // Appends strerror(error_number) to the message.
  static Status IoError(std::string m, int error_number);
  static Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
  static Status DeadlineExceeded(std::string m) {
    return {StatusCode::kDeadlineExceeded, std::move(m)};
  }
  static Status DataCorruption(std::string m) {
    return {StatusCode::kDataCorruption, std::move(m)};
  }
  static Status ResourceExhausted(std::string m) {
    return {StatusCode::kResourceExhausted, std::move(m)};
  }
  static Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
  static Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

  bool ok() const { return state_ == nullptr; }
  StatusCode code() const { return state_ ? state_->code : StatusCode::kOk; }
  const std::string& message() const;
  int error_number() const { return state_ ? state_->error_number : 0; }
  // "DataCorruption: text"; "Ok" when ok.
  std::string ToString() const;
  // The same status with `context + ": "` before the message.
  Status WithContext(const std::string& context) const;

 private:
  struct State {
    StatusCode code;
    int error_number;
    std::string message;
  };
  std::shared_ptr<const State> state_;
};

// A value or the Status that says why there is none. Building one from an OK status is a
// programming error and gives an Internal status.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : value_(std::in_place_index<1>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status)                                      // NOLINT(google-explicit-constructor)
      : value_(std::in_place_index<0>,
               status.ok() ? Status::Internal("a Result was built from an OK status")
                           : std::move(status)) {}

  bool ok() const { return value_.index() == 1; }
  Status status() const { return ok() ? Status() : std::get<0>(value_); }
  // Requires ok().
  T& value() & { return std::get<1>(value_); }
  const T& value() const& { return std::get<1>(value_); }
  T&& value() && { return std::get<1>(std::move(value_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<Status, T> value_;
};

}  // namespace widestream

#define WS_CONCAT_INNER(a, b) a##b
#define WS_CONCAT(a, b) WS_CONCAT_INNER(a, b)
// Returns the status of `expr` from this function unless it is OK.
#define WS_RETURN_IF_ERROR(expr)              \
  do {                                        \
    ::widestream::Status ws_status_ = (expr); \
    if (!ws_status_.ok()) return ws_status_;  \
  } while (false)
// WS_ASSIGN_OR_RETURN(auto x, F()): assigns the value of a Result, or returns its status.
// NOLINTBEGIN(bugprone-macro-parentheses): lhs may be a declaration.
#define WS_ASSIGN_OR_RETURN(lhs, expr) \
  WS_ASSIGN_OR_RETURN_IMPL(WS_CONCAT(ws_result_, __LINE__), lhs, expr)
#define WS_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                             \
  if (!result.ok()) return result.status();         \
  lhs = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
