#pragma once
#include <cstdint>
#include <vector>
#include "engine/base/status.h"
#include "engine/job/spec.h"
namespace widestream {
enum class Axis : std::uint8_t { kDp, kCp, kTp, kPp };
struct Place { std::uint32_t rank = 0, dp = 0, cp = 0, tp = 0, pp = 0; bool fetches = true; std::uint32_t leader = 0; bool first_stage = true, last_stage = true; };
class ClientPlaceTree {
 public:
  static Result<ClientPlaceTree> Make(const MeshSpec& mesh, std::vector<Axis>) { ClientPlaceTree t; for (std::uint32_t r = 0; r < mesh.dp; ++r) { Place p; p.rank = p.dp = p.leader = r; t.places_.push_back(p);} return t; }
  std::uint32_t world() const { return static_cast<std::uint32_t>(places_.size()); }
  const Place& place(std::uint32_t rank) const { return places_[rank]; }
 private:
  std::vector<Place> places_;
};
}
