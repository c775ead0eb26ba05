#include "engine/base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace widestream {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return Status::InvalidArgument("odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  WS_ASSIGN_OR_RETURN(int half, Half(n));
  WS_ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}

TEST(Status, OkHasNoMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "Ok");
  EXPECT_EQ(Status().message(), "");
}

TEST(Status, ContextGoesBeforeTheMessageAndKeepsCodeAndErrno) {
  const Status s = Status::IoError("read", ENOENT).WithContext("source a");
  EXPECT_EQ(s.code(), StatusCode::kIoError);
  EXPECT_EQ(s.error_number(), ENOENT);
  EXPECT_EQ(s.message().rfind("source a: read: ", 0), 0U);
}

TEST(Result, MacrosPassValuesAndErrors) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().code(), StatusCode::kInvalidArgument);
}

TEST(Result, BuiltFromOkIsAnInternalError) {
  const Result<int> r = Status::Ok();
  EXPECT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace widestream
