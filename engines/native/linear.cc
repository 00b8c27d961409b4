// Products of rows with weights of bfloat16 or 8 bits, for CPUs: an XLA custom call.
//
//   result[row, :] = residual[row, :] + gelu(norm(input[row, :]) . weights + bias)
//
// or, gated, silu(gate) * up, where the panels of weights are those of the gate and of up in turn.
//
//   input      f32 or bf16 [batch, length]   row r of a batch entry begins at r * row_step and is `depth` long:
//                                            rows may overlap, as those of a convolution do
//   norm       f32 [2, depth] or empty       scale and bias of a layer norm; [1, depth]: scale of an RMS norm;
//                                            for f32 input
//   weights    bf16 [panels, steps * 16, 16, 2]   padded with zeros to 16 outputs and 32 inputs
//              or s16, the same, whole numbers of 13 bits with a scale for each 128 inputs (fixed_point.inc)
//              or u8 [panels, steps * 16, 16, 4], 128 more than they are, turned along the inputs
//              (byte_arithmetic.inc) and padded to 16 outputs and 64 inputs
//   scales     f32 or empty                  what one step of whole weights stands for: [panels, spans of 128, 16] of
//                                            those of 13 bits, [panels * 16] of those of 8
//   bias       f32 [panels * 16] or empty
//   residual   f32 [rows, outputs] or empty  of all rows, or of one batch entry's
//   result     f32 or bf16 [batch, rows, outputs]
//
// Inputs are rounded to bfloat16, products summed in float32; on CPUs without products of bfloat16 inputs and weights
// are rounded to whole numbers of 13 bits, as inputs are for weights that are such numbers. For weights of 8 bits each
// row of inputs is turned and rounded to 8 bits, with a scale of its own, and sums are exact. A row's result does not
// depend on the others.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

enum Activation : int64_t { kNone = 0, kGelu = 1, kGatedSilu = 2 };

constexpr int64_t kScaleBytes = 64;

// How rows lie once they are prepared.
enum class Form { kHalves, kFixed, kBytes };

struct LinearProblem {
  const float* input_floats;
  const uint16_t* input_halves;
  const float *norm_scale, *norm_bias;  // no bias: an RMS norm
  const uint8_t* prepared;              // rows as the products read them, padded to whole blocks; or null
  const void* weights;
  const float *scales, *bias, *residual;  // scales: of whole weights
  float* result_floats;
  uint16_t* result_halves;
  int64_t num_rows, rows_per_entry, entry_length, row_step, depth, padded, num_outputs, residual_rows;
  float epsilon;
  Activation activation;
  Form form;

  int64_t num_columns() const { return activation == kGatedSilu ? 2 * num_outputs : num_outputs; }

  // Of a prepared row; whole numbers have their scales behind them.
  int64_t RowBytes() const {
    if (form == Form::kBytes) return padded + kScaleBytes;
    return padded * 2 + (form == Form::kFixed ? (padded / kSpan * 4 / 64 + 1) * 64 : 0);
  }

  // Of a task: its rows stay in the second cache while columns pass.
  int64_t RowsOfTask() const { return std::max<int64_t>(32, std::min<int64_t>(512, (1 << 20) / RowBytes() / 32 * 32)); }

  int64_t InputOffset(int64_t row) const {
    return row / rows_per_entry * entry_length + row % rows_per_entry * row_step;
  }
};

}  // namespace

#define KERNEL "linear.inc"
#include "variants.h"

namespace {

constexpr int64_t kProductsOfTask = 8 << 20;  // fewer are not worth another thread
constexpr int64_t kRowsOfPreparation = 32;

// How rows and columns are cut into tasks: into columns first, as each task reads its rows and its weights once.
struct Cut {
  int64_t rows, row_tasks, column_tasks, columns;

  Cut(const LinearProblem& problem, int64_t threads) {
    const int64_t work = problem.num_rows * problem.num_columns() * problem.depth;
    const int64_t wanted = std::max<int64_t>(1, std::min<int64_t>(4 * threads, work / kProductsOfTask));
    const int64_t pairs = (problem.num_columns() + 31) / 32, blocks = (problem.num_rows + 31) / 32;
    row_tasks = (problem.num_rows + problem.RowsOfTask() - 1) / problem.RowsOfTask();
    column_tasks = std::min(pairs, (wanted + row_tasks - 1) / row_tasks);
    columns = (pairs + column_tasks - 1) / column_tasks * 32;
    column_tasks = (problem.num_columns() + columns - 1) / columns;
    rows = (blocks + row_tasks - 1) / row_tasks * 32;
    row_tasks = (problem.num_rows + rows - 1) / rows;
  }
};

ffi::Error Linear(ffi::ThreadPool pool, ffi::AnyBuffer input, ffi::Buffer<ffi::F32> norm,
                  ffi::AnyBuffer weights, ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::F32> bias,
                  ffi::Buffer<ffi::F32> residual,
                  int64_t depth, int64_t row_step, int64_t activation, float epsilon, int64_t level,
                  ffi::Result<ffi::AnyBuffer> result) {
  const auto shape = result->dimensions();
  const bool is_bytes = weights.element_type() == ffi::U8, is_fixed = weights.element_type() == ffi::S16;
  if (!is_bytes && !is_fixed && weights.element_type() != ffi::BF16)
    return ffi::Error::InvalidArgument("weights must be bfloat16, int16 or uint8");
  LinearProblem problem{};
  problem.padded = weights.dimensions()[1] * weights.dimensions()[3];
  problem.activation = static_cast<Activation>(activation);
  problem.num_outputs = shape[2];
  if (shape.size() != 3 || problem.padded < depth || weights.dimensions()[0] * 16 < problem.num_columns())
    return ffi::Error::InvalidArgument("weights do not fit the depth and the outputs");
  if (problem.activation == kGatedSilu && (shape[2] % kLanes || bias.element_count() || residual.element_count()))
    return ffi::Error::InvalidArgument("gated outputs are multiples of 16, without bias and residual");
  if (input.element_type() == ffi::F32)
    problem.input_floats = static_cast<const float*>(input.untyped_data());
  else if (input.element_type() == ffi::BF16)
    problem.input_halves = static_cast<const uint16_t*>(input.untyped_data());
  else
    return ffi::Error::InvalidArgument("input must be float32 or bfloat16");
  if (problem.input_floats != nullptr && depth % kLanes != 0)
    return ffi::Error::InvalidArgument("rows of float32 input must be multiples of 16 long");
  if (norm.element_count() > 0) {
    if (problem.input_floats == nullptr) return ffi::Error::InvalidArgument("a norm takes float32 input");
    problem.norm_scale = norm.typed_data();
    if (norm.dimensions()[0] == 2) problem.norm_bias = norm.typed_data() + depth;
  }
  problem.weights = weights.untyped_data();
  if (is_bytes || is_fixed) {
    const int64_t spans = is_bytes ? 1 : (problem.padded + kSpan - 1) / kSpan;
    if (scales.element_count() < problem.num_columns() * spans)
      return ffi::Error::InvalidArgument("whole weights have a scale for each output, or for each 128 inputs of it");
    problem.scales = scales.typed_data();
  }
  if (bias.element_count() > 0) problem.bias = bias.typed_data();
  if (residual.element_count() > 0) {
    problem.residual = residual.typed_data();
    problem.residual_rows = residual.element_count() / shape[2];
  }
  if (result->element_type() == ffi::F32)
    problem.result_floats = static_cast<float*>(result->untyped_data());
  else
    problem.result_halves = static_cast<uint16_t*>(result->untyped_data());
  problem.num_rows = shape[0] * shape[1], problem.rows_per_entry = shape[1];
  problem.entry_length = input.element_count() / shape[0], problem.row_step = row_step;
  problem.depth = depth;
  problem.epsilon = epsilon;
  if ((problem.rows_per_entry - 1) * row_step + depth > problem.entry_length)
    return ffi::Error::InvalidArgument("rows reach past the input");
  const Level chosen = ChooseLevel(level);
  problem.form = is_bytes ? Form::kBytes : is_fixed || chosen < kBfloat16 ? Form::kFixed : Form::kHalves;
  const auto block = is_bytes   ? VARIANT(chosen, LinearBytes)
                     : is_fixed ? VARIANT(chosen, LinearFixed)
                                : VARIANT(chosen, LinearBlock);
  const Cut cut(problem, pool.num_threads());
  const bool is_ready = problem.form == Form::kHalves && problem.input_floats == nullptr;
  if (cut.column_tasks > 1 && !is_ready) {  // else each of them would do it
    static thread_local Lines<uint8_t> rows;
    const int64_t blocks = (problem.num_rows + kRowsOfPreparation - 1) / kRowsOfPreparation;
    uint8_t* prepared = Room(rows, blocks * kRowsOfPreparation * problem.RowBytes());
    const auto prepare = problem.form == Form::kBytes   ? VARIANT(chosen, PrepareBytes)
                         : problem.form == Form::kFixed ? VARIANT(chosen, PrepareFixed)
                                                        : VARIANT(chosen, PrepareBlock);
    ParallelFor(pool, blocks, [&](int64_t task) {
      const int64_t first = task * kRowsOfPreparation;
      prepare(problem, first, std::min(kRowsOfPreparation, problem.num_rows - first),
              prepared + first * problem.RowBytes());
    });
    problem.prepared = prepared;
  }
  ParallelFor(pool, cut.row_tasks * cut.column_tasks, [&](int64_t task) {
    const int64_t row = task / cut.column_tasks * cut.rows, column = task % cut.column_tasks * cut.columns;
    block(problem, row, std::min(cut.rows, problem.num_rows - row), column,
          std::min(problem.num_columns(), column + cut.columns));
  });
  return ffi::Error::Success();
}

}  // namespace

// The instruction set that the kernels choose on this machine.
extern "C" __attribute__((visibility("default"))) int HeadraceLevel() { return ChooseLevel(kTiles); }

// Version of the kernels' arguments: a library of another one is not used.
extern "C" __attribute__((visibility("default"))) int HeadraceKernels() { return 9; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceLinear, Linear,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("depth")
                                  .Attr<int64_t>("row_step")
                                  .Attr<int64_t>("activation")
                                  .Attr<float>("epsilon")
                                  .Attr<int64_t>("level")
                                  .Ret<ffi::AnyBuffer>());
