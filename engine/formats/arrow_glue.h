// Loads the Arrow glue and carries errors over its C ABI.
#pragma once

#include "engine/base/status.h"
#include "engine/formats/arrow/glue_abi.h"

namespace widestream {

// Loads the glue at the first call; a failure is tried again at the next. The table lives as long
// as the process. Thread-safe.
Result<const ws_arrow_glue*> LoadArrowGlue();

// The Status that the glue reported.
Status FromGlueError(const ws_arrow_error& error);
// Fills `error` and returns its code (0 if `status` is OK).
std::int32_t ToGlueError(const Status& status, ws_arrow_error* error);

}  // namespace widestream
