// Vectors of 16 lanes, and what of the machine decides which instructions run.

#ifndef HEADRACE_VECTORS_H_
#define HEADRACE_VECTORS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define HAS_VARIANTS 1
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(HAS_VARIANTS) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int kLanes = 16;
constexpr int64_t kSpan = 128;  // inputs that have a scale of their own where numbers are rounded (fixed_point.inc)
constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: added to a number, its lower bits are the nearest whole number
constexpr float kLowest = -std::numeric_limits<float>::infinity();

typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), aligned(2)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes), aligned(1)));

// Memory that begins with a line of the cache: tiles that do not are read at half the speed.
template <typename Number>
struct LineAllocator {
  using value_type = Number;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <typename Other>
  LineAllocator(const LineAllocator<Other>&) {}

  Number* allocate(size_t count) { return static_cast<Number*>(::operator new(count * sizeof(Number), kLine)); }
  void deallocate(Number* numbers, size_t) { ::operator delete(numbers, kLine); }

  bool operator==(const LineAllocator&) const { return true; }
  bool operator!=(const LineAllocator&) const { return false; }
};

template <typename Number>
using Lines = std::vector<Number, LineAllocator<Number>>;

// Room for `count` numbers.
template <typename Number>
inline Number* Room(Lines<Number>& lines, int64_t count) {
  if (static_cast<int64_t>(lines.size()) < count) lines.resize(count);
  return lines.data();
}

// Instruction sets, each of which implies those before it.
enum Level { kPortable, kAvx2, kAvx512, kBfloat16, kTiles };

#if defined(HAS_VARIANTS) && defined(__linux__)
// Tile registers: the processor has them, the system saves them, and this process may use them.
inline bool HasTiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d >> 22 & 1) || !(d >> 24 & 1) || !(d >> 25 & 1)) return false;  // AMX-BF16, AMX-TILE, AMX-INT8
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
inline bool HasTiles() { return false; }
#endif

inline Level BestLevel() {
#ifdef HAS_VARIANTS
  const bool wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq");
  if (wide && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
    return HasTiles() ? kTiles : kBfloat16;
  if (wide) return kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
  return kPortable;
}

// The best instruction set of this machine, or `wanted` where that is lower.
inline Level ChooseLevel(int64_t wanted) {
  static const Level best = BestLevel();
  return static_cast<Level>(std::min<int64_t>(wanted, best));
}

}  // namespace

#endif  // HEADRACE_VECTORS_H_
