#include "engine/base/status.h"

#include <cstring>

namespace widestream {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kIoError:
      return "IoError";
    case StatusCode::kUnavailable:
      return "Unavailable";
    case StatusCode::kDeadlineExceeded:
      return "DeadlineExceeded";
    case StatusCode::kDataCorruption:
      return "DataCorruption";
    case StatusCode::kResourceExhausted:
      return "ResourceExhausted";
    case StatusCode::kCancelled:
      return "Cancelled";
    case StatusCode::kInternal:
      return "Internal";
  }
  return "Unknown";
}

Status::Status(StatusCode code, std::string message, int error_number) {
  if (code != StatusCode::kOk) {
    state_ = std::make_shared<const State>(State{code, error_number, std::move(message)});
  }
}

Status Status::IoError(std::string m, int error_number) {
  if (error_number != 0) {
    m += ": ";
    m += std::strerror(error_number);
  }
  return {StatusCode::kIoError, std::move(m), error_number};
}

const std::string& Status::message() const {
  static const std::string empty;
  return state_ ? state_->message : empty;
}

std::string Status::ToString() const {
  if (ok()) return "Ok";
  return std::string(StatusCodeName(code())) + ": " + message();
}

Status Status::WithContext(const std::string& context) const {
  if (ok()) return *this;
  return {code(), context + ": " + message(), error_number()};
}

}  // namespace widestream
