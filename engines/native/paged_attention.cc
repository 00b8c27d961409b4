// Causal attention of query blocks over KV pages, for CPUs: an XLA custom call.
//
//   queries    f32 [N, C, H, D]          C query tokens of one row each, H heads
//   keys       u16 or f32 [P, K, D, page]   u16 holds bfloat16 bits; tokens lie side by side
//   values     u16 or f32 [P, K, page, D]
//   page_table s32 [N, W]                pages of each block's row, in order of position
//   positions  s32 [N, C]                -1: padding, gives zeros
//   result     f32 [N, C, H, D]
//
// One task is one (block, kv head). The context is walked in tiles of 64 tokens with a running softmax, so
// that a row's result depends on its own pages alone. A window of w > 0 hides keys w or more tokens back; a
// soft cap of c > 0 makes a score c * tanh(score / c). Products and sums are float32. paged_attention.inc is
// compiled once for each instruction set, and the machine's best is chosen at run time.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_VARIANTS 1
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int kLanes = 16;
constexpr int kTileVectors = 4;
constexpr int kTile = kLanes * kTileVectors;  // context tokens at a time
constexpr int kGroup = 4;                     // queries at a time: 4 x 4 accumulators fill the registers
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kLeast = -1e30f;  // a peak where a whole tile is hidden

typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), aligned(2)));

struct Problem {
  const float* queries;
  const void* keys;
  const void* values;
  const int32_t* page_table;
  const int32_t* positions;
  float* result;
  int64_t block_len, num_heads, num_kv_heads, head_dim, page_size, table_width;
  int64_t window;  // 0: none
  float scale, soft_cap;  // soft_cap 0: none
};

// Running softmax of the queries of one task.
struct State {
  std::vector<const float*> queries;
  std::vector<float*> results;
  std::vector<int32_t> positions;
  std::vector<float> peaks, totals;
};

using AttendFunction = void (*)(const Problem&, int64_t block, int64_t head, State&);

namespace portable {
#include "paged_attention.inc"
}  // namespace portable

#ifdef HAS_VARIANTS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "paged_attention.inc"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace avx512 {
#include "paged_attention.inc"
}  // namespace avx512
#pragma GCC pop_options
#endif

template <typename Stored>
AttendFunction Choose() {
#ifdef HAS_VARIANTS
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return avx512::Attend<Stored>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::Attend<Stored>;
#endif
  return portable::Attend<Stored>;
}

// Tasks that the caller and the pool's threads take in turn. A pool thread that comes late finds none left,
// so that the caller never waits for a thread that has not begun.
struct Tasks {
  Problem problem;
  AttendFunction attend;
  int64_t count;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable all_done;

  void Run() {
    State state;
    for (int64_t task = next++; task < count; task = next++) {
      const int64_t block = task / problem.num_kv_heads, head = task % problem.num_kv_heads;
      attend(problem, block, head, state);
      if (++done == count) {
        std::lock_guard<std::mutex> lock(mutex);
        all_done.notify_all();
      }
    }
  }
};

ffi::Error PagedAttention(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> queries, ffi::AnyBuffer keys,
                          ffi::AnyBuffer values, ffi::Buffer<ffi::S32> page_table,
                          ffi::Buffer<ffi::S32> positions, float scale, int64_t window, float soft_cap,
                          ffi::Result<ffi::Buffer<ffi::F32>> result) {
  const auto query_shape = queries.dimensions(), key_shape = keys.dimensions();
  auto tasks = std::make_shared<Tasks>();
  tasks->problem = {queries.typed_data(), keys.untyped_data(),     values.untyped_data(),
                    page_table.typed_data(), positions.typed_data(), result->typed_data(),
                    query_shape[1],          query_shape[2],         key_shape[1],
                    query_shape[3],          key_shape[3],           page_table.dimensions()[1],
                    window,                  scale,                  soft_cap};
  const bool is_halves = keys.element_type() == ffi::U16;
  tasks->attend = is_halves ? Choose<uint16_t>() : Choose<float>();
  if (!is_halves && keys.element_type() != ffi::F32)
    return ffi::Error::InvalidArgument("keys must be uint16 (bfloat16 bits) or float32");
  if (query_shape[3] % kLanes != 0 || key_shape[3] % kLanes != 0)
    return ffi::Error::InvalidArgument("head size and page size must be multiples of 16");
  tasks->count = query_shape[0] * key_shape[1];
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), tasks->count) - 1;
  for (int64_t helper = 0; helper < helpers; ++helper) pool.Schedule([tasks] { tasks->Run(); });
  tasks->Run();
  std::unique_lock<std::mutex> lock(tasks->mutex);
  tasks->all_done.wait(lock, [&] { return tasks->done == tasks->count; });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadracePagedAttention, PagedAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("soft_cap")
                                  .Ret<ffi::Buffer<ffi::F32>>());
