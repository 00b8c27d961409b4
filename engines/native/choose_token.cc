// The most likely allowed token of each row of logits, for CPUs: an XLA custom call.
//
//   logits   f32 [rows, vocabulary]
//   allowed  f32 [kinds, vocabulary]   0 where a token is allowed, minus infinity where it is not
//   limits   s32 [rows, 6]             kind of the row, -1: nothing is asked for;
//                                      1 where text may come, 1 where other tokens without a time may come;
//                                      the first timestamp that may come, and the one after the last;
//                                      1 where a timestamp comes once all of them together are likelier than
//                                      any other token
//   token    s32 [rows]                the first of equals
//   total    f32 [rows]                log of the sum of exponentials of the logits that are left
//
// Text are the tokens before `eot` and from `times_end` on, timestamps those from `times_begin` up to there,
// and the other tokens lie between.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

struct ChoiceProblem {
  const float *logits, *allowed;
  const int32_t* limits;
  int64_t vocab_size, eot, times_begin, times_end;
};

struct Choice {
  int32_t token;
  float total;
};

}  // namespace

#define KERNEL "choose_token.inc"
#include "variants.h"

namespace {

constexpr int64_t kLimits = 6;

ffi::Error ChooseToken(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> logits, ffi::Buffer<ffi::F32> allowed,
                       ffi::Buffer<ffi::S32> limits, int64_t eot, int64_t times_begin, int64_t times_end,
                       int64_t level, ffi::Result<ffi::Buffer<ffi::S32>> token,
                       ffi::Result<ffi::Buffer<ffi::F32>> total) {
  ChoiceProblem problem{};
  problem.logits = logits.typed_data(), problem.allowed = allowed.typed_data();
  problem.vocab_size = logits.dimensions()[1];
  problem.eot = eot, problem.times_begin = times_begin;
  problem.times_end = std::min(times_end, problem.vocab_size);
  if (allowed.dimensions()[1] != problem.vocab_size || limits.dimensions()[1] != kLimits || eot > times_begin ||
      times_begin > problem.times_end)
    return ffi::Error::InvalidArgument("the vocabulary, the rules and the limits do not fit each other");
  const auto choose = VARIANT(ChooseLevel(level), ChooseOne);
  ParallelFor(pool, logits.dimensions()[0], [&](int64_t row) {
    const int32_t* own = limits.typed_data() + row * kLimits;
    if (own[0] >= allowed.dimensions()[0]) return;
    const Choice choice = own[0] < 0 ? Choice{0, 0.0f} : choose(problem, row, own);
    token->typed_data()[row] = choice.token;
    total->typed_data()[row] = choice.total;
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceChooseToken, ChooseToken,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("eot")
                                  .Attr<int64_t>("times_begin")
                                  .Attr<int64_t>("times_end")
                                  .Attr<int64_t>("level")
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
