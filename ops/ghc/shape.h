#pragma once

#include <cstdint>

namespace widestream::ops {

// How the n x n carry of a token comes from the coefficients' carry columns.
enum class Carry : std::int32_t { kGhc = 0, kIdentity = 1, kSinkhorn = 2, kPerm = 3 };

constexpr int kMaxSinkhornSlots = 16;
constexpr int kMaxPermSlots = 4;

// The sizes of one generalized hyper-connection. A token's wide state is n slots of d numbers, its
// backbone vector m segments of d; the coefficients are n rows of m read, carry_columns, and m
// write columns. A value; carry_columns is n, 0, n and n! for the four carries.
struct Shape {
  int m = 0;
  int n = 0;
  int d = 0;
  int carry_columns = 0;
  Carry carry = Carry::kGhc;

  int Columns() const { return 2 * m + carry_columns; }
  int WriteColumn() const { return m + carry_columns; }
};

constexpr int CarryColumns(Carry carry, int n) {
  switch (carry) {
    case Carry::kIdentity:
      return 0;
    case Carry::kPerm: {
      int factorial = 1;
      for (int i = 2; i <= n; ++i) factorial *= i;
      return factorial;
    }
    default:
      return n;
  }
}

}  // namespace widestream::ops
