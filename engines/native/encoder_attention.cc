// Full attention among the frames of a window, for CPUs: an XLA custom call.
//
//   qkv      bf16 [batch, frames, 3 * width]   queries (scaled already), keys and values, heads side by side
//   result   bf16 [batch, frames, width]
//
// A task is one head and some of its queries, 32 at a time, over 128 keys at a time with a running softmax.
// Weights are rounded to bfloat16; sums are float32. Where there are no products of bfloat16, numbers become whole ones
// of 16 bits (encoder_pairs.inc).

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kMaxHeadSize = 128;

struct EncoderProblem {
  const uint16_t* qkv;
  uint16_t* result;
  int64_t num_frames, width, head_size, row_stride, room;
};

}  // namespace

#define KERNEL "encoder_attention.inc"
#include "variants.h"

namespace {

ffi::Error EncoderAttention(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> qkv, int64_t num_heads, int64_t level,
                            ffi::Result<ffi::Buffer<ffi::BF16>> result) {
  const auto shape = result->dimensions();
  EncoderProblem problem{};
  problem.qkv = static_cast<const uint16_t*>(qkv.untyped_data());
  problem.result = static_cast<uint16_t*>(result->untyped_data());
  problem.num_frames = shape[1], problem.width = shape[2], problem.row_stride = 3 * shape[2];
  problem.head_size = shape[2] / num_heads;
  problem.room = (shape[1] + 31) / 32 * 32;
  if (problem.head_size % 32 != 0 || problem.head_size > kMaxHeadSize)
    return ffi::Error::InvalidArgument("head size must be a multiple of 32, at most 128");
  const int64_t threads = pool.num_threads(), heads = shape[0] * num_heads;
  // Each part packs the keys and values anew: no more parts than the threads need.
  const int64_t parts = heads % threads == 0 || heads > 8 * threads ? 1 : (4 * threads + heads - 1) / heads;
  const int64_t queries = ((shape[1] + parts - 1) / parts + 31) / 32 * 32;
  const auto attend = VARIANT(ChooseLevel(level), AttendHead);
  ParallelFor(pool, heads * parts, [&](int64_t task) {
    const int64_t begin = task % parts * queries, head = task / parts;
    if (begin < problem.num_frames)
      attend(problem, head / num_heads, head % num_heads, begin, std::min(problem.num_frames, begin + queries));
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceEncoderAttention, EncoderAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Attr<int64_t>("num_heads")
                                  .Attr<int64_t>("level")
                                  .Ret<ffi::Buffer<ffi::BF16>>());
