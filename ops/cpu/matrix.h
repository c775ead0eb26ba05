#pragma once

#include <cstddef>

#include "ops/cpu/vector.h"

// The two products that all kernels are made of, for small and strided matrices of float32 in
// cache.
namespace widestream::ops::WS_ISA {

// sum over k < count of matrix[k * k_stride + j * j_stride] * rows[k * row_stride + ...]: adds to
// row j.
struct Term {
  const float* matrix;
  std::ptrdiff_t k_stride;
  std::ptrdiff_t j_stride;
  const float* rows;
  std::ptrdiff_t row_stride;
  int count;
};

// Where row j starts from: rows[j * stride + ...], times factor[j] where there is a factor.
struct Base {
  const float* rows;
  std::ptrdiff_t stride;
  const float* factor;
};

template <int kTerms, int kBases>
struct Sources {
  Term term[kTerms];
  Base base[kBases];
  int terms = 0;
  int bases = 0;
};

using AnySources = Sources<3, 2>;

#if defined(__AVX512F__)
constexpr int kMixRows = 8;
#else
constexpr int kMixRows = 4;
#endif

template <int J, int V>
WS_INLINE void MixTile(const AnySources& from, int j0, int column, int part, float* out,
                       std::ptrdiff_t out_stride) {
  Vec sum[J][V];
#pragma GCC unroll 8
  for (int j = 0; j < J; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[j][v] = Vec{};
  }
  const auto load = [part](const float* p) { return part != 0 ? LoadPart(p, part) : Load(p); };
  for (int b = 0; b < from.bases; ++b) {
    const Base& base = from.base[b];
    for (int j = 0; j < J; ++j) {
      const float factor = base.factor != nullptr ? base.factor[j0 + j] : 1.0F;
      const float* row = base.rows + (j0 + j) * base.stride + column;
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[j][v] += load(row + v * kLanes) * factor;
    }
  }
  for (int t = 0; t < from.terms; ++t) {
    const Term& term = from.term[t];
    const float* matrix = term.matrix + j0 * term.j_stride;
    const float* row = term.rows + column;
    for (int k = 0; k < term.count; ++k) {
      Vec value[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) value[v] = load(row + v * kLanes);
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) {
        const Vec factor = Broadcast(matrix[j * term.j_stride]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[j][v] += factor * value[v];
      }
      matrix += term.k_stride;
      row += term.row_stride;
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < J; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* p = out + (j0 + j) * out_stride + column + v * kLanes;
      if (part != 0) {
        StorePart(p, sum[j][v], part);
      } else {
        Store(p, sum[j][v]);
      }
    }
  }
}

template <int J>
void MixBlock(const AnySources& from, int j0, int width, float* out, std::ptrdiff_t out_stride) {
  constexpr int kWide = J <= 4 && kMixRows == 8 ? 4 : 2;
  int column = 0;
  for (; column + kWide * kLanes <= width; column += kWide * kLanes) {
    MixTile<J, kWide>(from, j0, column, 0, out, out_stride);
  }
  for (; column + kLanes <= width; column += kLanes) {
    MixTile<J, 1>(from, j0, column, 0, out, out_stride);
  }
  if (column < width) MixTile<J, 1>(from, j0, column, width - column, out, out_stride);
}

inline void MixBlocks(const AnySources& from, int rows, int width, float* out,
                      std::ptrdiff_t out_stride) {
  int j = 0;
#if defined(__AVX512F__)
  for (; j + 8 <= rows; j += 8) MixBlock<8>(from, j, width, out, out_stride);
  if (rows - j >= 6) {
    MixBlock<6>(from, j, width, out, out_stride);
    j += 6;
  }
#endif
  for (; j + 4 <= rows; j += 4) MixBlock<4>(from, j, width, out, out_stride);
  switch (rows - j) {
    case 3:
      return MixBlock<3>(from, j, width, out, out_stride);
    case 2:
      return MixBlock<2>(from, j, width, out, out_stride);
    case 1:
      return MixBlock<1>(from, j, width, out, out_stride);
    default:
      return;
  }
}

// Rows that a packed tile of MixPacked holds.
constexpr int kPackedRows = 256;

// Many rows from many rows: tile by tile of columns, each tile of the sources copied together
// first. It stays in the first-level cache for all blocks of rows, and rows a power of two apart do
// not evict each other.
inline void MixPacked(const AnySources& from, int rows, int width, float* out,
                      std::ptrdiff_t out_stride) {
  constexpr int kTile = 2 * kLanes;
  alignas(64) float packed[kPackedRows * kTile];
  int column = 0;
  for (; column + kTile <= width; column += kTile) {
    AnySources tile = from;
    float* next = packed;
    for (int t = 0; t < from.terms; ++t) {
      tile.term[t].rows = next;
      tile.term[t].row_stride = kTile;
      const float* row = from.term[t].rows + column;
      for (int k = 0; k < from.term[t].count; ++k, next += kTile, row += from.term[t].row_stride) {
        Store(next, Load(row));
        Store(next + kLanes, Load(row + kLanes));
      }
    }
    for (int b = 0; b < from.bases; ++b) tile.base[b].rows += column;
    MixBlocks(tile, rows, kTile, out + column, out_stride);
  }
  if (column == width) return;
  AnySources rest = from;
  for (int t = 0; t < from.terms; ++t) rest.term[t].rows += column;
  for (int b = 0; b < from.bases; ++b) rest.base[b].rows += column;
  MixBlocks(rest, rows, width - column, out + column, out_stride);
}

// out row j (j < rows, `width` numbers) = bases + terms. `out` may be a base, but no term's rows.
inline void Mix(const AnySources& from, int rows, int width, float* out,
                std::ptrdiff_t out_stride) {
  int count = 0;
  for (int t = 0; t < from.terms; ++t) count += from.term[t].count;
  if (rows > kMixRows && count >= 16 && count <= kPackedRows && width >= 4 * kLanes) {
    MixPacked(from, rows, width, out, out_stride);
  } else {
    MixBlocks(from, rows, width, out, out_stride);
  }
}

template <int I, int J>
void DotsTile(const float* a, std::ptrdiff_t a_stride, const float* b, std::ptrdiff_t b_stride,
              int width, float* out, std::ptrdiff_t out_stride) {
  Vec sum[I][4];
#pragma GCC unroll 4
  for (int i = 0; i < I; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[i][j] = Vec{};
  }
  const auto step = [&](auto load, int k) __attribute__((always_inline)) {
    Vec right[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) right[j] = load(b + j * b_stride + k);
#pragma GCC unroll 4
    for (int i = 0; i < I; ++i) {
      const Vec left = load(a + i * a_stride + k);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) sum[i][j] += left * right[j];
    }
  };
  int k = 0;
  for (; k + kLanes <= width; k += kLanes) step([](const float* p) { return Load(p); }, k);
  if (k < width) {
    const int part = width - k;
    step([part](const float* p) { return LoadPart(p, part); }, k);
  }
#pragma GCC unroll 4
  for (int i = 0; i < I; ++i) {
    float four[4];
    Sum4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], four);
    for (int j = 0; j < J; ++j) out[i * out_stride + j] = four[j];
  }
}

template <int I>
void DotsRows(const float* a, std::ptrdiff_t a_stride, const float* b, std::ptrdiff_t b_stride,
              int columns, int width, float* out, std::ptrdiff_t out_stride) {
  int j = 0;
  for (; j + 4 <= columns; j += 4) {
    DotsTile<I, 4>(a, a_stride, b + j * b_stride, b_stride, width, out + j, out_stride);
  }
  const float* rest = b + j * b_stride;
  switch (columns - j) {
    case 3:
      return DotsTile<I, 3>(a, a_stride, rest, b_stride, width, out + j, out_stride);
    case 2:
      return DotsTile<I, 2>(a, a_stride, rest, b_stride, width, out + j, out_stride);
    case 1:
      return DotsTile<I, 1>(a, a_stride, rest, b_stride, width, out + j, out_stride);
    default:
      return;
  }
}

// out[i * out_stride + j] = sum over k < width of a[i * a_stride + k] * b[j * b_stride + k].
inline void Dots(const float* a, std::ptrdiff_t a_stride, int rows, const float* b,
                 std::ptrdiff_t b_stride, int columns, int width, float* out,
                 std::ptrdiff_t out_stride) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) {
    DotsRows<4>(a + i * a_stride, a_stride, b, b_stride, columns, width, out + i * out_stride,
                out_stride);
  }
  const float* rest = a + i * a_stride;
  float* to = out + i * out_stride;
  switch (rows - i) {
    case 3:
      return DotsRows<3>(rest, a_stride, b, b_stride, columns, width, to, out_stride);
    case 2:
      return DotsRows<2>(rest, a_stride, b, b_stride, columns, width, to, out_stride);
    case 1:
      return DotsRows<1>(rest, a_stride, b, b_stride, columns, width, to, out_stride);
    default:
      return;
  }
}

}  // namespace widestream::ops::WS_ISA
