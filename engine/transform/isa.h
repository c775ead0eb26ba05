// Which vector instructions the machine has.
#pragma once

#include <cstdint>

namespace widestream::internal {

// Least first. Every implementation gives the same results.
enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512 };

// The best one here. The environment variable WIDESTREAM_ISA (portable, avx2) lowers it, for tests.
Isa BestIsa();
const char* IsaName(Isa isa);

}  // namespace widestream::internal
