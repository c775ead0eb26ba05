// C++ buffers as numpy arrays that own them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "engine/transform/id_buffer.h"

namespace widestream::python {

// The numbers of a vector as a one-dimensional numpy array.
template <typename T>
nanobind::object ToNumpy(std::vector<T> values) {
  namespace nb = nanobind;
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = owned->data();
  const std::size_t size = owned->size();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

// The ids of a buffer as a one-dimensional numpy array; what it reserved beyond them is given back.
template <typename Id>
nanobind::object ToNumpy(IdBuffer<Id> ids) {
  namespace nb = nanobind;
  const std::size_t size = ids.size();
  const std::size_t reserved = ids.capacity();
  Id* data = ids.Release();
  if (data != nullptr && reserved > size + size / 8) {
    // A failed shrink leaves the block as it is.
    void* const shrunk = std::realloc(data, (size == 0 ? 1 : size) * sizeof(Id));
    if (shrunk != nullptr) data = static_cast<Id*>(shrunk);
  }
  if (data == nullptr) return ToNumpy(std::vector<Id>());
  nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  return nb::cast(nb::ndarray<nb::numpy, Id, nb::ndim<1>>(data, {size}, owner));
}

}  // namespace widestream::python
