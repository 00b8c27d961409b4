// Compiles the file that the macro KERNEL names once for each instruction set, in a namespace each; LEVEL is
// the instruction set there.

#include "vectors.h"

namespace {

namespace portable {
#define LEVEL 0
#include "arithmetic.inc"
#include KERNEL
#undef LEVEL
}  // namespace portable

#ifdef HAS_VARIANTS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define LEVEL 1
#include "arithmetic.inc"
#include KERNEL
#undef LEVEL
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace avx512 {
#define LEVEL 2
#include "arithmetic.inc"
#include KERNEL
#undef LEVEL
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target( \
    "avx512bf16,avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace bfloat16 {
#define LEVEL 3
#include "arithmetic.inc"
#include KERNEL
#undef LEVEL
}  // namespace bfloat16
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,amx-int8,avx512bf16,avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma," \
                   "prefer-vector-width=512")
namespace tiles {
#define LEVEL 4
#include "arithmetic.inc"
#include KERNEL
#undef LEVEL
}  // namespace tiles
#pragma GCC pop_options

// The function of the instruction set `level`.
#define VARIANT(level, function)                      \
  ((level) == kTiles       ? tiles::function          \
   : (level) == kBfloat16  ? bfloat16::function       \
   : (level) == kAvx512    ? avx512::function         \
   : (level) == kAvx2      ? avx2::function           \
                           : portable::function)
#else
#define VARIANT(level, function) portable::function
#endif

}  // namespace
