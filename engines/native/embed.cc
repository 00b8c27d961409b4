// Rows of an embedding whose weights lie as those of a product (linear.cc), for CPUs: an XLA custom call.
//
//   token    s32 [rows]                    beyond the weights: the nearest row
//   weights  bf16 [panels, pairs, 16, 2], or s16, whole numbers
//   scales   f32 [panels, spans of 128, 16] of whole numbers, else empty
//   result   f32 [rows, width]
//
// The output head of a model with tied weights has them in this order already.

#include "vectors.h"
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

ffi::Error Embed(ffi::Buffer<ffi::S32> token, ffi::AnyBuffer weights, ffi::Buffer<ffi::F32> scales,
                 ffi::Result<ffi::Buffer<ffi::F32>> result) {
  const auto shape = result->dimensions();
  const int64_t panels = weights.dimensions()[0], pairs = weights.dimensions()[1], spans = (2 * pairs - 1) / kSpan + 1;
  const bool is_whole = weights.element_type() == ffi::S16;
  if (!is_whole && weights.element_type() != ffi::BF16)
    return ffi::Error::InvalidArgument("weights must be bfloat16 or int16");
  if (is_whole && static_cast<int64_t>(scales.element_count()) < panels * spans * kPanel)
    return ffi::Error::InvalidArgument("whole weights have a scale for each 128 inputs of an output");
  if (shape.size() != 2 || shape[1] % 2 != 0 || shape[1] > 2 * pairs)
    return ffi::Error::InvalidArgument("the width must be even and no more than the weights' depth");
  const auto* numbers = static_cast<const uint16_t*>(weights.untyped_data());
  for (int64_t row = 0; row < shape[0]; ++row) {
    const int64_t index = std::clamp<int64_t>(token.typed_data()[row], 0, panels * kPanel - 1);
    const int64_t panel = index / kPanel, lane = index % kPanel;
    const uint16_t* source = numbers + panel * pairs * 2 * kPanel + lane * 2;
    float* target = result->typed_data() + row * shape[1];
    for (int64_t i = 0; i < shape[1]; i += 2, source += 2 * kPanel) {
      const float scale = is_whole ? scales.typed_data()[(panel * spans + i / kSpan) * kPanel + lane] : 0.0f;
      for (int64_t side = 0; side < 2; ++side)
        target[i + side] = is_whole ? static_cast<int16_t>(source[side]) * scale : FloatOf(source[side]);
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceEmbed, Embed,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
