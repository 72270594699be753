#include "kernels/self_test.h"

#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <span>

#include "arithmetic/attention.h"
#include "arithmetic/rope.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/kernels.h"

namespace tandem::kernels {
namespace {

using cpu::ActivationRows;
using cpu::CpuKernels;

// Inputs: integers from a counter (SplitMix64's mixer), floats as integers times powers of two.
class Inputs {
 public:
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  int32_t integer(int32_t low, int32_t high) {
    const auto span = static_cast<uint64_t>(int64_t{high} - low) + 1;
    return static_cast<int32_t>(low + static_cast<int64_t>(next() % span));
  }
  float real(int smallest_exponent, int largest_exponent) {
    return static_cast<float>(integer(-32767, 32767)) *
           arithmetic::power_of_two(integer(smallest_exponent, largest_exponent) - 15);
  }
  std::vector<float> reals(size_t n, int smallest_exponent, int largest_exponent) {
    std::vector<float> values(n);
    for (float& v : values) v = real(smallest_exponent, largest_exponent);
    return values;
  }
  // Random, or one of the extremes that sums and roundings must stand.
  int16_t activation(uint32_t kind) {
    constexpr int32_t kMost = arithmetic::kMaxActivation;
    if (kind % 4 == 1) return static_cast<int16_t>(kMost);
    if (kind % 4 == 2) return static_cast<int16_t>(next() % 2 == 0 ? kMost : -kMost);
    return static_cast<int16_t>(integer(-kMost, kMost));
  }

 private:
  uint64_t state_ = 20;
};

// What a step answered, as one hash.
class Answer {
 public:
  template <typename T>
  void add(const std::vector<T>& values) {
    hash_.update(std::as_bytes(std::span<const T>(values)));
  }
  void add(int64_t value) { add(std::vector<int64_t>{value}); }
  std::string text() { return hex(hash_.digest()).substr(0, 16); }

 private:
  Sha256 hash_;
};

constexpr std::array<uint32_t, 7> kLengths = {1, 7, 16, 40, 80, 131, 512};

void run_quantize(const CpuKernels& set, Inputs& in, Answer& answer) {
  for (const uint32_t n : kLengths) {
    for (const int spread : {0, 12, 90}) {
      std::vector<float> x = in.reals(n, -spread, spread);
      if (spread == 12) {
        for (float& v : x) v = static_cast<float>(in.integer(-65278, 65278)) * 0.5F;  // ties
      }
      std::vector<int16_t> values(n);
      int32_t exponent = 0;
      answer.add(set.quantize(x.data(), n, values.data(), &exponent) ? 1 : 0);
      answer.add(values);
      answer.add(exponent);
      x[n / 2] = std::bit_cast<float>(arithmetic::kInfinityBits);
      answer.add(set.quantize(x.data(), n, values.data(), &exponent) ? 1 : 0);
    }
  }
}

void run_norm(const CpuKernels& set, bool layer, Inputs& in, Answer& answer) {
  for (const uint32_t n : kLengths) {
    for (const double epsilon : {0x1p-20, 0.0}) {
      const std::vector<float> x = in.reals(n, -20, 4);
      const std::vector<float> weight = in.reals(n, -2, 2);
      const std::vector<float> bias = in.reals(n, -2, 2);
      std::vector<int16_t> scratch(n);
      std::vector<float> y(n);
      const arithmetic::NormConstants constants(n, epsilon);
      const bool ok =
          layer ? set.layer_norm(x.data(), weight.data(), bias.data(), constants, scratch.data(),
                                 y.data())
                : set.rms_norm(x.data(), weight.data(), constants, scratch.data(), y.data());
      answer.add(ok ? 1 : 0);
      answer.add(y);
    }
  }
}

PackedMatrix make_matrix(WeightFormat format, uint32_t rows, uint32_t columns, Inputs& in) {
  PackedMatrix matrix = make_packed(format, rows, columns);
  const uint32_t groups = (columns + 31) / 32;
  for (uint32_t r = 0; r < rows; ++r) {
    const float scale = arithmetic::power_of_two(in.integer(-30, 5)) * 1.25F;
    const bool extreme = r % 5 == 0;
    if (format == WeightFormat::k8) {
      std::vector<int8_t> weights(columns);
      for (int8_t& w : weights) w = static_cast<int8_t>(extreme ? 127 : in.integer(-127, 127));
      store_row8(matrix, r, weights, scale);
      continue;
    }
    const bool four = format == WeightFormat::k4;
    std::vector<uint8_t> quants(columns);
    std::vector<uint8_t> scales(groups);
    std::vector<uint8_t> minimums(groups);
    const int32_t most = four ? 15 : 63;
    for (uint8_t& q : quants) q = static_cast<uint8_t>(extreme ? most : in.integer(0, most));
    for (uint8_t& s : scales)
      s = static_cast<uint8_t>(in.integer(extreme ? 63 : 0, four ? 63 : 127));
    for (uint8_t& m : minimums) m = static_cast<uint8_t>(extreme ? 0 : in.integer(0, 63));
    if (four) {
      store_row4(matrix, r, quants, scales, minimums, scale);
    } else {
      store_row6(matrix, r, quants, scales, scale);
    }
  }
  return matrix;
}

void run_matmul(const CpuKernels& set, WeightFormat format, Inputs& in, Answer& answer) {
  struct Shape {
    uint32_t rows;
    uint32_t columns;
  };
  for (const Shape shape :
       {Shape{5, 1}, Shape{37, 100}, Shape{33, 192}, Shape{17, 4300}, Shape{21, 700}}) {
    const PackedMatrix matrix = make_matrix(format, shape.rows, shape.columns, in);
    const std::vector<float> bias = in.reals(shape.rows, -3, 3);
    for (const uint32_t tokens : {1U, 2U, 3U, 5U, 6U, 13U}) {
      if (shape.columns > 1000 && tokens > 2) continue;
      ActivationRows rows;
      rows.columns = shape.columns;
      rows.padded = padded_columns(shape.columns);
      rows.tokens = tokens;
      rows.values = AlignedArray<int16_t>(size_t{tokens} * rows.padded);
      rows.prepared = AlignedArray<uint8_t>(tokens * set.prepared_bytes(rows.padded));
      rows.sums.assign(tokens, 0);
      for (uint32_t t = 0; t < tokens; ++t) {
        rows.exponents.push_back(in.integer(-40, 20));
        for (uint32_t k = 0; k < shape.columns; ++k) {
          rows.values[size_t{t} * rows.padded + k] = in.activation(t);
        }
      }
      set.prepare(rows, 0, tokens);
      std::vector<float> out(size_t{tokens} * shape.rows);
      set.matmul(matrix, rows, 0, tile_count(shape.rows), tokens % 2 == 0 ? bias.data() : nullptr,
                 out.data(), shape.rows);
      answer.add(out);
    }
  }
}

void run_activation(const CpuKernels& set, int which, Inputs& in, Answer& answer) {
  for (const uint32_t n : kLengths) {
    std::vector<float> x = in.reals(n, -12, 8);
    const std::vector<float> y = in.reals(n, -6, 6);
    std::vector<float> out(n);
    if (which == 0) set.gated_silu(x.data(), y.data(), n, out.data());
    if (which == 1) set.gelu(x.data(), n, out.data());
    if (which == 2) set.add(x.data(), y.data(), n);
    answer.add(which == 2 ? x : out);
  }
}

void run_clamped_swiglu(const CpuKernels& set, Inputs& in, Answer& answer) {
  for (const uint32_t n : kLengths) {
    const std::vector<float> gate = in.reals(n, -12, 8);
    const std::vector<float> up = in.reals(n, -6, 6);
    std::vector<float> out(n);
    set.clamped_swiglu(gate.data(), up.data(), n, 1.702F, 7.0F, out.data());
    answer.add(out);
  }
}

void run_weighted_sum(const CpuKernels& set, Inputs& in, Answer& answer) {
  constexpr size_t kParts = 5;
  for (const uint32_t n : kLengths) {
    std::vector<std::vector<float>> rows;
    std::vector<const float*> parts;
    rows.reserve(kParts);
    parts.reserve(kParts);
    for (size_t r = 0; r < kParts; ++r) rows.push_back(in.reals(n, -20, 4));
    for (const std::vector<float>& row : rows) parts.push_back(row.data());
    const std::vector<float> weights = in.reals(rows.size(), -8, 0);
    for (size_t count = 1; count <= rows.size(); ++count) {
      std::vector<float> out(n);
      set.weighted_sum(parts.data(), weights.data(), count, n, out.data());
      answer.add(out);
    }
  }
}

void run_boundary(const CpuKernels& set, Inputs& in, Answer& answer) {
  for (const uint32_t n : kLengths) {
    for (const int center : {-60, 0, 60}) {
      std::vector<float> x = in.reals(n, center - 25, center);
      std::vector<uint16_t> half(n);
      int16_t exponent = 0;
      answer.add(set.to_boundary(x.data(), n, half.data(), &exponent) ? 1 : 0);
      answer.add(half);
      answer.add(exponent);
      set.from_boundary(half.data(), n, exponent, x.data());
      answer.add(x);
    }
  }
}

void run_rotate(const CpuKernels& set, Inputs& in, Answer& answer) {
  for (const uint32_t n : {2U, 16U, 48U, 80U, 128U}) {
    for (uint32_t kind = 0; kind < 3; ++kind) {
      std::vector<int16_t> x(n);
      for (int16_t& v : x) v = in.activation(kind);
      std::vector<arithmetic::Rotation> rotations(n / 2);
      for (arithmetic::Rotation& r : rotations) r = arithmetic::rotation(in.next());
      std::vector<int32_t> scratch(n);
      answer.add(set.rotate(x.data(), n, 3, rotations.data(), scratch.data()));
      answer.add(x);
    }
  }
}

void run_attention(const CpuKernels& set, Inputs& in, Answer& answer) {
  struct Shape {
    uint32_t head_dim;
    uint32_t positions;
    uint32_t tokens;
    uint32_t heads;
    uint32_t window;
    int spread;  // of the exponents
  };
  for (const Shape s : {Shape{16, 1, 1, 1, 0, 0}, Shape{80, 37, 2, 3, 0, 4},
                        Shape{64, 290, 3, 2, 21, 2}, Shape{128, 280, 1, 5, 0, 12}}) {
    cpu::CpuKvCache cache(1, 1, s.head_dim);
    if (!cache.reserve(s.positions).ok()) continue;  // shows as a wrong answer
    std::vector<int16_t> vector(s.head_dim);
    for (uint32_t p = 0; p < s.positions; ++p) {
      for (int16_t& v : vector) v = in.activation(p % 3);
      cache.store_key(0, 0, p, vector.data(), in.integer(-s.spread, s.spread) - 15);
      for (int16_t& v : vector) v = in.activation(p % 3);
      cache.store_value(0, 0, p, vector.data(), in.integer(-s.spread, s.spread) - 15);
    }
    const cpu::CacheView view = cache.view(0, 0);
    const uint32_t rows = s.tokens * s.heads;
    std::vector<int16_t> queries(size_t{rows} * view.padded_dim);
    std::vector<int32_t> exponents(rows);
    for (uint32_t r = 0; r < rows; ++r) {
      exponents[r] = in.integer(-17, -12);
      for (uint32_t c = 0; c < s.head_dim; ++c) {
        queries[size_t{r} * view.padded_dim + c] = in.activation(r % 2 * 3);
      }
    }
    cpu::AttentionTask task;
    task.queries = queries.data();
    task.exponents = exponents.data();
    task.query_stride = size_t{s.heads} * view.padded_dim;
    task.exponent_stride = s.heads;
    task.out_stride = size_t{s.heads} * s.head_dim;
    task.tokens = s.tokens;
    task.heads = s.heads;
    task.position = s.positions - s.tokens;
    task.window = s.window;
    task.constant = arithmetic::score_constant(0.125);
    cpu::AttentionScratch scratch;
    std::vector<float> out(size_t{rows} * s.head_dim);
    answer.add(set.attention(view, task, nullptr, scratch, out.data()) ? 1 : 0);
    answer.add(out);
  }
}

// A step, and the first 16 digits of the SHA-256 of its answers. They change with
// arithmetic::kContractVersion and never otherwise.
// Blocks of a state in place and not, with and without an output.
void run_delta(const CpuKernels& set, Inputs& in, Answer& answer) {
  for (const uint32_t dim : {16U, 64U, 128U}) {
    for (const uint32_t tokens : {1U, 5U}) {
      std::vector<float> state = in.reals(size_t{dim} * 16, dim == 64 ? -70 : -3, 1);
      std::vector<float> keys(size_t{tokens} * dim);
      for (float& key : keys) {
        key = static_cast<float>(in.integer(-200000, 200000)) * arithmetic::power_of_two(-20);
      }
      const std::vector<float> values = in.reals(size_t{tokens} * 16, -3, 1);
      std::vector<float> gates;
      for (uint32_t i = 0; i < 2 * tokens; ++i) {
        gates.push_back(static_cast<float>(in.integer(0, 32768)) * arithmetic::power_of_two(-15));
      }
      std::vector<float> next(state.size());
      std::vector<float> out(values.size());
      cpu::DeltaTask task;
      task.from = state.data();
      task.to = next.data();
      task.key_dim = dim;
      task.tokens = tokens;
      task.keys = task.queries = keys.data();
      task.values = values.data();
      task.gates = gates.data();
      task.out = out.data();
      task.key_stride = task.query_stride = dim;
      task.value_stride = task.out_stride = 16;
      task.gate_stride = 2;
      task.scale = 0.125F;
      set.delta(task);
      answer.add(next);
      answer.add(out);
      task.to = state.data();
      task.queries = nullptr;
      set.delta(task);
      answer.add(state);
    }
  }
}

void run_delta_inputs(const CpuKernels& set, Inputs& in, Answer& answer) {
  for (const uint32_t n : kLengths) {
    const std::vector<float> rows = in.reals(size_t{n} * 4, -6, 3);
    const std::vector<float> weights = in.reals(size_t{n} * 4, -6, 1);
    std::vector<float> out(n);
    set.convolve(rows.data(), n, weights.data(), 4, n, out.data());
    answer.add(out);
    std::vector<int16_t> scratch(n);
    std::vector<float> unit(n);
    answer.add(set.unit_vector(out.data(), n, scratch.data(), unit.data()) ? 1 : 0);
    answer.add(unit);
    set.gate(rows.data(), n, out.data());
    answer.add(out);
  }
}

struct Step {
  const char* name;
  void (*run)(const CpuKernels&, Inputs&, Answer&);
  const char* answer;
};

constexpr Step kSteps[] = {
    {"quantize", run_quantize, "68c7207890a46e14"},
    {"rms_norm", [](const CpuKernels& s, Inputs& i, Answer& a) { run_norm(s, false, i, a); },
     "2439660afb365126"},
    {"layer_norm", [](const CpuKernels& s, Inputs& i, Answer& a) { run_norm(s, true, i, a); },
     "83b5a73388cdaf8a"},
    {"matmul of 8-bit weights",
     [](const CpuKernels& s, Inputs& i, Answer& a) { run_matmul(s, WeightFormat::k8, i, a); },
     "70218fe76548e10b"},
    {"matmul of 4-bit weights",
     [](const CpuKernels& s, Inputs& i, Answer& a) { run_matmul(s, WeightFormat::k4, i, a); },
     "a0bf020808cda4a0"},
    {"matmul of 6-bit weights",
     [](const CpuKernels& s, Inputs& i, Answer& a) { run_matmul(s, WeightFormat::k6, i, a); },
     "185dfbc019245d7a"},
    {"gated_silu", [](const CpuKernels& s, Inputs& i, Answer& a) { run_activation(s, 0, i, a); },
     "aff236883ceb0be9"},
    {"gelu", [](const CpuKernels& s, Inputs& i, Answer& a) { run_activation(s, 1, i, a); },
     "277ae070830b27ce"},
    {"add", [](const CpuKernels& s, Inputs& i, Answer& a) { run_activation(s, 2, i, a); },
     "0439148fcc8deef4"},
    {"boundary", run_boundary, "7c541a343c25932f"},
    {"rotate", run_rotate, "465000b8790331c9"},
    {"attention", run_attention, "c695df82bb7cc614"},
    {"clamped_swiglu", run_clamped_swiglu, "ddfc0c6166828125"},
    {"weighted_sum", run_weighted_sum, "f2ad9684ffa0ca9f"},
    {"delta rule", run_delta, "a66f8c8c0b559688"},
    {"inputs of the delta rule", run_delta_inputs, "68465710309c4970"},
};

}  // namespace

Result<SelfTestReport> self_test_report(std::string_view isa) {
  TANDEM_ASSIGN(const CpuKernels* set, cpu::find_kernels(isa));
  SelfTestReport report;
  report.isa = isa;
  for (const Step& step : kSteps) {
    Inputs inputs;
    Answer answer;
    step.run(*set, inputs, answer);
    ++report.steps;
    const std::string text = answer.text();
    if (text != step.answer) {
      report.differs.push_back(std::string(step.name) + " (" + text + " instead of " + step.answer +
                               ")");
    }
  }
  return report;
}

std::vector<SelfTestReport> self_test_reports() {
  std::vector<SelfTestReport> reports;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (Result<SelfTestReport> report = self_test_report(set.name)) {
      reports.insert(reports.begin(), std::move(*report));
    }
  }
  return reports;
}

Status self_test(std::string_view isa) {
  static Mutex mutex;
  static std::map<std::string, Status, std::less<>> results;
  const std::lock_guard lock(mutex);
  const auto found = results.find(isa);
  if (found != results.end()) return found->second;
  // As long as it is held, the cases' own matrices lie beside it.
  const PackedMatrix room = make_packed(WeightFormat::k8, kTileRows, 1024);
  if (room.data.size() == 0) {
    return Error{ErrorKind::kMemory, "there is no memory to test the kernels in"};
  }
  TANDEM_ASSIGN(const SelfTestReport report, self_test_report(isa));
  Status status;
  if (!report.ok()) {
    std::string steps;
    for (const std::string& step : report.differs) steps += (steps.empty() ? "" : ", ") + step;
    status = unsupported("the " + report.isa +
                         " kernels answer known cases wrongly on this machine: " + steps);
  }
  results.emplace(report.isa, status);
  return status;
}

}  // namespace tandem::kernels
