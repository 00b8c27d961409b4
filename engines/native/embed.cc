// Rows of an embedding whose weights lie as those of a product (linear.cc), for CPUs: an XLA custom call.
//
//   token    s32 [rows]                    beyond the weights: the nearest row
//   weights  bf16 [panels, pairs, 16, 2]
//   result   f32 [rows, width]
//
// The output head of a model with tied weights has them in this order already.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kPanel = 16;

float FloatOf(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

ffi::Error Embed(ffi::Buffer<ffi::S32> token, ffi::Buffer<ffi::BF16> weights,
                 ffi::Result<ffi::Buffer<ffi::F32>> result) {
  const auto shape = result->dimensions();
  const int64_t panels = weights.dimensions()[0], pairs = weights.dimensions()[1];
  if (shape.size() != 2 || shape[1] % 2 != 0 || shape[1] > 2 * pairs)
    return ffi::Error::InvalidArgument("the width must be even and no more than the weights' depth");
  const auto* halves = static_cast<const uint16_t*>(weights.untyped_data());
  for (int64_t row = 0; row < shape[0]; ++row) {
    const int64_t index = std::clamp<int64_t>(token.typed_data()[row], 0, panels * kPanel - 1);
    const uint16_t* source = halves + index / kPanel * pairs * 2 * kPanel + index % kPanel * 2;
    float* target = result->typed_data() + row * shape[1];
    for (int64_t i = 0; i < shape[1]; i += 2, source += 2 * kPanel) {
      target[i] = FloatOf(source[0]);
      target[i + 1] = FloatOf(source[1]);
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceEmbed, Embed,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
