// Work shared out among the caller and the threads of XLA's pool.

#ifndef HEADRACE_PARALLEL_H_
#define HEADRACE_PARALLEL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace {

// Runs body(task) for each task from 0 to count - 1 and returns when all are done. Tasks are taken in turn; a
// pool thread that comes late finds none left, so that the caller never waits for one that has not begun.
template <typename Body>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t count, const Body& body) {
  struct Shared {
    const Body* body;
    int64_t count;
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable all_done;

    void Run() {
      for (int64_t task = next++; task < count; task = next++) {
        (*body)(task);
        if (++done == count) {
          std::lock_guard<std::mutex> lock(mutex);
          all_done.notify_all();
        }
      }
    }
  };
  if (count <= 1) {
    if (count == 1) body(0);
    return;
  }
  auto shared = std::make_shared<Shared>();
  shared->body = &body;
  shared->count = count;
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t helper = 0; helper < helpers; ++helper) pool.Schedule([shared] { shared->Run(); });
  shared->Run();
  constexpr int kSpins = 2000;  // some 20 microseconds: a sleeping thread takes longer to wake
  for (int spin = 0; spin < kSpins && shared->done != count; ++spin) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
  }
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all_done.wait(lock, [&] { return shared->done == count; });
}

}  // namespace

#endif  // HEADRACE_PARALLEL_H_
