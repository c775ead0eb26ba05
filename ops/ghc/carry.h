#pragma once

#include "ops/ghc/shape.h"

// The constrained carries of one token, forward and backward: the code that a CPU thread and a GPU
// thread share. Nothing is allocated; no state. The caller has checked n (kMaxSinkhornSlots,
// kMaxPermSlots).
#if defined(__CUDACC__)
#define WS_HOST_DEVICE __host__ __device__
#else
#define WS_HOST_DEVICE
#endif

namespace widestream::ops {

constexpr int kSinkhornIterations = 20;

// What the backward pass needs to undo the iterations: their row and column sums.
struct SinkhornSums {
  float row[kSinkhornIterations][kMaxSinkhornSlots];
  float column[kSinkhornIterations][kMaxSinkhornSlots];
};

// exp(logits) made doubly stochastic. The first iteration is done on logarithms, so that logits of
// any size are safe; columns of the result sum to 1. logits: n rows, `stride` apart; matrix: n x n.
template <class Float>
WS_HOST_DEVICE void Sinkhorn(const Float* logits, int stride, int n, Float* matrix,
                             Float* column_log, SinkhornSums* sums) {
  for (int i = 0; i < n; ++i) {
    Float largest = logits[i * stride];
    for (int j = 1; j < n; ++j) {
      largest = logits[i * stride + j] > largest ? logits[i * stride + j] : largest;
    }
    Float sum = 0;
    for (int j = 0; j < n; ++j) sum += __builtin_expf(logits[i * stride + j] - largest);
    const Float shift = largest + __builtin_logf(sum);
    for (int j = 0; j < n; ++j) matrix[i * n + j] = logits[i * stride + j] - shift;
  }
  for (int j = 0; j < n; ++j) {
    Float largest = matrix[j];
    for (int i = 1; i < n; ++i) largest = matrix[i * n + j] > largest ? matrix[i * n + j] : largest;
    Float sum = 0;
    for (int i = 0; i < n; ++i) sum += __builtin_expf(matrix[i * n + j] - largest);
    column_log[j] = largest + __builtin_logf(sum);
    for (int i = 0; i < n; ++i)
      matrix[i * n + j] = __builtin_expf(matrix[i * n + j] - column_log[j]);
  }
  constexpr Float kTiny = Float(1e-37);  // a row that is zero stays zero instead of becoming NaN
  for (int step = 1; step < kSinkhornIterations; ++step) {
    for (int i = 0; i < n; ++i) {
      Float sum = kTiny;
      for (int j = 0; j < n; ++j) sum += matrix[i * n + j];
      const Float inverse = 1 / sum;
      for (int j = 0; j < n; ++j) matrix[i * n + j] *= inverse;
      if (sums) sums->row[step][i] = sum;
    }
    for (int j = 0; j < n; ++j) {
      Float sum = kTiny;
      for (int i = 0; i < n; ++i) sum += matrix[i * n + j];
      const Float inverse = 1 / sum;
      for (int i = 0; i < n; ++i) matrix[i * n + j] *= inverse;
      if (sums) sums->column[step][j] = sum;
    }
  }
}

// Gradient of Sinkhorn: `gradient` (n x n, of the matrix) becomes that of the logits. `matrix`,
// `column_log` and `sums` are what the forward pass left; `matrix` is used up.
template <class Float>
WS_HOST_DEVICE void SinkhornBackward(int n, Float* matrix, const Float* column_log,
                                     const SinkhornSums& sums, Float* gradient) {
  for (int step = kSinkhornIterations - 1; step > 0; --step) {
    for (int j = 0; j < n; ++j) {
      Float dot = 0;
      for (int i = 0; i < n; ++i) dot += gradient[i * n + j] * matrix[i * n + j];
      const Float sum = sums.column[step][j];
      for (int i = 0; i < n; ++i) {
        gradient[i * n + j] = (gradient[i * n + j] - dot) / sum;
        matrix[i * n + j] *= sum;
      }
    }
    for (int i = 0; i < n; ++i) {
      Float dot = 0;
      for (int j = 0; j < n; ++j) dot += gradient[i * n + j] * matrix[i * n + j];
      const Float sum = sums.row[step][i];
      for (int j = 0; j < n; ++j) {
        gradient[i * n + j] = (gradient[i * n + j] - dot) / sum;
        matrix[i * n + j] *= sum;
      }
    }
  }
  for (int j = 0; j < n; ++j) {
    Float total = 0;
    for (int i = 0; i < n; ++i) {
      gradient[i * n + j] *= matrix[i * n + j];
      total += gradient[i * n + j];
    }
    const Float unshift = __builtin_expf(column_log[j]);
    for (int i = 0; i < n; ++i) {
      gradient[i * n + j] -= matrix[i * n + j] * total;
      matrix[i * n + j] *= unshift;  // now the row softmax
    }
  }
  for (int i = 0; i < n; ++i) {
    Float total = 0;
    for (int j = 0; j < n; ++j) total += gradient[i * n + j];
    for (int j = 0; j < n; ++j) gradient[i * n + j] -= matrix[i * n + j] * total;
  }
}

// The next permutation of 0 .. n-1 in lexicographic order; false behind the last.
WS_HOST_DEVICE inline bool NextPermutation(int* order, int n) {
  int i = n - 2;
  while (i >= 0 && order[i] > order[i + 1]) --i;
  if (i < 0) return false;
  int j = n - 1;
  while (order[j] < order[i]) --j;
  const int held = order[i];
  order[i] = order[j];
  order[j] = held;
  for (int a = i + 1, b = n - 1; a < b; ++a, --b) {
    const int other = order[a];
    order[a] = order[b];
    order[b] = other;
  }
  return true;
}

// Softmax weights (n!) of the permutations, from the sums of the columns over the slots.
template <class Float>
WS_HOST_DEVICE void PermutationWeights(const Float* columns, int stride, int n, int count,
                                       Float* weights) {
  Float largest = 0;
  for (int p = 0; p < count; ++p) {
    Float sum = 0;
    for (int i = 0; i < n; ++i) sum += columns[i * stride + p];
    weights[p] = sum;
    largest = p == 0 || sum > largest ? sum : largest;
  }
  Float total = 0;
  for (int p = 0; p < count; ++p) {
    weights[p] = __builtin_expf(weights[p] - largest);
    total += weights[p];
  }
  for (int p = 0; p < count; ++p) weights[p] /= total;
}

template <class Float>
WS_HOST_DEVICE void MixPermutations(const Float* weights, int n, Float* matrix) {
  int order[kMaxPermSlots] = {0, 1, 2, 3};
  for (int i = 0; i < n * n; ++i) matrix[i] = 0;
  int p = 0;
  do {
    for (int i = 0; i < n; ++i) matrix[i * n + order[i]] += weights[p];
    ++p;
  } while (NextPermutation(order, n));
}

// Gradient of the sum of the columns over the slots (n!), from that of the matrix.
template <class Float>
WS_HOST_DEVICE void PermutationsBackward(const Float* weights, int n, int count,
                                         const Float* gradient, Float* logit_gradient) {
  int order[kMaxPermSlots] = {0, 1, 2, 3};
  Float mean = 0;
  int p = 0;
  do {
    Float sum = 0;
    for (int i = 0; i < n; ++i) sum += gradient[i * n + order[i]];
    logit_gradient[p] = sum;
    mean += weights[p] * sum;
    ++p;
  } while (NextPermutation(order, n));
  for (p = 0; p < count; ++p) logit_gradient[p] = weights[p] * (logit_gradient[p] - mean);
}

}  // namespace widestream::ops
