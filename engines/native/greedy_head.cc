// The most likely token of each row, for CPUs: the output head, the choice and its log-probability in one pass.
//
//   hidden     bf16 or f32 [rows, depth]
//   table      the same [vocabulary, depth]   the output head, a row a token; depth is a multiple of 32
//   token      s32 [rows]                     of the largest logit, the first of equals
//   logprob    f32 [rows]
//
// Both sides are rounded to whole numbers of 13 bits (fixed_point.inc), but for bfloat16 on CPUs with products of that.
//
// The logits never leave the cache: a task works through a part of the vocabulary in blocks of 32 tokens and
// 32 rows and keeps the running peak, its token and the sum of exponentials of each row. The rows of the table
// take the part of the inputs in the product, so that the lanes of a vector are rows of the batch.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

struct HeadProblem {
  const uint16_t* table_halves;  // or
  const float* table_floats;
  Lines<uint16_t> hidden;  // panels of 16 rows: [panels][depth / 2][16][2]
  Lines<float> scales;     // of whole numbers: [panels][spans of 128][16]
  int64_t num_rows, num_panels, depth, vocab_size;

  int64_t NumSpans() const { return (depth + kSpan - 1) / kSpan; }

  // Puts a row's numbers where the products read them.
  void PackRow(const uint16_t* row, int64_t index) {
    uint16_t* panel = hidden.data() + index / 16 * 16 * depth + index % 16 * 2;
    for (int64_t pair = 0; pair < depth / 2; ++pair) std::memcpy(panel + pair * 32, row + pair * 2, 4);
  }
};

// What a part of the vocabulary gives, one entry a row of the padded batch.
struct HeadPart {
  Lines<float> peaks, sums;
  Lines<int32_t> tokens;
};

}  // namespace

#define KERNEL "greedy_head.inc"
#include "variants.h"

namespace {

constexpr int64_t kTokensOfTask = 512;

ffi::Error GreedyHead(ffi::ThreadPool pool, ffi::AnyBuffer hidden, ffi::AnyBuffer table, int64_t level,
                      ffi::Result<ffi::Buffer<ffi::S32>> token, ffi::Result<ffi::Buffer<ffi::F32>> logprob) {
  HeadProblem problem{};
  const bool is_floats = table.element_type() == ffi::F32;
  if (hidden.element_type() != table.element_type() || (!is_floats && table.element_type() != ffi::BF16))
    return ffi::Error::InvalidArgument("both sides must be bfloat16, or both float32");
  if (is_floats)
    problem.table_floats = static_cast<const float*>(table.untyped_data());
  else
    problem.table_halves = static_cast<const uint16_t*>(table.untyped_data());
  problem.num_rows = hidden.dimensions()[0], problem.depth = hidden.dimensions()[1];
  problem.vocab_size = table.dimensions()[0];
  if (problem.depth % 32 != 0 || table.dimensions()[1] != problem.depth)
    return ffi::Error::InvalidArgument("the width must be a multiple of 32, and the same for both");
  problem.num_panels = (problem.num_rows + 15) / 16;
  problem.hidden.assign(problem.num_panels * 16 * problem.depth, 0);
  problem.scales.assign(problem.num_panels * 16 * problem.NumSpans(), 0.0f);
  const Level chosen = ChooseLevel(level);
  VARIANT(chosen, PackHidden)(hidden.untyped_data(), problem);
  const int64_t num_tasks = (problem.vocab_size + kTokensOfTask - 1) / kTokensOfTask;
  std::vector<HeadPart> parts(num_tasks);
  const auto block = VARIANT(chosen, HeadBlock);
  ParallelFor(pool, num_tasks, [&](int64_t task) {
    const int64_t first = task * kTokensOfTask;
    block(problem, first, std::min(problem.vocab_size, first + kTokensOfTask), parts[task]);
  });
  for (int64_t row = 0; row < problem.num_rows; ++row) {
    size_t best = 0;
    for (size_t part = 1; part < parts.size(); ++part)
      if (parts[part].peaks[row] > parts[best].peaks[row]) best = part;
    double total = 0;
    for (const HeadPart& part : parts)
      total += part.sums[row] * std::exp(static_cast<double>(part.peaks[row] - parts[best].peaks[row]));
    token->typed_data()[row] = parts[best].tokens[row];
    logprob->typed_data()[row] = static_cast<float>(-std::log(total));
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceGreedyHead, GreedyHead,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Attr<int64_t>("level")
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
