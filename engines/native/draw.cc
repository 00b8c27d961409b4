// One token a row from its logits, for CPUs: an XLA custom call.
//
//   logits       f32 [rows, vocabulary]
//   temperature  f32 [rows]      below 1e-5: the most likely token, the first of equals
//   top_k        s32 [rows]      0 or less: off
//   top_p, min_p f32 [rows]      1 or more, 0 or less: off
//   seed         u32 [rows, 2]
//   index        s32 [rows]      folded into the seed
//   token        s32 [rows]
//
// Temperature, then top-k, top-p of what that leaves, min-p; ties with the last token kept are kept. The draw is
// the largest sum of a logit and its Gumbel noise. The noise of a token is that of jax.random: Threefry-2x32
// (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") of the token's number under the row's key,
// so it is worked out only for tokens that may win.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

struct DrawProblem {
  const float *logits, *temperature, *top_p, *min_p;
  const int32_t *top_k, *index;
  const uint32_t* seed;
  int64_t vocab_size;
};

constexpr float kLeastTemperature = 1e-5f;
constexpr float kMostNoise = 17.0f;  // more than -log(-log(u)) of any u that 23 bits give

}  // namespace

#define KERNEL "draw.inc"
#include "variants.h"

namespace {

ffi::Error Draw(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> logits, ffi::Buffer<ffi::F32> temperature,
                ffi::Buffer<ffi::S32> top_k, ffi::Buffer<ffi::F32> top_p, ffi::Buffer<ffi::F32> min_p,
                ffi::Buffer<ffi::U32> seed, ffi::Buffer<ffi::S32> index, int64_t level,
                ffi::Result<ffi::Buffer<ffi::S32>> token) {
  DrawProblem problem{};
  problem.logits = logits.typed_data(), problem.temperature = temperature.typed_data();
  problem.top_k = top_k.typed_data(), problem.top_p = top_p.typed_data(), problem.min_p = min_p.typed_data();
  problem.seed = seed.typed_data(), problem.index = index.typed_data();
  problem.vocab_size = logits.dimensions()[1];
  const auto draw = VARIANT(ChooseLevel(level), DrawRow);
  ParallelFor(pool, logits.dimensions()[0], [&](int64_t row) { token->typed_data()[row] = draw(problem, row); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceDraw, Draw,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("level")
                                  .Ret<ffi::Buffer<ffi::S32>>());
