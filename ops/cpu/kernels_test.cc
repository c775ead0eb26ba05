// The kernels of every instruction set that this processor has, against the formulas in float64.
#include "ops/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace widestream::ops {
namespace {

struct Case {
  int m, n, d;
  Carry carry;
};

constexpr Case kCases[] = {
    {1, 4, 33, Carry::kGhc},      {2, 3, 16, Carry::kGhc},  {3, 5, 7, Carry::kGhc},
    {4, 8, 64, Carry::kGhc},      {8, 16, 40, Carry::kGhc}, {8, 64, 4, Carry::kGhc},
    {8, 16, 72, Carry::kGhc},     {6, 18, 70, Carry::kGhc}, {1, 1, 1, Carry::kGhc},
    {2, 3, 20, Carry::kIdentity}, {4, 4, 9, Carry::kGhc},   {2, 3, 17, Carry::kPerm},
    {2, 5, 12, Carry::kSinkhorn}};
constexpr int kTokens = 150;  // more than one chunk and no multiple of a block

// All of one connection's numbers, and its forward and backward pass in float64.
class Reference {
 public:
  explicit Reference(const Case& c) {
    s.m = c.m;
    s.n = c.n;
    s.d = c.d;
    s.carry = c.carry;
    s.carry_columns = CarryColumns(c.carry, c.n);
    std::mt19937 random(c.m * 100 + c.n);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, std::int64_t size) {
      v.resize(size);
      for (float& x : v) x = normal(random);
    };
    const int columns = s.Columns();
    fill(h, static_cast<std::int64_t>(kTokens) * s.n * s.d);
    fill(z, static_cast<std::int64_t>(kTokens) * s.m * s.d);
    fill(gradient_new, h.size());
    fill(gradient_x, z.size());
    fill(statics, s.n * columns);
    fill(scale, s.n * columns);
    fill(weight, s.d * columns);
    weight_t.resize(weight.size());
    for (int i = 0; i < s.d; ++i) {
      for (int k = 0; k < columns; ++k) weight_t[k * s.d + i] = weight[i * columns + k];
    }
  }

  void Run() {
    const int columns = s.Columns();
    const double root = std::sqrt(static_cast<double>(s.d));
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < s.n; ++i) {
        double squares = 0;
        for (int k = 0; k < s.d; ++k) squares += H(t, i, k) * H(t, i, k);
        const double rho = 1 / std::sqrt(squares / s.d + kEps);
        for (int c = 0; c < columns; ++c) {
          double dot = 0;
          for (int k = 0; k < s.d; ++k) dot += H(t, i, k) * weight[k * columns + c];
          const double angle = dot * rho / root;
          coefficients.push_back(statics[i * columns + c] +
                                 scale[i * columns + c] * std::tanh(angle));
        }
      }
      for (int k = 0; k < s.m; ++k) {
        for (int d = 0; d < s.d; ++d) {
          double sum = 0;
          for (int i = 0; i < s.n; ++i) sum += C(t, i, k) * H(t, i, d);
          x.push_back(sum);
        }
      }
      for (int j = 0; j < s.n; ++j) {
        for (int d = 0; d < s.d; ++d) {
          double sum = s.carry == Carry::kIdentity ? H(t, j, d) : 0;
          for (int k = 0; k < s.m; ++k)
            sum += C(t, j, s.WriteColumn() + k) * z[(t * s.m + k) * s.d + d];
          if (s.carry == Carry::kGhc) {
            for (int i = 0; i < s.n; ++i) sum += C(t, i, s.m + j) * H(t, i, d);
          }
          h_new.push_back(sum);
        }
      }
    }
  }

  // Loss whose gradients are gradient_x and gradient_new: for finite differences.
  double Loss() {
    coefficients.clear();
    x.clear();
    h_new.clear();
    Run();
    double loss = 0;
    for (std::size_t i = 0; i < x.size(); ++i) loss += x[i] * gradient_x[i];
    for (std::size_t i = 0; i < h_new.size(); ++i) loss += h_new[i] * gradient_new[i];
    return loss;
  }

  double H(int t, int i, int k) const {
    return h[(static_cast<std::int64_t>(t) * s.n + i) * s.d + k];
  }
  double C(int t, int i, int k) const {
    return coefficients[(static_cast<std::int64_t>(t) * s.n + i) * s.Columns() + k];
  }

  static constexpr double kEps = 1e-6;
  Shape s;
  std::vector<float> h, z, gradient_new, gradient_x, statics, scale, weight, weight_t;
  std::vector<double> coefficients, x, h_new;
};

struct Results {
  std::vector<float> x, coefficients, angle, rho, h_new, gradient_h, gradient_z, partial;
};

Results RunKernels(const KernelTable& table, const Reference& r, int pieces) {
  const Shape& s = r.s;
  const std::int64_t of_token = static_cast<std::int64_t>(s.n) * s.Columns();
  Results out;
  out.x.resize(r.z.size());
  out.coefficients.resize(kTokens * of_token);
  out.angle.resize(kTokens * of_token);
  out.rho.resize(static_cast<std::int64_t>(kTokens) * s.n);
  out.h_new.resize(r.h.size());
  out.gradient_h.resize(r.h.size());
  out.gradient_z.resize(r.z.size());
  std::vector<float> scratch(std::max(ForwardScratchFloats(s), BackwardScratchFloats(s)));
  const Mixer mixer = {r.statics.data(), r.scale.data(), r.weight.data(), r.weight_t.data(), 1e-6F};

  ForwardArguments read;
  read.shape = s;
  read.h = {r.h.data(), Number::kFloat32};
  read.mixer = mixer;
  read.x = {out.x.data(), Number::kFloat32};
  read.next_coefficients = out.coefficients.data();
  read.angle = out.angle.data();
  read.rho = out.rho.data();
  ForwardArguments write;
  write.shape = s;
  write.h = read.h;
  write.z = {r.z.data(), Number::kFloat32};
  write.coefficients = out.coefficients.data();
  write.coefficient_stride = of_token;
  write.h_new = {out.h_new.data(), Number::kFloat32};
  for (int p = 0; p < pieces; ++p) {
    const std::int64_t begin = kTokens * p / pieces;
    const std::int64_t end = kTokens * (p + 1) / pieces;
    table.forward(read, begin, end, scratch.data());
    table.forward(write, begin, end, scratch.data());
  }
  BackwardArguments back;
  back.shape = s;
  back.h = read.h;
  back.z = write.z;
  back.gradient_new = {r.gradient_new.data(), Number::kFloat32};
  back.gradient_x = {r.gradient_x.data(), Number::kFloat32};
  back.angle = out.angle.data();
  back.rho = out.rho.data();
  back.mixer = mixer;
  back.gradient_h = {out.gradient_h.data(), Number::kFloat32};
  back.gradient_z = {out.gradient_z.data(), Number::kFloat32};
  back.chunk_tokens = ChunkTokens(kTokens);
  const std::int64_t chunks = (kTokens + back.chunk_tokens - 1) / back.chunk_tokens;
  const std::int64_t size = PartialFloats(s, true);
  std::vector<float> partial(chunks * size);
  back.partial = partial.data();
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    table.backward(back, chunk * back.chunk_tokens,
                   std::min<std::int64_t>(kTokens, (chunk + 1) * back.chunk_tokens),
                   scratch.data());
  }
  out.partial.resize(size);
  table.sum_chunks(partial.data(), chunks, size, 0, size, out.partial.data());
  return out;
}

std::vector<const KernelTable*> Tables() {
  std::vector<const KernelTable*> tables;
  for (const char* name : {"baseline", "avx2", "avx512"}) {
    if (KernelsFor(name) != nullptr) tables.push_back(KernelsFor(name));
  }
  return tables;
}

void ExpectNear(const std::vector<float>& found, const std::vector<double>& expected,
                const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double scale = 1;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 2e-6 * scale) << what << " at " << i;
  }
}

TEST(Kernels, ForwardEqualsTheFormulasInEveryInstructionSet) {
  for (const Case& c : kCases) {
    Reference reference(c);
    reference.Run();
    for (const KernelTable* table : Tables()) {
      const std::string what =
          std::string(table->name) + " (" + std::to_string(c.m) + "," + std::to_string(c.n) + ")";
      const Results found = RunKernels(*table, reference, 1);
      ExpectNear(found.coefficients, reference.coefficients, what + " coefficients");
      ExpectNear(found.x, reference.x, what + " x");
      if (c.carry == Carry::kGhc || c.carry == Carry::kIdentity) {
        ExpectNear(found.h_new, reference.h_new, what + " h_new");
      }
    }
  }
}

// A difference of the float64 loss along one coordinate, against the gradient there.
void ExpectSlope(Reference& reference, float* parameter, double gradient, const std::string& what) {
  const float held = *parameter;
  const float step = 1.0F / 256;
  *parameter = held + step;
  const double up = reference.Loss();
  const double above = *parameter;
  *parameter = held - step;
  const double down = reference.Loss();
  const double below = *parameter;
  *parameter = held;
  EXPECT_NEAR(gradient, (up - down) / (above - below), 2e-2 * (1 + std::abs(gradient))) << what;
}

TEST(Kernels, BackwardEqualsDifferencesOfTheFormulas) {
  for (const Case& c : {kCases[1], kCases[2], kCases[7]}) {
    Reference reference(c);
    for (const KernelTable* table : Tables()) {
      const Results found = RunKernels(*table, reference, 1);
      const std::int64_t of_token = static_cast<std::int64_t>(c.n) * reference.s.Columns();
      const std::string what = table->name;
      ExpectSlope(reference, &reference.h[5], found.gradient_h[5], what + " h");
      ExpectSlope(reference, &reference.h[c.n * c.d * 140 + 1],
                  found.gradient_h[c.n * c.d * 140 + 1], what + " h");
      ExpectSlope(reference, &reference.z[3], found.gradient_z[3], what + " z");
      ExpectSlope(reference, &reference.statics[4], found.partial[4], what + " statics");
      ExpectSlope(reference, &reference.scale[of_token - 1], found.partial[2 * of_token - 1],
                  what + " scale");
      // weight_t is not read by the float64 loss: move the weight.
      const int columns = reference.s.Columns();
      ExpectSlope(reference, &reference.weight[2 * columns + 1],
                  found.partial[2 * of_token + c.d + 2], what + " weight");
    }
  }
}

TEST(Kernels, InstructionSetsAgreeOnEveryGradient) {
  for (const Case& c : kCases) {
    const Reference reference(c);
    const Results expected = RunKernels(*Tables().front(), reference, 1);
    for (const KernelTable* table : Tables()) {
      const Results found = RunKernels(*table, reference, 1);
      const auto near = [&](const std::vector<float>& a, const std::vector<float>& b,
                            const char* what) {
        ExpectNear(a, std::vector<double>(b.begin(), b.end()),
                   std::string(table->name) + " " + what);
      };
      near(found.h_new, expected.h_new, "h_new");
      near(found.gradient_h, expected.gradient_h, "gradient_h");
      near(found.gradient_z, expected.gradient_z, "gradient_z");
      near(found.partial, expected.partial, "partial");
    }
  }
}

TEST(Kernels, ResultsDoNotDependOnHowTheTokensAreDivided) {
  for (const Case& c : kCases) {
    const Reference reference(c);
    for (const KernelTable* table : Tables()) {
      const Results whole = RunKernels(*table, reference, 1);
      const Results parts = RunKernels(*table, reference, 7);
      EXPECT_EQ(whole.x, parts.x);
      EXPECT_EQ(whole.coefficients, parts.coefficients);
      EXPECT_EQ(whole.h_new, parts.h_new);
      EXPECT_EQ(whole.partial, parts.partial);
    }
  }
}

TEST(Kernels, BFloat16StatesAreRoundedToNearestEven) {
  const std::vector<float> values = {1.0F,    1.00390625F, 1.01171875F, -2.5F,
                                     3.4e38F, 1e-40F,      NAN,         INFINITY};
  const std::vector<std::uint16_t> expected = {0x3f80, 0x3f80, 0x3f82, 0xc020,
                                               0x7f80, 0x0001, 0x7fc0, 0x7f80};
  Shape s;
  s.m = s.n = 1;
  s.d = static_cast<int>(values.size());
  s.carry_columns = 1;
  const std::vector<float> coefficients = {0, 0, 1};  // read, carry, write: h_new = z
  for (const KernelTable* table : Tables()) {
    std::vector<std::uint16_t> h(values.size(), 0);
    std::vector<std::uint16_t> h_new(values.size());
    ForwardArguments write;
    write.shape = s;
    write.h = {h.data(), Number::kBFloat16};
    write.z = {values.data(), Number::kFloat32};
    write.coefficients = coefficients.data();
    write.h_new = {h_new.data(), Number::kBFloat16};
    std::vector<float> scratch(ForwardScratchFloats(s));
    table->forward(write, 0, 1, scratch.data());
    EXPECT_EQ(h_new, expected) << table->name;
  }
}

TEST(Kernels, ChunksDependOnTheNumberOfTokensAlone) {
  EXPECT_EQ(ChunkTokens(0), 128);
  EXPECT_EQ(ChunkTokens(4096), 128);
  EXPECT_EQ(ChunkTokens(64 * 128 + 1), 129);
  EXPECT_EQ(KernelsFor("no such set"), nullptr);
  EXPECT_NE(KernelsFor("baseline"), nullptr);
}

}  // namespace
}  // namespace widestream::ops
