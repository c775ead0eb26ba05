#include "engine/formats/arrow_glue.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/formats/parquet.h"
#include "engine/storage/file_system.h"
#include "engine/storage/wildcard.h"

namespace widestream {
namespace {

constexpr char kAdvice[] =
    ": install the pyarrow version that this widestream was built for, or set "
    "WIDESTREAM_ARROW_GLUE to a libwidestream_arrow*.so built for yours";

struct Loader {
  std::mutex mutex;
  std::string path;  // of SetArrowGluePath
  std::string loaded_path;
  const ws_arrow_glue* glue = nullptr;
};

Loader& TheLoader() {
  // Never destroyed: readers may outlive static destructors.
  static Loader* const loader = new Loader;
  return *loader;
}

// The folder of the library or program that holds this function.
std::string OwnFolder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&TheLoader), &info) == 0 ||
      info.dli_fname == nullptr) {
    return {};
  }
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

Result<std::string> FindGlue(const Loader& loader) {
  if (!loader.path.empty()) return loader.path;
  if (const char* path = std::getenv("WIDESTREAM_ARROW_GLUE"); path != nullptr && *path != '\0') {
    return std::string(path);
  }
  const std::string folder = OwnFolder();
  const auto entries = LocalFileSystem()->List(folder);
  std::string found;
  if (entries.ok()) {
    for (const FileInfo& entry : *entries) {
      const std::string name = entry.path.substr(entry.path.rfind('/') + 1);
      if (name == "libwidestream_arrow.so") return entry.path;
      if (WildcardMatch("libwidestream_arrow_*.so", name)) found = entry.path;
    }
  }
  if (!found.empty()) return found;
  return Status::NotFound("reading Parquet needs libwidestream_arrow*.so, and '" + folder +
                          "' has none" + kAdvice);
}

}  // namespace

Status SetArrowGluePath(const std::string& path) {
  Loader& loader = TheLoader();
  const std::lock_guard lock(loader.mutex);
  if (loader.glue != nullptr && path != loader.loaded_path) {
    return Status::InvalidArgument("the Arrow glue '" + loader.loaded_path +
                                   "' is loaded already, so '" + path +
                                   "' cannot be: set its path before the first Parquet source");
  }
  loader.path = path;
  return {};
}

Result<const ws_arrow_glue*> LoadArrowGlue() {
  Loader& loader = TheLoader();
  const std::lock_guard lock(loader.mutex);
  if (loader.glue != nullptr) return loader.glue;
  WS_ASSIGN_OR_RETURN(const std::string path, FindGlue(loader));
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return Status::NotFound("reading Parquet needs '" + path + "', which does not load (" +
                            (reason != nullptr ? reason : "unknown reason") + ")" + kAdvice);
  }
  const auto function =
      reinterpret_cast<ws_arrow_glue_function>(::dlsym(library, WS_ARROW_GLUE_SYMBOL));
  const ws_arrow_glue* glue = function == nullptr ? nullptr : function();
  if (glue == nullptr || glue->version != WS_ARROW_GLUE_VERSION ||
      glue->struct_size != sizeof(ws_arrow_glue)) {
    ::dlclose(library);
    return Status::InvalidArgument("'" + path + "' is not the Arrow glue of this version (" +
                                   WS_ARROW_GLUE_SYMBOL + ")" + kAdvice);
  }
  loader.glue = glue;
  loader.loaded_path = path;
  return glue;
}

Status FromGlueError(const ws_arrow_error& error) {
  const bool known = error.code >= static_cast<std::int32_t>(StatusCode::kInvalidArgument) &&
                     error.code <= static_cast<std::int32_t>(StatusCode::kInternal);
  std::string message(error.message, ::strnlen(error.message, sizeof(error.message)));
  // Arrow's messages may have several lines, ours have one.
  while (!message.empty() && message.back() == '\n') message.pop_back();
  for (std::size_t at = 0; (at = message.find('\n', at)) != std::string::npos;) {
    message.replace(at, 1, "; ");
  }
  return {known ? static_cast<StatusCode>(error.code) : StatusCode::kInternal, std::move(message),
          error.error_number};
}

std::int32_t ToGlueError(const Status& status, ws_arrow_error* error) {
  error->code = static_cast<std::int32_t>(status.code());
  error->error_number = status.error_number();
  const std::string& message = status.message();
  const std::size_t size = std::min(message.size(), sizeof(error->message) - 1);
  std::memcpy(error->message, message.data(), size);
  error->message[size] = '\0';
  return error->code;
}

}  // namespace widestream
