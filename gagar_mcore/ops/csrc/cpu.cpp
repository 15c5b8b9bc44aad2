// The fused advantage step on the CPU. Results do not depend on the number of threads.
#include <algorithm>
#include <vector>

#include "step.h"

using namespace gagar;

namespace {

constexpr int64_t PIECE = 16384;  // tokens that one thread takes at a time
constexpr int CHUNK = 128;        // tokens summed in float32 before the sums go on in float64

struct Partial {
  double sums[NUM_SUMS] = {};
  float maxima[NUM_MAXIMA] = {};
};

// Tokens that follow each other; old, ref and gradient where the loop needs them.
struct Columns {
  const float *logprobs, *rollout, *old, *ref;
  const uint8_t *flags;
  float *gradient;
};

using StepLoop = void (*)(const Step &, const Sequence &, const Columns &, int, Partial &);
using CountLoop = void (*)(const Columns &, int, double *);

struct Loops {
  StepLoop (*step)(const Step &);
  CountLoop (*count)(bool);
};

namespace baseline {
#include "cpu_kernels.h"
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "cpu_kernels.h"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
namespace avx512 {
#include "cpu_kernels.h"
}
#pragma GCC pop_options

Loops loops() {
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return {avx512::step_loop, avx512::count_loop};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {avx2::step_loop, avx2::count_loop};
  return {baseline::step_loop, baseline::count_loop};
}
#else
Loops loops() { return {baseline::step_loop, baseline::count_loop}; }
#endif

// Local positions [begin, end) of one sequence whose tokens follow each other.
struct Piece {
  int64_t sequence, begin, end;
};

bool consistent(const Layout &l) {
  if (l.cu_seqlens[0] != 0 || l.cu_local[0] != 0 || l.cu_seqlens[l.num_sequences] != l.num_tokens) return false;
  for (int64_t s = 0; s < l.num_sequences; ++s)
    if (!consistent(l, s)) return false;
  return true;
}

std::vector<Piece> pieces_of(const Layout &l) {
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < l.num_sequences; ++s)
    for (int64_t t = l.cu_local[s], end; t < l.cu_local[s + 1]; t = end)
      pieces.push_back({s, t, end = std::min(t + PIECE, run_end(l, s, t))});
  return pieces;
}

// Rows of float32 or bfloat16 as float32, through `buffer` where they must be converted; null stays null.
const float *rows(const void *base, bool bf16, int64_t begin, int n, float *buffer) {
  if (!base) return nullptr;
  if (!bf16) return (const float *)base + begin;
  const uint16_t *values = (const uint16_t *)base + begin;
  for (int i = 0; i < n; ++i) buffer[i] = from_bf16(values[i]);
  return buffer;
}

// Call `loop(columns, count)` for each chunk of the piece that predicts tokens; returns where they end.
template <class Loop>
int64_t over_chunks(const Step &a, const Piece &piece, Loop loop) {
  int64_t token = next_token(a.layout, piece.sequence, piece.begin);
  int64_t left = a.layout.cu_seqlens[piece.sequence + 1] - token;
  int64_t end = piece.begin + std::clamp<int64_t>(left, 0, piece.end - piece.begin);
  float buffers[3][CHUNK];
  for (int64_t t = piece.begin; t < end; t += CHUNK, token += CHUNK) {
    int n = (int)std::min<int64_t>(CHUNK, end - t);
    Columns c = {rows(a.logprobs, a.bf16, t, n, buffers[0]), a.rollout_logprobs ? a.rollout_logprobs + token : nullptr,
                 rows(a.old_logprobs, a.bf16, t, n, buffers[1]), rows(a.ref_logprobs, a.bf16, t, n, buffers[2]),
                 a.flags + token, a.gradient ? a.gradient + t : nullptr};
    loop(c, n);
  }
  return end;
}

void step(const Step &a, int threads) {
  const Layout &l = a.layout;
  const std::vector<Piece> pieces = pieces_of(l);
  std::vector<Partial> partials(pieces.size());
  StepLoop loop = loops().step(a);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (size_t i = 0; i < pieces.size(); ++i) {
    Sequence q = sequence_of(a, pieces[i].sequence);
    int64_t end = over_chunks(a, pieces[i], [&](const Columns &c, int n) { loop(a, q, c, n, partials[i]); });
    std::fill(a.gradient + end, a.gradient + pieces[i].end, 0.f);
  }
  std::fill(a.gradient + l.cu_local[l.num_sequences], a.gradient + l.num_local, 0.f);
  if (!a.sums) return;
  std::fill(a.sums, a.sums + NUM_SUMS, 0.);
  std::fill(a.maxima, a.maxima + NUM_MAXIMA, 0.);
  for (const Partial &partial : partials) {
    for (int i = 0; i < NUM_SUMS; ++i) a.sums[i] += partial.sums[i];
    for (int i = 0; i < NUM_MAXIMA; ++i) a.maxima[i] = std::max(a.maxima[i], (double)partial.maxima[i]);
  }
  *a.value = a.sums[SUM_LOSS];
}

void count(const Step &a, double *out, int threads) {
  const std::vector<Piece> pieces = pieces_of(a.layout);
  std::vector<double> partials(pieces.size() * NUM_COUNTS);
  CountLoop loop = loops().count(a.logprobs);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (size_t i = 0; i < pieces.size(); ++i)
    over_chunks(a, pieces[i], [&](Columns c, int n) {
      if (!c.old) c.old = c.rollout;
      loop(c, n, partials.data() + i * NUM_COUNTS);
    });
  std::fill(out, out + a.layout.num_sequences * NUM_COUNTS, 0.);
  for (size_t i = 0; i < pieces.size(); ++i)
    for (int k = 0; k < NUM_COUNTS; ++k) out[pieces[i].sequence * NUM_COUNTS + k] += partials[i * NUM_COUNTS + k];
}

enum Status { OK = 0, BAD_LAYOUT = 1, NO_MEMORY = 2 };

template <class Work>
int guarded(const Layout &l, Work work) {
  if (!consistent(l)) return BAD_LAYOUT;
  try {
    work();
  } catch (const std::bad_alloc &) {
    return NO_MEMORY;
  }
  return OK;
}

}  // namespace

extern "C" {

int64_t gagar_step_size() { return sizeof(Step); }

int gagar_step_cpu(const Step *a, int threads) {
  return guarded(a->layout, [&] { step(*a, threads); });
}

// Log-ratio to the old (or rollout) log-probs where log-probs are given, trained and flagged tokens: [S, NUM_COUNTS].
int gagar_count_cpu(const Step *a, double *out, int threads) {
  return guarded(a->layout, [&] { count(*a, out, threads); });
}

// The token that local position t predicts, -1 for none.
int64_t gagar_predicted_token(const Layout *l, int64_t t) {
  if (t >= l->cu_local[l->num_sequences]) return -1;
  int64_t s = find(l->cu_local, 0, l->num_sequences, t), token = next_token(*l, s, t);
  return token < l->cu_seqlens[s + 1] ? token : -1;
}
}
