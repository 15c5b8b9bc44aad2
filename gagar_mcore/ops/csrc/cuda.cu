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
constexpr int FLOAT_TILES = 4;  // tiles summed in float32 before the sums go on in float64
constexpr int MAX_BLOCKS = 2048;
constexpr int NUM_PARTIALS = (int)NUM_SUMS + (int)NUM_MAXIMA;
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

// Local positions that belong to sequences, whatever the bounds say.
__device__ int64_t used_positions(const Layout &l) {
  const int64_t used = l.num_sequences ? l.cu_local[l.num_sequences] : 0;
  return used < l.num_local ? used : l.num_local;
}

// Whether the bounds, and those of the sequences low, low + stride, ..., contradict each other or the number of tokens.
__device__ bool contradictory(const Layout &l, int64_t low, int64_t stride) {
  bool bad = l.cu_seqlens[0] != 0 || l.cu_local[0] != 0 || l.cu_seqlens[l.num_sequences] != l.num_tokens;
  for (int64_t s = low; s < l.num_sequences; s += stride) bad |= !consistent(l, s);
  return bad;
}

constexpr int64_t UNSOUND = INT64_MIN;

// One sequence, kept in registers while its tokens last.
struct Cursor {
  int64_t sequence, end, token_end;  // token_end is UNSOUND where the bounds contradict each other: then no token is read
  Sequence shared;
};

__device__ Cursor cursor_at(const Step &a, int64_t low, int64_t t) {
  const Layout &l = a.layout;
  const int64_t s = find(l.cu_local, low, l.num_sequences, t);
  const bool sound = consistent(l, s) && l.cu_local[s] <= t && t < l.cu_local[s + 1];
  return {s, l.cu_local[s + 1], sound ? l.cu_seqlens[s + 1] : UNSOUND, sequence_of(a, s)};
}

// What a position reads.
struct Item {
  float logprob, rollout, old, ref;
  uint8_t flags;
};

template <int LOSS, bool BF16>
__device__ Item read_item(const Step &a, int64_t t, int64_t token) {
  Item item{};
  item.flags = __ldcs(a.flags + token);
  if (LOSS == BROADCAST) return item;
  item.logprob = load<BF16>(a.logprobs, t);
  item.rollout = __ldcs(a.rollout_logprobs + token);
  if (LOSS != MIMO && a.old_logprobs) item.old = load<BF16>(a.old_logprobs, t);
  if (a.ref_logprobs) item.ref = load<BF16>(a.ref_logprobs, t);
  return item;
}

template <int LOSS>
__device__ Token one_token(const Step &a, const Sequence &q, const Item &i) {
  if (LOSS != MIMO && a.old_logprobs)
    return a.ref_logprobs ? token_step<LOSS, true, true>(a, q, i.logprob, i.rollout, i.old, i.ref, i.flags)
                          : token_step<LOSS, true, false>(a, q, i.logprob, i.rollout, i.old, i.ref, i.flags);
  return a.ref_logprobs ? token_step<LOSS, false, true>(a, q, i.logprob, i.rollout, i.old, i.ref, i.flags)
                        : token_step<LOSS, false, false>(a, q, i.logprob, i.rollout, i.old, i.ref, i.flags);
}

// Sums of one thread, in float32 over FLOAT_TILES tiles.
struct Totals {
  float sums[NUM_SUMS] = {}, maxima[NUM_MAXIMA] = {};

  __device__ void add(const Token &o, float positive) {
    const float values[NUM_SUMS] = {o.loss, o.trained, o.masked * positive, o.masked * (1.f - positive), o.ratio, o.diff,
                                    o.kl, o.ref_kl, o.importance, o.truncated, o.flagged};
#pragma unroll
    for (int i = 0; i < NUM_SUMS; ++i) sums[i] += values[i];
    maxima[MAX_RATIO] = fmaxf(maxima[MAX_RATIO], o.ratio);
    maxima[MAX_ROLLOUT_DIFF] = fmaxf(maxima[MAX_ROLLOUT_DIFF], o.diff);
  }
};

// Value to write for one position.
template <int LOSS>
__device__ float take(const Step &a, const Sequence &q, const Item &item, Totals &totals) {
  if (!(item.flags & TRAINED)) return 0.f;
  if (LOSS == BROADCAST) return item.flags & FLAGGED ? q.flagged : q.clean;
  const Token o = one_token<LOSS>(a, q, item);
  totals.add(o, q.positive);
  return o.gradient;
}

// A tile whose positions all predict tokens that follow each other: thread i takes the positions i, i + THREADS, ..., so that
// neighbours read neighbours whatever the alignment, and all loads are under way before the first is used.
template <int LOSS, bool BF16>
__device__ void even_tile(const Step &a, const Sequence &q, int64_t begin, int64_t token, Totals &totals) {
  Item items[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; ++k)
    items[k] = read_item<LOSS, BF16>(a, begin + threadIdx.x + k * THREADS, token + threadIdx.x + k * THREADS);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) __stcs(a.gradient + begin + threadIdx.x + k * THREADS, take<LOSS>(a, q, items[k], totals));
}

// Any other tile: ends of sequences and of chunks, padding, filling.
template <int LOSS, bool BF16>
__device__ void mixed_tile(const Step &a, Cursor c, int64_t begin, int64_t used, Totals &totals) {
  const Layout &l = a.layout;
  const int64_t end = begin + TILE < l.num_local ? begin + TILE : l.num_local;
#pragma unroll 1
  for (int64_t t = begin + threadIdx.x; t < end; t += THREADS) {
    float out = 0.f;
    if (t < used) {
      if (t >= c.end) c = cursor_at(a, c.sequence, t);
      const int64_t token = next_token(l, c.sequence, t);
      if (c.token_end == UNSOUND)
        out = (float)NOT_A_NUMBER;
      else if (token < c.token_end)
        out = take<LOSS>(a, c.shared, read_item<LOSS, BF16>(a, t, token), totals);
    }
    __stcs(a.gradient + t, out);
  }
}

// The block's sums and maxima, warps in order.
__device__ void write_partials(const double *sums, const float *maxima, double *partials) {
  __shared__ double shared[WARPS][NUM_PARTIALS];
#pragma unroll
  for (int i = 0; i < NUM_PARTIALS; ++i) {
    double x = i < NUM_SUMS ? reduce_sum(sums[i]) : reduce_max(maxima[i - NUM_SUMS]);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][i] = x;
  }
  __syncthreads();
  if (threadIdx.x >= NUM_PARTIALS) return;
  double x = 0;
  for (int w = 0; w < WARPS; ++w) x = threadIdx.x < NUM_SUMS ? x + shared[w][threadIdx.x] : fmax(x, shared[w][threadIdx.x]);
  partials[threadIdx.x] = x;
}

// A block takes tiles that follow each other. Bounds that contradict each other become NaN: the host is not asked.
template <int LOSS, bool BF16>
__global__ void __launch_bounds__(THREADS, LOSS == MIMO ? 3 : 2) step_kernel(Step a, double *partials) {
  const Layout &l = a.layout;
  const int64_t tiles = (l.num_local + TILE - 1) / TILE, used = used_positions(l);
  const int64_t first = tiles * blockIdx.x / gridDim.x, last = tiles * (blockIdx.x + 1) / gridDim.x;
  double sums[NUM_SUMS] = {};
  Totals totals;
  Cursor c{};
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t begin = tile * TILE;
    if (begin < used && begin >= c.end) c = cursor_at(a, c.sequence, begin);
    const int64_t token = begin < used ? next_token(l, c.sequence, begin) : 0;
    if (begin < used && token + TILE <= c.token_end && begin + TILE <= run_end(l, c.sequence, begin))
      even_tile<LOSS, BF16>(a, c.shared, begin, token, totals);
    else
      mixed_tile<LOSS, BF16>(a, c, begin, used, totals);
    if ((tile - first) % FLOAT_TILES < FLOAT_TILES - 1 && tile + 1 < last) continue;
#pragma unroll
    for (int i = 0; i < NUM_SUMS; ++i) {
      sums[i] += totals.sums[i];
      totals.sums[i] = 0.f;
    }
  }
  const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (__syncthreads_or(contradictory(l, thread, (int64_t)gridDim.x * THREADS))) {
    for (int64_t t = first * TILE + threadIdx.x; t < last * TILE && t < l.num_local; t += THREADS) a.gradient[t] = (float)NOT_A_NUMBER;
    sums[SUM_LOSS] = NOT_A_NUMBER;
  }
  if (LOSS != BROADCAST) write_partials(sums, totals.maxima, partials + (int64_t)blockIdx.x * NUM_PARTIALS);
}

// One warp for each sum and maximum.
__global__ void finish_kernel(const double *partials, int blocks, double *value, double *sums, double *maxima) {
  const int i = threadIdx.x / 32;
  double x = 0;
  for (int b = threadIdx.x % 32; b < blocks; b += 32) {
    double y = partials[(int64_t)b * NUM_PARTIALS + i];
    x = i < NUM_SUMS ? x + y : fmax(x, y);
  }
  x = i < NUM_SUMS ? reduce_sum(x) : reduce_max(x);
  if (threadIdx.x % 32) return;
  if (i == SUM_LOSS) *value = x;
  if (i < NUM_SUMS) sums[i] = x; else maxima[i - NUM_SUMS] = x;
}

// Counts of a lane over the positions [begin, end) of one sequence.
template <bool BF16>
__device__ void count_lane(const Step &a, int64_t s, int64_t begin, int64_t end, double *counts) {
  const Layout &l = a.layout;
  for (int64_t run = begin; run < end;) {
    const int64_t shift = next_token(l, s, run) - run, left = l.cu_seqlens[s + 1] - shift;
    const int64_t next = run_end(l, s, run) < end ? run_end(l, s, run) : end, stop = next < left ? next : left;
#pragma unroll 8
    for (int64_t t = run + threadIdx.x % 32; t < stop; t += 32) {
      const uint8_t flags = a.flags[t + shift];
      const bool on = flags & TRAINED;
      counts[COUNT_TRAINED] += on ? 1 : 0;
      counts[COUNT_FLAGGED] += on && flags & FLAGGED ? 1 : 0;
      if (a.logprobs) {
        const float old = a.old_logprobs ? load<BF16>(a.old_logprobs, t) : a.rollout_logprobs[t + shift];
        const float log_ratio = load<BF16>(a.logprobs, t) - old;
        counts[COUNT_LOG_RATIO] += on ? log_ratio : 0.f;
      }
    }
    run = next;
  }
}

// One warp counts the sequences of its tile. A sequence that lies in one tile is written at once; of one that began before, the tile
// keeps the share in heads, of one that goes on after it in tails.
template <bool BF16>
__global__ void __launch_bounds__(THREADS) count_kernel(Step a, double *out, double *heads, double *tails) {
  const Layout &l = a.layout;
  const int64_t used = used_positions(l), tile = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  const int64_t begin = tile * COUNT_TILE, end = begin + COUNT_TILE < used ? begin + COUNT_TILE : used;
  if (begin >= end) return;
  for (int64_t s = find(l.cu_local, 0, l.num_sequences, begin); s < l.num_sequences && l.cu_local[s] < end; ++s) {
    const int64_t from = l.cu_local[s], to = l.cu_local[s + 1];
    if (!consistent(l, s) || to <= begin || from == to) continue;
    double counts[NUM_COUNTS] = {};
    count_lane<BF16>(a, s, from > begin ? from : begin, to < end ? to : end, counts);
    double *target = from < begin ? heads + tile * NUM_COUNTS : (to > end ? tails + tile * NUM_COUNTS : out + s * NUM_COUNTS);
    for (int i = 0; i < NUM_COUNTS; ++i) {
      double x = reduce_sum(counts[i]);
      if (threadIdx.x % 32 == 0) target[i] = x;
    }
  }
}

// One warp adds up the shares of a sequence that lies in several tiles. Bounds that contradict each other become NaN.
__global__ void __launch_bounds__(THREADS) join_kernel(Layout l, double *out, const double *heads, const double *tails) {
  const int64_t s = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (s >= l.num_sequences) return;
  const bool bad = contradictory(l, s, l.num_sequences);
  const int64_t from = l.cu_local[s], to = l.cu_local[s + 1], first = from / COUNT_TILE, last = (to - 1) / COUNT_TILE;
  if (!bad && to > from && first == last) return;
  for (int i = 0; i < NUM_COUNTS; ++i) {
    double x = 0;
    if (!bad && to > from)
      for (int64_t tile = first + lane; tile <= last; tile += 32) x += (tile == first ? tails : heads)[tile * NUM_COUNTS + i];
    x = reduce_sum(x);
    if (lane == 0) out[s * NUM_COUNTS + i] = bad ? NOT_A_NUMBER : x;
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
    LAUNCH(finish_kernel, 1, 32 * NUM_PARTIALS, stream)(partials, blocks, a.value, a.sums, a.maxima);
  return (int)cudaGetLastError();
}

int64_t count_tiles(const Layout &l) { return (l.num_local + COUNT_TILE - 1) / COUNT_TILE; }

}  // namespace

extern "C" {

int64_t gagar_step_size() { return sizeof(Step); }

// Why the kernels cannot run on the current device, null where they can.
const char *gagar_refusal() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, finish_kernel);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char *gagar_error(int status) { return cudaGetErrorString((cudaError_t)status); }

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
  // What no warp writes, because of bounds that contradict each other, is NaN: all bits set.
  cudaMemsetAsync(out, 0xff, sequences * NUM_COUNTS * sizeof(double), queue);
  cudaMemsetAsync(workspace, 0xff, gagar_count_workspace(a), queue);
  if (tiles) {
    auto kernel = a->bf16 ? count_kernel<true> : count_kernel<false>;
    LAUNCH(kernel, (unsigned)((tiles + WARPS - 1) / WARPS), THREADS, queue)(*a, out, heads, tails);
  }
  LAUNCH(join_kernel, (unsigned)((sequences + WARPS - 1) / WARPS), THREADS, queue)(a->layout, out, heads, tails);
  return (int)cudaGetLastError();
}
}
