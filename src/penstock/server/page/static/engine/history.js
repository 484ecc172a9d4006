// Snapshots into what happened between them.

/** Seconds that the charts show. */
export const WINDOW_S = 120;
const SMOOTH_S = 1; // over which speeds are taken
const DRAFTS_S = 5; // over which drafts are: a step has few

/**
 * What happened from one snapshot to the next: `from` and `to` in seconds, levels as of `to`, and
 * means over the time between; NaN where nothing happened that there could be a mean of.
 */
export function between(before, now) {
  const dt = now.time - before.time;
  const { engine } = now;
  const had = before.engine;
  const steps = engine.steps.steps - had.steps.steps;
  const each = (name) => (engine.steps[name] - had.steps[name]) / steps;
  const first = meanBetween(before.first_token_seconds, now.first_token_seconds);
  const inter = meanBetween(before.inter_token_seconds, now.inter_token_seconds);
  const { total, used, cached } = engine.kv_blocks;
  return {
    from: before.time,
    to: now.time,
    steps,
    prefill: steps > 0 ? each("prefill_tokens") : 0,
    decode: steps > 0 ? each("decode_tokens") : 0,
    draft: steps > 0 ? each("draft_tokens") : 0,
    stepSeconds: each("seconds"),
    generated: (engine.generated_tokens - had.generated_tokens) / dt,
    prompts: (engine.steps.prefill_tokens - had.steps.prefill_tokens) / dt,
    running: engine.running,
    waiting: engine.waiting,
    used,
    cached,
    free: total - used - cached,
    hits: (engine.prefix_hits - had.prefix_hits) / (engine.prefix_queries - had.prefix_queries),
    accepted: engine.drafts
      ? (engine.drafts.accepted - had.drafts.accepted) / (engine.drafts.verified - had.drafts.verified)
      : NaN,
    firstToken: first,
    interToken: inter,
  };
}

function meanBetween(before, now) {
  return (now.total - before.total) / (count(now) - count(before));
}

function count(histogram) {
  return histogram.counts.reduce((sum, each) => sum + each, 0);
}

/** The value below which `share` of what was counted between two histograms lies, or NaN. */
export function quantile(before, now, share) {
  const counts = now.counts.map((each, i) => each - before.counts[i]);
  const wanted = share * counts.reduce((sum, each) => sum + each, 0);
  if (!(wanted > 0)) return NaN;
  let below = 0;
  for (let i = 0; i < counts.length; i += 1) {
    if (below + counts[i] >= wanted) {
      const low = i === 0 ? 0 : now.bounds[i - 1];
      const high = now.bounds[i] ?? low;
      return low + ((high - low) * (wanted - below)) / counts[i];
    }
    below += counts[i];
  }
  return NaN;
}

/** The snapshots of the last two minutes, and what happened between them. */
export class History {
  constructor() {
    this.snapshots = []; // those in which the engine answered
    this.samples = []; // one with times alone where the engine, or the server, began anew
    this.latest = null; // of all
  }

  add(snapshot) {
    this.latest = snapshot;
    if (!snapshot.engine) return;
    const before = this.snapshots.at(-1);
    if (before && snapshot.time < before.time) {
      this.snapshots = []; // another machine's clock: what was before has no place on it
      this.samples = [];
    } else if (before && restarted(before, snapshot)) {
      this.snapshots = [];
      this.samples.push({ from: before.time, to: snapshot.time });
    } else if (before && snapshot.time > before.time) this.samples.push(this.#sample(before, snapshot));
    this.snapshots.push(snapshot);
    const oldest = snapshot.time - WINDOW_S;
    while (this.snapshots[0].time < oldest) this.snapshots.shift();
    while (this.samples.length && this.samples[0].to < oldest) this.samples.shift();
  }

  #sample(before, now) {
    // A step more or less within a quarter of a second is no change of speed.
    const { generated, prompts } = between(this.#since(now.time - SMOOTH_S), now);
    const { accepted } = between(this.#since(now.time - DRAFTS_S), now);
    return { ...between(before, now), generated, prompts, accepted };
  }

  #since(time) {
    return this.snapshots.findLast((each) => each.time <= time) ?? this.snapshots[0];
  }

  /** What happened in the last `span` seconds as one sample, or null. */
  over(span) {
    const now = this.snapshots.at(-1);
    const before = now && this.#since(now.time - span);
    return before && before !== now ? between(before, now) : null;
  }

  /** The quantile of a histogram over the whole window. */
  quantile(name, share) {
    const [before] = this.snapshots;
    const now = this.snapshots.at(-1);
    return before ? quantile(before[name], now[name], share) : NaN;
  }
}

/**
 * Whether any total went back: it counts from a new start, of the engine or of the server. One that
 * was busy while nobody looked may have passed some of them again, but hardly all.
 */
function restarted(before, now) {
  const had = totals(before);
  const has = totals(now);
  return had.length !== has.length || has.some((each, i) => each < had[i]);
}

function totals({ engine, first_token_seconds, inter_token_seconds }) {
  return [
    engine.generated_tokens,
    engine.prefix_queries,
    engine.prefix_hits,
    ...Object.values(engine.steps),
    ...Object.values(engine.drafts ?? {}),
    ...first_token_seconds.counts,
    ...inter_token_seconds.counts,
  ];
}
