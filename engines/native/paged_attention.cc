// Causal attention of tokens over the KV pages of their rows, for CPUs: an XLA custom call. It takes what a
// layer's projection gives, norms and turns queries and keys, writes keys and values into the pages, then
// attends.
//
//   qkv        f32 [T, H + 2 K, D]       queries, keys and values of T tokens
//   rotation   f32 [2, T, half] or empty cosines and sines that turn the first 2 * half numbers of a head
//   norms      f32 [2, D] or empty       scales of the RMS norms of queries and of keys
//   keys       f32 [P, K, D, page]       tokens lie side by side
//   values     f32 [P, K, page, D]
//              or both u16, which holds bfloat16 bits, in the order in which products read them:
//              keys [P, K, page / 16, D / 2, 16, 2], values [P, K, page / span, D / 16, span / 2, 16, 2],
//              where span is 32 if that divides the page, else 16; or both s8, likewise in an order of their own:
//              keys [P, K, page / 16, D / 4, 16, 4], 128 more than they are, values
//              [P, K, page / span, D / 16, span / 4, 16, 4], where span is 64, 32 or 16
//   key_scales, value_scales  f32 [P, K, page]  of pages of 8 bits: what one step of a token's head stands for;
//              else empty
//   page_table s32 [R, W]                pages of each row, in order of position
//   token_row  s32 [T]                   rows of the tokens; those of one row lie together, positions rising
//   positions  s32 [T]                   -1: padding, which writes nothing and gives zeros
//   result     f32 or bf16 [T, H * D]; keys, values and their scales, written in place
//
// A task is a block of one row's tokens and a kv head, or all of them where there are many rows. The context is walked
// in tiles of 64 tokens with a running softmax, so that a token's result depends on its own row alone. A window of
// w > 0 hides keys w or more tokens back; a soft cap of c > 0 makes a score c * tanh(score / c). Sums are float32;
// with bfloat16 pages queries and the softmax's weights are rounded too where there are products of bfloat16.

#include "parallel.h"
#include "vectors.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kTileVectors = 4;
constexpr int kTile = kLanes * kTileVectors;  // context tokens at a time
constexpr int kGroup = 4;                     // queries at a time: 4 x 4 accumulators fill the registers
constexpr int64_t kHalf = kTile / 2;          // tokens of one step of the products with values
constexpr int64_t kBlock = 32;                // tokens of a task
constexpr int64_t kManyBlocks = 8;            // for each thread: enough that a task takes all heads of one
constexpr int64_t kTokensOfWrite = 16;        // tokens whose keys and values a task writes
constexpr float kLeast = -1e30f;              // less than any score, and than its difference to another

struct Problem {
  const float *qkv, *cosines, *sines, *query_norm, *key_norm;
  void *keys, *values;
  float *key_scales, *value_scales;  // of pages of 8 bits
  const int32_t *page_table, *token_row, *positions;
  float* result_floats;
  uint16_t* result_halves;
  int64_t num_heads, num_kv_heads, head_dim, half, page_size, span, table_width;
  int64_t window;  // 0: none
  float scale, soft_cap, epsilon;  // soft_cap 0: none

  const float* Head(int64_t token, int64_t head) const {
    return qkv + (token * (num_heads + 2 * num_kv_heads) + head) * head_dim;
  }

  int64_t HeadSize() const { return head_dim * page_size; }
  int64_t PageStride() const { return num_kv_heads * HeadSize(); }

  // Where the blocks of 16 keys, and of `span` values, begin that hold a place in a page; not of float32.
  int64_t KeyBlock(int64_t offset) const { return offset / kLanes * kLanes * head_dim; }
  int64_t ValueBlock(int64_t offset) const { return offset / span * span * head_dim; }

  int64_t ScalePlace(int64_t page, int64_t head, int64_t offset) const {
    return (page * num_kv_heads + head) * page_size + offset;
  }
};

// Tokens of one row that lie together.
struct Block {
  int64_t first, count;
};

// The queries of one task, and their running softmax.
struct State {
  Lines<float> prepared, mixed;
  Lines<uint16_t> halves;  // queries in bfloat16
  Lines<uint8_t> bytes;    // queries in two rows of bytes each
  Lines<float> steps;      // what one step of those is
  Lines<int32_t> offsets;  // what the keys' zero adds to their products
  Lines<int32_t> positions;
  Lines<float> peaks, totals;
};

}  // namespace

#define KERNEL "paged_attention.inc"
#include "variants.h"

namespace {

std::vector<Block> CutBlocks(const Problem& problem, int64_t num_tokens) {
  std::vector<Block> blocks;
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (problem.positions[token] < 0) continue;
    const bool goes_on = !blocks.empty() && blocks.back().first + blocks.back().count == token &&
                         blocks.back().count < kBlock && problem.token_row[token - 1] == problem.token_row[token];
    if (goes_on)
      ++blocks.back().count;
    else
      blocks.push_back({token, 1});
  }
  return blocks;
}

ffi::Error PagedAttention(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> qkv, ffi::Buffer<ffi::F32> rotation,
                          ffi::Buffer<ffi::F32> norms, ffi::AnyBuffer keys, ffi::AnyBuffer values,
                          ffi::Buffer<ffi::F32> key_scales, ffi::Buffer<ffi::F32> value_scales,
                          ffi::Buffer<ffi::S32> page_table, ffi::Buffer<ffi::S32> token_row,
                          ffi::Buffer<ffi::S32> positions, float scale, int64_t window, float soft_cap,
                          float epsilon, int64_t wanted_level, ffi::Result<ffi::AnyBuffer> result,
                          ffi::Result<ffi::AnyBuffer> written_keys, ffi::Result<ffi::AnyBuffer> written_values,
                          ffi::Result<ffi::Buffer<ffi::F32>> written_key_scales,
                          ffi::Result<ffi::Buffer<ffi::F32>> written_value_scales) {
  const auto shape = qkv.dimensions(), key_shape = keys.dimensions();
  const int64_t num_tokens = shape[0];
  Problem problem{};
  problem.qkv = qkv.typed_data();
  problem.num_kv_heads = key_shape[1], problem.num_heads = shape[1] - 2 * key_shape[1];
  problem.head_dim = shape[2], problem.page_size = key_shape[3];
  const ffi::DataType stored = keys.element_type();
  const bool is_halves = stored == ffi::U16, is_bytes = stored == ffi::S8;
  if (!is_halves && !is_bytes && stored != ffi::F32)
    return ffi::Error::InvalidArgument("keys must be uint16 (bfloat16 bits), int8 or float32");
  if (shape[2] % (is_bytes ? 64 : is_halves ? 32 : kLanes) != 0 || key_shape[2] != shape[2] ||
      key_shape[3] % kLanes != 0)
    return ffi::Error::InvalidArgument(
        "head size must be a multiple of 16 (bfloat16: 32, int8: 64), page size of 16");
  problem.span = is_bytes ? kTile : kHalf;
  while (problem.page_size % problem.span != 0) problem.span /= 2;
  if (keys.untyped_data() != written_keys->untyped_data() || values.untyped_data() != written_values->untyped_data())
    return ffi::Error::InvalidArgument("pages must be written in place");
  if (is_bytes && (key_scales.typed_data() != written_key_scales->typed_data() ||
                   value_scales.typed_data() != written_value_scales->typed_data()))
    return ffi::Error::InvalidArgument("scales must be written in place");
  problem.key_scales = key_scales.typed_data(), problem.value_scales = value_scales.typed_data();
  if (rotation.element_count() > 0) {
    problem.half = rotation.dimensions()[2];
    problem.cosines = rotation.typed_data(), problem.sines = problem.cosines + num_tokens * problem.half;
  }
  if (norms.element_count() > 0)
    problem.query_norm = norms.typed_data(), problem.key_norm = problem.query_norm + shape[2];
  problem.keys = keys.untyped_data(), problem.values = values.untyped_data();
  problem.page_table = page_table.typed_data(), problem.table_width = page_table.dimensions()[1];
  problem.token_row = token_row.typed_data(), problem.positions = positions.typed_data();
  if (result->element_type() == ffi::F32)
    problem.result_floats = static_cast<float*>(result->untyped_data());
  else
    problem.result_halves = static_cast<uint16_t*>(result->untyped_data());
  problem.window = window, problem.scale = scale, problem.soft_cap = soft_cap, problem.epsilon = epsilon;
  const Level level = ChooseLevel(wanted_level);
  const auto write = is_bytes    ? VARIANT(level, WriteBytes)
                     : is_halves ? VARIANT(level, WriteHalves)
                                 : VARIANT(level, WriteFloats);
  const auto attend = is_bytes    ? VARIANT(level, AttendBytes)
                      : is_halves ? VARIANT(level, AttendHalves)
                                  : VARIANT(level, AttendFloats);
  const std::vector<Block> blocks = CutBlocks(problem, num_tokens);
  const int64_t num_blocks = blocks.size(), heads = problem.num_kv_heads;
  // A token a row, and enough of them: a task takes all heads of one, and writes what no other task reads.
  const bool are_rows = std::all_of(blocks.begin(), blocks.end(), [](const Block& block) { return block.count == 1; });
  const bool has_many = are_rows && num_blocks >= kManyBlocks * pool.num_threads();
  const int64_t step = has_many ? heads : 1;
  if (has_many) {
    for (int64_t token = 0; token < num_tokens; ++token)
      if (problem.positions[token] < 0) write(problem, token);
  } else {
    ParallelFor(pool, (num_tokens + kTokensOfWrite - 1) / kTokensOfWrite, [&](int64_t task) {
      const int64_t first = task * kTokensOfWrite;
      for (int64_t token = first; token < std::min(num_tokens, first + kTokensOfWrite); ++token)
        write(problem, token);
    });
  }
  ParallelFor(pool, num_blocks * heads / step, [&](int64_t task) {
    static thread_local std::vector<State> states;
    if (static_cast<int64_t>(states.size()) < step) states.resize(step);
    const Block& block = blocks[task * step / heads];
    const int64_t begin = task * step % heads;
    if (has_many) write(problem, block.first);
    attend(problem, block, begin, begin + step, states.data());
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadracePagedAttention, PagedAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("soft_cap")
                                  .Attr<float>("epsilon")
                                  .Attr<int64_t>("level")
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
