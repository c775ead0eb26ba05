// Putting a finished file in its place.
#pragma once

#include <string>

#include "engine/base/status.h"

namespace widestream {

// Renames a file of this machine, over an existing one if need be, and makes the new name durable.
// Both paths must be on one file system. The file's content must have been synced before.
Status RenameLocalFile(const std::string& from, const std::string& to);

}  // namespace widestream
