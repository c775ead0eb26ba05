#include "bindings/columns.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>

namespace widestream::python {
namespace {

namespace nb = nanobind;

template <typename T, typename Get>
nb::object Column(const std::vector<Piece>& pieces, Get get) {
  // Not std::vector: its bool is packed.
  std::unique_ptr<T[]> values(new T[pieces.size()]);
  for (std::size_t i = 0; i < pieces.size(); ++i) values[i] = static_cast<T>(get(pieces[i]));
  T* const data = values.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  values.release();
  const std::size_t shape[1] = {pieces.size()};
  return nb::cast(nb::ndarray<nb::numpy, T>(data, 1, shape, owner));
}

}  // namespace

nb::dict PieceColumns(const std::vector<Piece>& pieces) {
  nb::dict out;
  out["source"] = Column<std::uint32_t>(pieces, [](const Piece& p) { return p.source; });
  out["epoch"] = Column<std::uint32_t>(pieces, [](const Piece& p) { return p.epoch; });
  out["position"] = Column<std::uint64_t>(pieces, [](const Piece& p) { return p.position; });
  out["start"] = Column<std::uint32_t>(pieces, [](const Piece& p) { return p.start; });
  out["length"] = Column<std::uint32_t>(pieces, [](const Piece& p) { return p.length; });
  out["draw"] = Column<std::uint64_t>(pieces, [](const Piece& p) { return p.draw; });
  out["shard"] = Column<std::uint32_t>(pieces, [](const Piece& p) { return p.shard; });
  out["record"] = Column<std::uint64_t>(pieces, [](const Piece& p) { return p.record; });
  out["ids_hash"] = Column<std::uint64_t>(pieces, [](const Piece& p) { return p.ids_hash; });
  out["last"] = Column<bool>(pieces, [](const Piece& p) { return p.last; });
  return out;
}

nb::list LayoutOf(const StepPlan& plan) {
  nb::list out;
  for (const RankPlan& rank : plan.ranks) {
    nb::list microbatches;
    for (const MicrobatchPlan& microbatch : rank.microbatches)
      microbatches.append(nb::cast(microbatch.rows));
    out.append(microbatches);
  }
  return out;
}

}  // namespace widestream::python
