// Attention of one token a row over the row's own tokens, for CPUs: an XLA custom call.
// Keys and values lie as packing.inc says: [slots, heads, room * head size], room a multiple of 32.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

#define KERNEL "self_attention.inc"
#include "variants.h"

namespace {

using Bfloat16s = ffi::Buffer<ffi::BF16>;

struct Packed {
  uint16_t *keys, *values;
  int64_t num_slots, num_heads, size, room, head_size;

  Packed(const Bfloat16s& k, const Bfloat16s& v, int64_t head_size)
      : keys(static_cast<uint16_t*>(k.untyped_data())),
        values(static_cast<uint16_t*>(v.untyped_data())),
        num_slots(k.dimensions()[0]),
        num_heads(k.dimensions()[1]),
        size(k.dimensions()[2]),
        room(size / head_size),
        head_size(head_size) {}

  int64_t Offset(int64_t slot, int64_t head) const { return (slot * num_heads + head) * size; }

  ffi::Error Check(int64_t width) const {
    if (head_size % 32 != 0 || room % 32 != 0 || size % head_size != 0 || num_heads * head_size != width)
      return ffi::Error::InvalidArgument("head size and room must be multiples of 32 that fit the width");
    return ffi::Error::Success();
  }
};

// The arrays are donated: what comes back is what went in, changed.
bool IsInPlace(const Bfloat16s& k, const Bfloat16s& v, ffi::Result<Bfloat16s>& new_k,
               ffi::Result<Bfloat16s>& new_v) {
  return k.untyped_data() == new_k->untyped_data() && v.untyped_data() == new_v->untyped_data();
}

// qkv [rows, 3 * width]: each row's token goes to positions[row] and attends to what is there up to it.
ffi::Error SelfAttention(ffi::ThreadPool pool, Bfloat16s qkv, Bfloat16s k, Bfloat16s v,
                         ffi::Buffer<ffi::S32> positions, int64_t head_size, int64_t level,
                         ffi::Result<Bfloat16s> result, ffi::Result<Bfloat16s> new_k,
                         ffi::Result<Bfloat16s> new_v) {
  const auto shape = qkv.dimensions();
  const int64_t width = shape[1] / 3;
  const Packed packed(k, v, head_size);
  if (auto error = packed.Check(width); error.failure()) return error;
  if (!IsInPlace(k, v, new_k, new_v)) return ffi::Error::Internal("keys and values must be changed in place");
  const auto attend = VARIANT(ChooseLevel(level), AttendToken);
  const auto* source = static_cast<const uint16_t*>(qkv.untyped_data());
  auto* results = static_cast<uint16_t*>(result->untyped_data());
  constexpr int64_t kHeadsOfTask = 16;  // a token's context is short: one head is little work
  const int64_t count = shape[0] * packed.num_heads;
  ParallelFor(pool, (count + kHeadsOfTask - 1) / kHeadsOfTask, [&](int64_t task) {
    for (int64_t i = task * kHeadsOfTask; i < std::min(count, (task + 1) * kHeadsOfTask); ++i) {
      const int64_t row = i / packed.num_heads, head = i % packed.num_heads;
      const int64_t offset = packed.Offset(row, head);
      const uint16_t* token = source + row * 3 * width + head * head_size;
      const int64_t position = std::min<int64_t>(positions.typed_data()[row], packed.room - 1);
      attend(token, token + width, token + 2 * width, packed.keys + offset, packed.values + offset, position,
             packed.room, head_size, results + row * width + head * head_size);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceSelfAttention, SelfAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Bfloat16s>()
                                  .Arg<Bfloat16s>()
                                  .Arg<Bfloat16s>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("head_size")
                                  .Attr<int64_t>("level")
                                  .Ret<Bfloat16s>()
                                  .Ret<Bfloat16s>()
                                  .Ret<Bfloat16s>());
