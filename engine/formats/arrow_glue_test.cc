#include "engine/formats/arrow_glue.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "engine/formats/parquet.h"

namespace widestream {
namespace {

// This program never loads a glue, so its path can be set again and again.
TEST(ArrowGlue, AnAbsentOrWrongLibrarySaysWhatToDo) {
  ASSERT_TRUE(SetArrowGluePath("/nowhere/libwidestream_arrow.so").ok());
  Status status = LoadArrowGlue().status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/nowhere/libwidestream_arrow.so"), std::string::npos);
  EXPECT_NE(status.message().find("WIDESTREAM_ARROW_GLUE"), std::string::npos);

  ASSERT_TRUE(SetArrowGluePath("libz.so.1").ok());  // a library, but not a glue
  status = LoadArrowGlue().status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("pyarrow"), std::string::npos);
  ASSERT_TRUE(SetArrowGluePath("").ok());
}

TEST(ArrowGlue, ErrorsKeepCodeErrnoAndMessage) {
  ws_arrow_error error{};
  EXPECT_EQ(ToGlueError(Status(), &error), 0);
  const Status status = Status::IoError("cannot read", EIO);
  EXPECT_NE(ToGlueError(status, &error), 0);
  EXPECT_EQ(FromGlueError(error).code(), StatusCode::kIoError);
  EXPECT_EQ(FromGlueError(error).error_number(), EIO);
  EXPECT_EQ(FromGlueError(error).message(), status.message());
  ToGlueError(Status::Internal(std::string(5000, 'x')), &error);
  EXPECT_EQ(FromGlueError(error).message().size(), sizeof(error.message) - 1);
  error.code = 77;
  EXPECT_EQ(FromGlueError(error).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace widestream
