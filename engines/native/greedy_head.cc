// The most likely token of each row, for CPUs: the output head, the choice and its log-probability in one pass.
//
//   hidden     bf16 [rows, depth]
//   table      bf16 [vocabulary, depth]   the output head, a row a token; depth is a multiple of 32
//   token      s32 [rows]                 of the largest logit, the first of equals
//   logprob    f32 [rows]
//
// On CPUs without products of bfloat16 both sides are rounded to whole numbers of 13 bits (fixed_point.inc).
//
// The logits never leave the cache: a task works through a part of the vocabulary in blocks of 32 tokens and
// 32 rows and keeps the running peak, its token and the sum of exponentials of each row. The rows of the table
// take the part of the inputs in the product, so that the lanes of a vector are rows of the batch.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

struct HeadProblem {
  const uint16_t* table;
  Lines<uint16_t> hidden;  // panels of 16 rows: [panels][depth / 2][16][2]
  int64_t num_rows, num_panels, depth, vocab_size;
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

void PackHidden(const uint16_t* hidden, HeadProblem& problem) {
  problem.num_panels = (problem.num_rows + 15) / 16;
  problem.hidden.assign(problem.num_panels * 16 * problem.depth, 0);
  for (int64_t row = 0; row < problem.num_rows; ++row) {
    uint16_t* panel = problem.hidden.data() + row / 16 * 16 * problem.depth + row % 16 * 2;
    for (int64_t pair = 0; pair < problem.depth / 2; ++pair)
      std::memcpy(panel + pair * 32, hidden + row * problem.depth + pair * 2, 4);
  }
}

ffi::Error GreedyHead(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> hidden, ffi::Buffer<ffi::BF16> table,
                      int64_t level, ffi::Result<ffi::Buffer<ffi::S32>> token,
                      ffi::Result<ffi::Buffer<ffi::F32>> logprob) {
  HeadProblem problem{};
  problem.table = reinterpret_cast<const uint16_t*>(table.untyped_data());
  problem.num_rows = hidden.dimensions()[0], problem.depth = hidden.dimensions()[1];
  problem.vocab_size = table.dimensions()[0];
  if (problem.depth % 32 != 0 || table.dimensions()[1] != problem.depth)
    return ffi::Error::InvalidArgument("the width must be a multiple of 32, and the same for both");
  PackHidden(reinterpret_cast<const uint16_t*>(hidden.untyped_data()), problem);
  const int64_t num_tasks = (problem.vocab_size + kTokensOfTask - 1) / kTokensOfTask;
  std::vector<HeadPart> parts(num_tasks);
  const auto block = VARIANT(ChooseLevel(level), HeadBlock);
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
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Attr<int64_t>("level")
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
