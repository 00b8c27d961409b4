// Zeros that take no memory until they are written, for CPUs: an XLA custom call.
//
// To write zeros would touch every page. Whole pages of private memory that are given back to the system read as
// zeros again, and cost nothing until something is written to them.

#include <cstdint>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

ffi::Error Zeros(ffi::Result<ffi::AnyBuffer> result) {
  auto* data = static_cast<char*>(result->untyped_data());
  const size_t size = result->size_bytes();
#ifdef __linux__
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + size;
  const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  if (first < last && madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0) {
    std::memset(data, 0, first - begin);
    std::memset(reinterpret_cast<void*>(last), 0, end - last);
    return ffi::Error::Success();
  }
#endif
  std::memset(data, 0, size);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(HeadraceZeros, Zeros, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());
