// The fused advantage step on a GPU: two launches, no synchronisation with the host, sums in a fixed order.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "step.h"

#ifndef LAUNCH  // tests bring their own and run the kernels on the CPU
#define LAUNCH(kernel, blocks, threads, stream) kernel<<<blocks, threads, 0, stream>>>
#endif

using namespace gagar;

namespace {

constexpr int THREADS = 256, ITEMS = 8, TILE = THREADS * ITEMS, WARPS = THREADS / 32;
constexpr int MAX_BLOCKS = 2048;
constexpr int NUM_PARTIALS = NUM_SUMS + NUM_MAXIMA;
constexpr int64_t COUNT_TILE = 1024;  // local positions that one warp counts
constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();

template <bool BF16>
__device__ float load(const void *base, int64_t i) {
  if (BF16) return from_bf16(__ldcs((const unsigned short *)base + i));
  return __ldcs((const float *)base + i);
}

__device__ double reduce_sum(double x) {
  for (int lane = 16; lane; lane >>= 1) x += __shfl_down_sync(~0u, x, lane);
  return x;
}

__device__ double reduce_max(double x) {
  for (int lane = 16; lane; lane >>= 1) x = fmax(x, __shfl_down_sync(~0u, x, lane));
  return x;
}

// One sequence, kept in registers while its tokens last.
struct Cursor {
  int64_t sequence, end, token_end;  // token_end is 0 where the bounds contradict each other: then no token is read
  Sequence shared;
};

__device__ Cursor cursor_at(const Step &a, int64_t low, int64_t t) {
  const Layout &l = a.layout;
  const int64_t s = find(l.cu_local, low, l.num_sequences, t);
  const bool sound = consistent(l, s) && l.cu_local[s] <= t && t < l.cu_local[s + 1];
  return {s, l.cu_local[s + 1], sound ? l.cu_seqlens[s + 1] : 0, sequence_of(a, s)};
}

__device__ void add(const Token &o, float positive, float *sums, float *maxima) {
  const float values[NUM_SUMS] = {o.loss, o.trained, o.masked * positive, o.masked * (1.f - positive), o.ratio, o.diff,
                                  o.kl, o.ref_kl, o.importance, o.truncated, o.flagged};
#pragma unroll
  for (int i = 0; i < NUM_SUMS; ++i) sums[i] += values[i];
  maxima[MAX_RATIO] = fmaxf(maxima[MAX_RATIO], o.ratio);
  maxima[MAX_ROLLOUT_DIFF] = fmaxf(maxima[MAX_ROLLOUT_DIFF], o.diff);
}

template <int LOSS>
__device__ Token one_token(const Step &a, const Sequence &q, float logprob, float rollout, float old, float ref, uint8_t flags) {
  if (LOSS != MIMO && a.old_logprobs)
    return a.ref_logprobs ? token_step<LOSS, true, true>(a, q, logprob, rollout, old, ref, flags)
                          : token_step<LOSS, true, false>(a, q, logprob, rollout, old, ref, flags);
  return a.ref_logprobs ? token_step<LOSS, false, true>(a, q, logprob, rollout, old, ref, flags)
                        : token_step<LOSS, false, false>(a, q, logprob, rollout, old, ref, flags);
}

// A block takes tiles that follow each other; thread i of it the positions i, i + THREADS, ... of a tile, so that neighbours read
// neighbours whatever the alignment. Sums are float32 within a tile and float64 beyond.
template <int LOSS, bool BF16>
__global__ void __launch_bounds__(THREADS) step_kernel(Step a, double *partials) {
  const Layout &l = a.layout;
  const int64_t tiles = (l.num_local + TILE - 1) / TILE, used = l.cu_local[l.num_sequences];
  const int64_t first = tiles * blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1) / gridDim.x;
  double sums[NUM_SUMS] = {};
  float maxima[NUM_MAXIMA] = {};
  Cursor c{};
  for (int64_t tile = first; tile < last; ++tile) {
    float logprob[ITEMS], rollout[ITEMS], old[ITEMS], ref[ITEMS], tile_sums[NUM_SUMS] = {};
    uint8_t flags[ITEMS];
    const int64_t start = tile * TILE + threadIdx.x;
    if (start < used && start >= c.end) c = cursor_at(a, c.sequence, start);
    Cursor ahead = c;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const int64_t t = start + (int64_t)k * THREADS;
      int64_t token = -1;
      if (t < used) {
        if (t >= ahead.end) ahead = cursor_at(a, ahead.sequence, t);
        token = next_token(l, ahead.sequence, t);
        if (token >= ahead.token_end) token = -1;
      }
      flags[k] = token < 0 ? 0 : __ldcs(a.flags + token);
      if (LOSS == BROADCAST || token < 0) continue;
      logprob[k] = load<BF16>(a.logprobs, t);
      rollout[k] = __ldcs(a.rollout_logprobs + token);
      if (LOSS != MIMO && a.old_logprobs) old[k] = load<BF16>(a.old_logprobs, t);
      if (a.ref_logprobs) ref[k] = load<BF16>(a.ref_logprobs, t);
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const int64_t t = start + (int64_t)k * THREADS;
      if (t >= l.num_local) break;
      if (t < used && t >= c.end) c = cursor_at(a, c.sequence, t);
      float out = 0.f;
      if (LOSS == BROADCAST) {
        out = flags[k] & TRAINED ? (flags[k] & FLAGGED ? c.shared.flagged : c.shared.clean) : 0.f;
      } else if (flags[k] & TRAINED) {
        Token o = one_token<LOSS>(a, c.shared, logprob[k], rollout[k], old[k], ref[k], flags[k]);
        out = o.gradient;
        add(o, c.shared.positive, tile_sums, maxima);
      }
      __stcs(a.gradient + t, out);
    }
#pragma unroll
    for (int i = 0; i < NUM_SUMS; ++i) sums[i] += tile_sums[i];
  }
  if (LOSS == BROADCAST) return;
  __shared__ double shared[WARPS][NUM_PARTIALS];
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < NUM_PARTIALS; ++i) {
    double x = i < NUM_SUMS ? reduce_sum(sums[i]) : reduce_max(maxima[i - NUM_SUMS]);
    if (threadIdx.x % 32 == 0) shared[warp][i] = x;
  }
  __syncthreads();
  if (threadIdx.x >= NUM_PARTIALS) return;
  double x = 0;
  for (int w = 0; w < WARPS; ++w) x = threadIdx.x < NUM_SUMS ? x + shared[w][threadIdx.x] : fmax(x, shared[w][threadIdx.x]);
  partials[(int64_t)blockIdx.x * NUM_PARTIALS + threadIdx.x] = x;
}

// One warp for each sum and maximum. Bounds that contradict each other make the loss NaN: the host is not asked.
__global__ void finish_kernel(Layout l, const double *partials, int blocks, double *value, double *sums, double *maxima) {
  bool bad = l.cu_seqlens[0] != 0 || l.cu_local[0] != 0 || l.cu_seqlens[l.num_sequences] != l.num_tokens;
  for (int64_t s = threadIdx.x; s < l.num_sequences; s += blockDim.x) bad |= !consistent(l, s);
  bad = __syncthreads_or(bad);
  const int i = threadIdx.x / 32;
  double x = i == SUM_LOSS && bad ? NOT_A_NUMBER : 0;
  for (int b = threadIdx.x % 32; b < blocks; b += 32) {
    double y = partials[(int64_t)b * NUM_PARTIALS + i];
    x = i < NUM_SUMS ? x + y : fmax(x, y);
  }
  x = i < NUM_SUMS ? reduce_sum(x) : reduce_max(x);
  if (threadIdx.x % 32) return;
  if (i == SUM_LOSS) *value = x;
  if (i < NUM_SUMS) sums[i] = x; else maxima[i - NUM_SUMS] = x;
}

// One warp counts the sequences of its tile. A sequence that lies in one tile is written at once; of one that began before, the tile
// keeps the share in heads, of one that goes on after it in tails.
template <bool BF16>
__global__ void __launch_bounds__(THREADS) count_kernel(Step a, double *out, double *heads, double *tails) {
  const Layout &l = a.layout;
  const int64_t used = l.cu_local[l.num_sequences], tile = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  const int64_t begin = tile * COUNT_TILE, end = begin + COUNT_TILE < used ? begin + COUNT_TILE : used;
  const int lane = threadIdx.x % 32;
  if (begin >= end) return;
  for (int64_t s = find(l.cu_local, 0, l.num_sequences, begin); s < l.num_sequences && l.cu_local[s] < end; ++s) {
    const int64_t from = l.cu_local[s], to = l.cu_local[s + 1], token_end = l.cu_seqlens[s + 1];
    if (from == to) continue;
    const bool sound = consistent(l, s);
    double counts[NUM_COUNTS] = {};
    for (int64_t t = (from > begin ? from : begin) + lane; t < (to < end ? to : end); t += 32) {
      const int64_t token = next_token(l, s, t);
      if (!sound || token < 0 || token >= token_end) continue;
      const uint8_t flags = a.flags[token];
      if (!(flags & TRAINED)) continue;
      counts[COUNT_TRAINED] += 1;
      counts[COUNT_FLAGGED] += flags & FLAGGED ? 1 : 0;
      if (a.logprobs)
        counts[COUNT_LOG_RATIO] += load<BF16>(a.logprobs, t) -
                                   (a.old_logprobs ? load<BF16>(a.old_logprobs, t) : a.rollout_logprobs[token]);
    }
    double *target = from < begin ? heads + tile * NUM_COUNTS : (to > end ? tails + tile * NUM_COUNTS : out + s * NUM_COUNTS);
    for (int i = 0; i < NUM_COUNTS; ++i) {
      double x = reduce_sum(counts[i]);
      if (lane == 0) target[i] = sound ? x : NOT_A_NUMBER;
    }
  }
}

// One warp adds up the shares of a sequence that lies in several tiles.
__global__ void __launch_bounds__(THREADS) join_kernel(Layout l, double *out, const double *heads, const double *tails) {
  const int64_t s = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (s >= l.num_sequences) return;
  const int64_t from = l.cu_local[s], to = l.cu_local[s + 1], first = from / COUNT_TILE, last = (to - 1) / COUNT_TILE;
  if (to > from && first == last) return;
  for (int i = 0; i < NUM_COUNTS; ++i) {
    double x = 0;
    if (to > from)
      for (int64_t tile = first + lane; tile <= last; tile += 32) x += (tile == first ? tails : heads)[tile * NUM_COUNTS + i];
    x = reduce_sum(x);
    if (lane == 0) out[s * NUM_COUNTS + i] = x;
  }
}

template <int LOSS>
int launch_step(const Step &a, double *partials, cudaStream_t stream) {
  auto kernel = a.bf16 ? step_kernel<LOSS, true> : step_kernel<LOSS, false>;
  int device = 0, processors = 1, resident = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, THREADS, 0);
  const int64_t tiles = (a.layout.num_local + TILE - 1) / TILE;
  const int blocks = (int)std::clamp<int64_t>(tiles, 1, std::min(processors * std::max(resident, 1), MAX_BLOCKS));
  LAUNCH(kernel, blocks, THREADS, stream)(a, partials);
  if (LOSS != BROADCAST)
    LAUNCH(finish_kernel, 1, 32 * NUM_PARTIALS, stream)(a.layout, partials, blocks, a.value, a.sums, a.maxima);
  return (int)cudaGetLastError();
}

int64_t count_tiles(const Layout &l) { return (l.num_local + COUNT_TILE - 1) / COUNT_TILE; }

}  // namespace

extern "C" {

int64_t gagar_step_size() { return sizeof(Step); }

int64_t gagar_step_workspace(const Step *) { return (int64_t)MAX_BLOCKS * NUM_PARTIALS * sizeof(double); }

int gagar_step_cuda(const Step *a, void *workspace, void *stream) {
  auto *partials = (double *)workspace;
  auto queue = (cudaStream_t)stream;
  switch (a->loss) {
    case MIMO: return launch_step<MIMO>(*a, partials, queue);
    case PPO: return launch_step<PPO>(*a, partials, queue);
    case GSPO: return launch_step<GSPO>(*a, partials, queue);
    case CISPO: return launch_step<CISPO>(*a, partials, queue);
    default: return launch_step<BROADCAST>(*a, partials, queue);
  }
}

int64_t gagar_count_workspace(const Step *a) { return 2 * (count_tiles(a->layout) + 1) * NUM_COUNTS * sizeof(double); }

int gagar_count_cuda(const Step *a, double *out, void *workspace, void *stream) {
  const int64_t tiles = count_tiles(a->layout), sequences = a->layout.num_sequences;
  auto *heads = (double *)workspace, *tails = heads + tiles * NUM_COUNTS;
  auto queue = (cudaStream_t)stream;
  if (!sequences) return 0;
  if (tiles) {
    auto kernel = a->bf16 ? count_kernel<true> : count_kernel<false>;
    LAUNCH(kernel, (unsigned)((tiles + WARPS - 1) / WARPS), THREADS, queue)(*a, out, heads, tails);
  }
  LAUNCH(join_kernel, (unsigned)((sequences + WARPS - 1) / WARPS), THREADS, queue)(a->layout, out, heads, tails);
  return (int)cudaGetLastError();
}
}
