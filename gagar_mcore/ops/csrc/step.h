// The mathematics of the fused advantage step, shared by the CUDA kernels and the CPU loops: index map, token losses, sums.
#pragma once
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define GAGAR_FN __host__ __device__ __forceinline__
#else
#define GAGAR_FN inline __attribute__((always_inline))
#endif

namespace gagar {

enum Loss : int32_t { MIMO, PPO, GSPO, CISPO, BROADCAST };  // BROADCAST writes the token advantages instead of a gradient
enum Flag : uint8_t { TRAINED = 1, FLAGGED = 2 };
enum Sum {
  SUM_LOSS, SUM_TOKENS, SUM_MASKED_POSITIVE, SUM_MASKED_NEGATIVE, SUM_RATIO, SUM_ROLLOUT_DIFF, SUM_ROLLOUT_KL, SUM_REF_KL,
  SUM_IMPORTANCE, SUM_TRUNCATED, SUM_FLAGGED, NUM_SUMS
};
enum Maximum { MAX_RATIO, MAX_ROLLOUT_DIFF, NUM_MAXIMA };
enum Count { COUNT_LOG_RATIO, COUNT_TRAINED, COUNT_FLAGGED, NUM_COUNTS };

// Where the tokens lie: `TokenLayout` of layout.py.
struct Layout {
  const int64_t *cu_seqlens, *cu_local;  // [S + 1]
  int64_t num_tokens, num_local, num_sequences;
  int32_t cp_size, cp_rank, halved, reserved;
};

// Arguments of one call; the ctypes mirror is `Step` of library.py.
struct Step {
  Layout layout;
  const void *logprobs, *old_logprobs, *ref_logprobs;  // [num_local], float32 or bfloat16; old and ref may be null
  const float *rollout_logprobs;                       // [num_tokens]
  const uint8_t *flags;                                // [num_tokens]
  const double *advantages, *weights;                  // [S]
  const double *behaviour;                             // alpha, beta; null: no shaping
  const double *counts;                                // [S, NUM_COUNTS], read by GSPO
  float *gradient;                                     // [num_local]
  double *value, *sums, *maxima;                       // [] the loss, [NUM_SUMS], [NUM_MAXIMA]; null for BROADCAST
  int32_t loss, bf16, truncate, dual;
  float positive_low, positive_high, negative_low, negative_high, dual_clip, tis_cap, kl_coef, kappa;
};

GAGAR_FN bool consistent(const Layout &l, int64_t s) {
  int64_t whole = l.cu_seqlens[s + 1] - l.cu_seqlens[s], part = l.cu_local[s + 1] - l.cu_local[s];
  bool inside = l.cu_seqlens[s] >= 0 && l.cu_seqlens[s + 1] <= l.num_tokens && l.cu_local[s] >= 0 && l.cu_local[s + 1] <= l.num_local;
  return inside && whole >= 0 && part >= 0 && whole <= part * l.cp_size && !(l.halved && part % 2);
}

// The last i in [low, high) with bounds[i] <= t, soonest where it is near to low.
GAGAR_FN int64_t find(const int64_t *bounds, int64_t low, int64_t high, int64_t t) {
  for (int64_t step = 1; low + step < high; step *= 2) {
    if (bounds[low + step] > t) {
      high = low + step;
      break;
    }
    low += step;
  }
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (bounds[middle] <= t) low = middle; else high = middle;
  }
  return low;
}

// Position in the padded sequence of the `offset` in a rank's part of `length`.
GAGAR_FN int64_t position(const Layout &l, int64_t offset, int64_t length) {
  if (!l.halved) return l.cp_rank * length + offset;
  int64_t chunk = length / 2;
  return offset < chunk ? l.cp_rank * chunk + offset : (2 * l.cp_size - 2 - l.cp_rank) * chunk + offset;
}

// The token that local position t of sequence s predicts, as if the sequence never ended.
GAGAR_FN int64_t next_token(const Layout &l, int64_t s, int64_t t) {
  return l.cu_seqlens[s] + position(l, t - l.cu_local[s], l.cu_local[s + 1] - l.cu_local[s]) + 1;
}

// One after the last local position up to which tokens follow each other.
GAGAR_FN int64_t run_end(const Layout &l, int64_t s, int64_t t) {
  int64_t begin = l.cu_local[s], end = l.cu_local[s + 1], middle = begin + (end - begin) / 2;
  return l.halved && t < middle ? middle : end;
}

GAGAR_FN float bits_to_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value; std::memcpy(&value, &bits, 4); return value;
#endif
}

GAGAR_FN uint32_t float_to_bits(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  uint32_t bits; std::memcpy(&bits, &value, 4); return bits;
#endif
}

GAGAR_FN float from_bf16(uint16_t bits) { return bits_to_float((uint32_t)bits << 16); }

// condition ? yes : no. On the CPU by bits: compilers turn that into a vector blend where they would make a branch of several ternaries.
GAGAR_FN float select(bool condition, float yes, float no) {
#ifdef __CUDA_ARCH__
  return condition ? yes : no;
#else
  uint32_t mask = 0u - (uint32_t)condition;
  return bits_to_float((float_to_bits(yes) & mask) | (float_to_bits(no) & ~mask));
#endif
}

#if defined(__CUDA_ARCH__) || defined(GAGAR_DEVICE_MATH)  // tests run this branch on the CPU, too
// e^x to about three units in the last place, with x held within +-80, NaN staying NaN: 2^(x log2 e) by the special function unit, and
// what rounding the exponent lost.
__device__ __forceinline__ float exponential(float x) {
  x = select(x > 80.f, 80.f, x);
  x = select(x < -80.f, -80.f, x);
  float power = x * 1.44269502f, lost = fmaf(x, 1.44269502f, -power) + x * 1.92596299e-8f;
  float y = exp2f(power);
  return fmaf(y, lost * .693147181f, y);
}
#else
// e^x to about one unit in the last place, free of branches; x is held within +-80, NaN stays NaN.
inline __attribute__((always_inline)) float exponential(float x) {
  const float round = 12582912.f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = select(x > 80.f, 80.f, x);
  x = select(x < -80.f, -80.f, x);
  float shifted = x * 1.44269504f + round, n = shifted - round;
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.f / 5040;
  p = p * r + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + .5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  return p * bits_to_float((float_to_bits(shifted) << 23) + 0x3f800000u);
}
#endif

// Whether `exponential` holds x: there it has no slope.
GAGAR_FN bool outside(float x) { return (x > 80.f) | (x < -80.f); }

// e^x - 1 - x without the cancellation at small x.
GAGAR_FN float k3(float x, float exp_x) {
  float series = x * x * (.5f + x * (1.f / 6 + x * (1.f / 24 + x * (1.f / 120 + x * (1.f / 720 + x * (1.f / 5040))))));
  return select((x > -.25f) & (x < .25f), series, exp_x - 1.f - x);
}

// What all tokens of a sequence share.
struct Sequence {
  float clean, flagged;  // token advantage without and with a behaviour flag
  float weight, low, high, log_ratio, ratio;
  float positive;        // 1 at advantage >= 0, else 0
};

GAGAR_FN Sequence sequence_of(const Step &a, int64_t s) {
  double advantage = a.advantages[s], clean = advantage, flagged = advantage;
  if (a.behaviour) {
    clean = advantage * (advantage > 0 ? a.behaviour[0] : a.behaviour[1]);
    flagged = advantage > 0 ? 0 : a.kappa * advantage;
  }
  bool positive = advantage >= 0;
  float log_ratio = 0.f;
  if (a.loss == GSPO) {
    const double *counts = a.counts + s * NUM_COUNTS;
    log_ratio = (float)(counts[COUNT_LOG_RATIO] / (counts[COUNT_TRAINED] > 0 ? counts[COUNT_TRAINED] : 1));
  }
  return {(float)clean, (float)flagged, (float)a.weights[s], positive ? a.positive_low : a.negative_low,
          positive ? a.positive_high : a.negative_high, log_ratio, exponential(log_ratio), positive ? 1.f : 0.f};
}

struct Token {
  float gradient, loss, trained, masked, ratio, diff, kl, ref_kl, importance, truncated, flagged;
};

// Loss and gradient of one token; see `token_losses` of reference.py for the formulas. Values at tokens that are not trained,
// infinities and NaN among them, leave no trace.
template <int LOSS, bool OLD, bool REF>
GAGAR_FN Token token_step(const Step &a, const Sequence &q, float logprob, float rollout, float old, float ref, uint8_t flags) {
  bool trained = flags & TRAINED, flag = flags & FLAGGED;
  float on = select(trained, 1.f, 0.f);
  logprob = select(trained, logprob, 0.f);
  rollout = select(trained, rollout, 0.f);
  old = OLD ? select(trained, old, 0.f) : rollout;
  float advantage = select(trained, select(flag, q.flagged, q.clean), 0.f);

  float log_ratio = LOSS == GSPO ? q.log_ratio : logprob - old;
  float ratio = LOSS == GSPO ? q.ratio : exponential(log_ratio);
  float clipped = select(ratio < q.low, q.low, select(ratio > q.high, q.high, ratio));
  float free = -ratio * advantage, bounded = -clipped * advantage, slope, loss;
  bool masked = (ratio < q.low) | (ratio > q.high);
  if (LOSS == MIMO) {
    slope = select(masked, 0.f, free);
    loss = select(masked, 0.f, slope * logprob);
  } else if (LOSS == CISPO) {
    slope = bounded;
    loss = slope * logprob;
  } else {
    masked = bounded > free;
    slope = select(masked | outside(log_ratio), 0.f, free);
    loss = select(masked, bounded, free);
    if (LOSS == PPO) {
      float ceiling = -a.dual_clip * advantage;
      bool too_high = (a.dual != 0) & (advantage < 0.f) & (loss > ceiling);
      slope = select(too_high, 0.f, slope);
      loss = select(too_high, ceiling, loss);
      masked = masked | too_high;
    }
  }
  float importance = 1.f, truncated = 0.f;
  if (OLD) {
    float off = exponential(old - rollout);
    bool above = (a.truncate != 0) & (off > a.tis_cap);
    importance = select(a.truncate != 0, select(above, a.tis_cap, off), 1.f);
    truncated = select(above, on, 0.f);
    slope *= importance;
    loss *= importance;
  }
  float kl = 0.f;
  if (REF) {
    float gap = select(trained, ref, 0.f) - logprob;
    kl = k3(gap, exponential(gap));
    loss += select(a.kl_coef > 0.f, a.kl_coef * kl, 0.f);
    slope -= select(a.kl_coef > 0.f, a.kl_coef * select(outside(gap), -1.f, kl + gap), 0.f);
  }
  float diff = logprob - rollout;
  return {q.weight * slope, q.weight * loss, on, select(masked, on, 0.f), on * ratio, select(diff < 0.f, -diff, diff), -diff,
          kl, on * importance, truncated, select(flag, on, 0.f)};
}

}  // namespace gagar
