// What the engine's view draws, and in which words and units.

import { percent, plain, plainSeconds, seconds, short, whole } from "../ui/format.js";
import { niceCeiling } from "./chart.js";

const tokens = (value) => (value >= 10 ? whole(value) : short(value));
const shares = () => 1;
/** The scale's end for numbers of things: a whole number, at least two. */
const wholeCeiling =
  (...keys) =>
  (samples) => {
    const values = samples.flatMap((sample) => keys.map((key) => sample[key] ?? 0));
    return Math.max(2, niceCeiling(Math.max(0, ...values)));
  };

/**
 * The panels: `series` as in `chart.js`, each with a `label`; `value` writes a value with its unit;
 * `note` says what is drawn.
 */
export const PANELS = [
  {
    title: "Throughput",
    note: "tokens per second",
    series: [
      { key: "generated", label: "Generated", color: "--series-1" },
      { key: "prompts", label: "Prompts computed", color: "--series-2", dash: [5, 3] },
    ],
    format: plain,
    value: (value) => `${tokens(value)} tokens/s`,
  },
  {
    title: "Batch",
    note: "token positions in a step, mean",
    stacked: true,
    series: [
      { key: "decode", label: "Decode rows", color: "--series-1" },
      { key: "draft", label: "Draft tokens", color: "--series-3" },
      { key: "prefill", label: "Prefill tokens", color: "--series-2" },
    ],
    format: plain,
    value: plain,
  },
  {
    title: "Sequences",
    note: "running and waiting",
    series: [
      { key: "running", label: "Running", color: "--series-1" },
      { key: "waiting", label: "Waiting", color: "--series-4", dash: [5, 3] },
    ],
    most: wholeCeiling("running", "waiting"),
    format: plain,
    value: whole,
  },
  {
    title: "KV cache",
    note: "blocks by state",
    stacked: true,
    series: [
      { key: "used", label: "Used", color: "--series-1" },
      { key: "cached", label: "Cached", color: "--series-2" },
      { key: "free", label: "Free", color: "--series-none" },
    ],
    most: (samples) => {
      const last = samples.findLast((sample) => sample.free !== undefined);
      return last ? last.used + last.cached + last.free : 1;
    },
    format: whole,
    value: (value) => `${whole(value)} blocks`,
  },
  {
    title: "Latency between tokens",
    note: "mean, and duration of a step",
    series: [
      { key: "interToken", label: "Between tokens (ITL)", color: "--series-1" },
      { key: "stepSeconds", label: "Step", color: "--series-2", dash: [5, 3] },
    ],
    format: plainSeconds,
    value: seconds,
  },
  {
    title: "Time to first token",
    note: "mean of requests that began to answer",
    series: [{ key: "firstToken", label: "TTFT", color: "--series-1" }],
    points: true,
    format: plainSeconds,
    value: seconds,
  },
  {
    title: "Prefix cache",
    note: "share of prompt tokens that were found",
    series: [{ key: "hits", label: "Hit rate", color: "--series-2" }],
    points: true,
    most: shares,
    format: percent,
    value: percent,
  },
  {
    title: "Speculation",
    note: "share of draft tokens that became output",
    drafts: true,
    series: [{ key: "accepted", label: "Acceptance", color: "--series-3" }],
    most: shares,
    format: percent,
    value: percent,
  },
];

/** The numbers above the panels: `value(history)` writes each. */
export const HEADLINES = [
  { label: "Generated", unit: "tokens/s", value: (history) => tokens(history.over(3)?.generated ?? NaN) },
  {
    label: "Running",
    unit: "sequences",
    value: (history) => whole(history.snapshots.at(-1)?.engine.running ?? 0),
  },
  {
    label: "Waiting",
    unit: "sequences",
    value: (history) => whole(history.snapshots.at(-1)?.engine.waiting ?? 0),
  },
  { label: "KV cache", unit: "in use", value: (history) => kvShare(history.snapshots.at(-1)) },
  {
    label: "Prefix hits",
    unit: "last 2 min",
    value: (history) => percent(history.over(Infinity)?.hits ?? NaN),
  },
  {
    label: "TTFT",
    unit: "p50, last 2 min",
    value: (history) => seconds(history.quantile("first_token_seconds", 0.5)),
  },
  {
    label: "TTFT",
    unit: "p95, last 2 min",
    value: (history) => seconds(history.quantile("first_token_seconds", 0.95)),
  },
  {
    label: "ITL",
    unit: "mean, last 2 min",
    value: (history) => seconds(history.over(Infinity)?.interToken ?? NaN),
  },
  {
    label: "Acceptance",
    unit: "of drafts",
    drafts: true,
    value: (history) => percent(history.over(Infinity)?.accepted ?? NaN),
  },
];

/** The share of KV blocks that requests hold, as of a snapshot. */
export function kvShare(snapshot) {
  if (!snapshot) return "–";
  const { used, total } = snapshot.engine.kv_blocks;
  return percent(used / total);
}
