// Loops over tokens that follow each other; cpu.cpp includes this once for each instruction set.

template <int LOSS, bool OLD, bool REF>
static void run_tokens(const Step &a, const Sequence &q, const Columns &c, int n, Partial &out) {
  float loss = 0, tokens = 0, masked = 0, ratio = 0, diff = 0, kl = 0, ref_kl = 0, importance = 0, truncated = 0, flagged = 0;
  float max_ratio = 0, max_diff = 0;
  const float *logprobs = c.logprobs, *rollout = c.rollout, *old = c.old, *ref = c.ref;
  const uint8_t *flags = c.flags;
  float *__restrict gradient = c.gradient;
#pragma omp simd reduction(+ : loss, tokens, masked, ratio, diff, kl, ref_kl, importance, truncated, flagged) \
    reduction(max : max_ratio, max_diff)
  for (int i = 0; i < n; ++i) {
    Token o = token_step<LOSS, OLD, REF>(a, q, logprobs[i], rollout[i], OLD ? old[i] : 0.f, REF ? ref[i] : 0.f, flags[i]);
    gradient[i] = o.gradient;
    loss += o.loss;
    tokens += o.trained;
    masked += o.masked;
    ratio += o.ratio;
    diff += o.diff;
    kl += o.kl;
    if (REF) ref_kl += o.ref_kl;
    if (OLD) importance += o.importance;
    if (OLD) truncated += o.truncated;
    flagged += o.flagged;
    max_ratio = o.ratio > max_ratio ? o.ratio : max_ratio;
    max_diff = o.diff > max_diff ? o.diff : max_diff;
  }
  const float sums[NUM_SUMS] = {loss, tokens, masked * q.positive, masked * (1 - q.positive), ratio, diff, kl, ref_kl,
                                OLD ? importance : tokens, truncated, flagged};
  for (int i = 0; i < NUM_SUMS; ++i) out.sums[i] += sums[i];
  out.maxima[MAX_RATIO] = std::max(out.maxima[MAX_RATIO], max_ratio);
  out.maxima[MAX_ROLLOUT_DIFF] = std::max(out.maxima[MAX_ROLLOUT_DIFF], max_diff);
}

static void run_broadcast(const Step &, const Sequence &q, const Columns &c, int n, Partial &) {
  const uint8_t *flags = c.flags;
  float *__restrict gradient = c.gradient;
  const float clean = q.clean, flagged = q.flagged;
#pragma omp simd
  for (int i = 0; i < n; ++i) {
    float advantage = flags[i] & FLAGGED ? flagged : clean;
    gradient[i] = flags[i] & TRAINED ? advantage : 0.f;
  }
}

template <bool RATIO>
static void run_counts(const Columns &c, int n, double *out) {
  float log_ratio = 0, trained = 0, flagged = 0;
  const float *logprobs = c.logprobs, *old = c.old;
  const uint8_t *flags = c.flags;
#pragma omp simd reduction(+ : log_ratio, trained, flagged)
  for (int i = 0; i < n; ++i) {
    bool on = flags[i] & TRAINED;
    if (RATIO) log_ratio += on ? logprobs[i] - old[i] : 0.f;
    trained += on ? 1.f : 0.f;
    flagged += on && flags[i] & FLAGGED ? 1.f : 0.f;
  }
  out[COUNT_LOG_RATIO] += log_ratio;
  out[COUNT_TRAINED] += trained;
  out[COUNT_FLAGGED] += flagged;
}

template <int LOSS>
static StepLoop loop_of(bool old, bool ref) {
  if (old) return ref ? run_tokens<LOSS, true, true> : run_tokens<LOSS, true, false>;
  return ref ? run_tokens<LOSS, false, true> : run_tokens<LOSS, false, false>;
}

static StepLoop step_loop(const Step &a) {
  bool old = a.old_logprobs, ref = a.ref_logprobs;
  switch (a.loss) {
    case MIMO: return loop_of<MIMO>(false, ref);
    case PPO: return loop_of<PPO>(old, ref);
    case GSPO: return loop_of<GSPO>(old, ref);
    case CISPO: return loop_of<CISPO>(old, ref);
    default: return run_broadcast;
  }
}

static CountLoop count_loop(bool ratio) { return ratio ? run_counts<true> : run_counts<false>; }
