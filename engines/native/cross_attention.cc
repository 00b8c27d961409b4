// Attention of one query a row over encoder frames, for CPUs: XLA custom calls.
// Keys and values lie as byte_frames.inc says: [slots, heads, bytes], room for a multiple of 32 frames.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kMaxHeadSize = 128;

}  // namespace

#define KERNEL "cross_attention.inc"
#include "variants.h"

namespace {

using Bfloat16s = ffi::Buffer<ffi::BF16>;
using ByteArray = ffi::Buffer<ffi::U8>;

struct PackedFrames {
  uint8_t *keys, *values;
  int64_t num_heads, size, head_size, room;

  PackedFrames(const ByteArray& k, const ByteArray& v, int64_t head_size)
      : keys(k.typed_data()),
        values(v.typed_data()),
        num_heads(k.dimensions()[1]),
        size(k.dimensions()[2]),
        head_size(head_size),
        room((size - 4 * head_size) / (head_size + 2)) {}

  int64_t Offset(int64_t slot, int64_t head) const { return (slot * num_heads + head) * size; }

  ffi::Error Check(int64_t width) const {
    if (head_size % 32 != 0 || head_size > kMaxHeadSize || room % 32 != 0 || num_heads * head_size != width ||
        room * (head_size + 2) + 4 * head_size != size)
      return ffi::Error::InvalidArgument("head size and room must be multiples of 32 that fit the width");
    return ffi::Error::Success();
  }
};

// kv [windows, frames, 2 * width] into the slots' keys and values, which are donated.
ffi::Error PackFrames(ffi::ThreadPool pool, Bfloat16s kv, ByteArray k, ByteArray v, ffi::Buffer<ffi::S32> slots,
                      int64_t head_size, int64_t level, ffi::Result<ByteArray> new_k,
                      ffi::Result<ByteArray> new_v) {
  const auto shape = kv.dimensions();
  const int64_t width = shape[2] / 2;
  const PackedFrames packed(k, v, head_size);
  if (auto error = packed.Check(width); error.failure()) return error;
  if (k.untyped_data() != new_k->untyped_data() || v.untyped_data() != new_v->untyped_data())
    return ffi::Error::Internal("keys and values must be changed in place");
  const auto pack = VARIANT(ChooseLevel(level), PackHead);
  const auto* source = static_cast<const uint16_t*>(kv.untyped_data());
  ParallelFor(pool, shape[0] * packed.num_heads, [&](int64_t task) {
    const int64_t window = task / packed.num_heads, head = task % packed.num_heads;
    const int64_t offset = packed.Offset(slots.typed_data()[window], head);
    pack(source + window * shape[1] * 2 * width + head * head_size, 2 * width, shape[1], head_size, width,
         packed.room, packed.keys + offset, packed.values + offset);
  });
  return ffi::Error::Success();
}

// q [rows, width] over the first lengths[row] frames of slots[row].
ffi::Error CrossAttention(ffi::ThreadPool pool, Bfloat16s q, ByteArray k, ByteArray v, ffi::Buffer<ffi::S32> slots,
                          ffi::Buffer<ffi::S32> lengths, int64_t head_size, int64_t level,
                          ffi::Result<Bfloat16s> result) {
  const auto shape = q.dimensions();
  const PackedFrames packed(k, v, head_size);
  if (auto error = packed.Check(shape[1]); error.failure()) return error;
  const auto attend = VARIANT(ChooseLevel(level), AttendBytes);
  const auto* queries = static_cast<const uint16_t*>(q.untyped_data());
  auto* results = static_cast<uint16_t*>(result->untyped_data());
  ParallelFor(pool, shape[0] * packed.num_heads, [&](int64_t task) {
    const int64_t row = task / packed.num_heads, head = task % packed.num_heads;
    const int64_t offset = packed.Offset(slots.typed_data()[row], head), at = row * shape[1] + head * head_size;
    const int64_t length = lengths.typed_data()[row];
    if (length < 1) {
      std::fill_n(results + at, head_size, 0);
      return;
    }
    attend(queries + at, packed.keys + offset, packed.values + offset, length, packed.room, head_size,
           results + at);
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadracePackFrames, PackFrames,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Bfloat16s>()
                                  .Arg<ByteArray>()
                                  .Arg<ByteArray>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("head_size")
                                  .Attr<int64_t>("level")
                                  .Ret<ByteArray>()
                                  .Ret<ByteArray>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceCrossAttention, CrossAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Bfloat16s>()
                                  .Arg<ByteArray>()
                                  .Arg<ByteArray>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("head_size")
                                  .Attr<int64_t>("level")
                                  .Ret<Bfloat16s>());
