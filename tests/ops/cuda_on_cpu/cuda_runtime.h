// Runs CUDA kernels on the CPU, one thread for each CUDA thread and one block after another, so that their index arithmetic and
// reductions are tested where no GPU is. It stands in for the GPU alone; speed, memory order and launch limits are not modelled.
#pragma once
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#define GAGAR_DEVICE_MATH
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after another
#define LAUNCH(kernel, blocks, threads, stream) shim::Launch{(int)(blocks), (int)(threads)}.of(kernel)

struct Index { unsigned x; };
inline thread_local Index threadIdx, blockIdx;
inline Index blockDim, gridDim;

using cudaStream_t = void *;
using std::fmax;
enum { cudaDevAttrMultiProcessorCount };
inline int cudaGetDevice(int *device) { return *device = 0; }
inline int cudaDeviceGetAttribute(int *value, int, int) { *value = 3; return 0; }
template <class Kernel> int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Kernel, int, int) { *blocks = 1; return 0; }
inline int cudaGetLastError() { return 0; }
enum cudaError_t { cudaSuccess };
inline int cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t) { return std::memset(p, byte, n) == nullptr; }
struct cudaFuncAttributes {};
template <class Kernel> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, Kernel) { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return "no error"; }

template <class T> T __ldcs(const T *p) { return *p; }
template <class T> void __stcs(T *p, T value) { *p = value; }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }

namespace shim {

using Barrier = std::barrier<>;
inline std::unique_ptr<Barrier> block_barrier;
inline std::vector<std::unique_ptr<Barrier>> warp_barriers;
inline std::vector<double> exchanged;
inline std::vector<int> votes;

struct Launch {
  int blocks, threads;

  template <class... Formal>
  auto of(void (*kernel)(Formal...)) {
    return [*this, kernel](auto... actual) {
      blockDim.x = threads;
      gridDim.x = blocks;
      for (int b = 0; b < blocks; ++b) run([&] { kernel(actual...); }, b);
    };
  }

  void run(const std::function<void()> &body, int block) const {
    block_barrier = std::make_unique<Barrier>(threads);
    warp_barriers.clear();
    for (int w = 0; w < threads / 32; ++w) warp_barriers.push_back(std::make_unique<Barrier>(32));
    exchanged.assign(threads, 0);
    votes.assign(threads, 0);
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i)
      workers.emplace_back([&, i] {
        threadIdx.x = i;
        blockIdx.x = block;
        body();
      });
    for (std::thread &worker : workers) worker.join();
  }
};

}  // namespace shim

inline void __syncthreads() { shim::block_barrier->arrive_and_wait(); }

inline int __syncthreads_or(int vote) {
  shim::votes[threadIdx.x] = vote;
  __syncthreads();
  int any = std::any_of(shim::votes.begin(), shim::votes.end(), [](int v) { return v != 0; });
  __syncthreads();
  return any;
}

inline double __shfl_down_sync(unsigned, double value, int by) {
  shim::Barrier &warp = *shim::warp_barriers[threadIdx.x / 32];
  shim::exchanged[threadIdx.x] = value;
  warp.arrive_and_wait();
  double other = threadIdx.x % 32 + by < 32 ? shim::exchanged[threadIdx.x + by] : value;
  warp.arrive_and_wait();
  return other;
}
