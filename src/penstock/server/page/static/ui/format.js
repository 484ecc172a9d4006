// Numbers and times for readers.

const WHOLE = new Intl.NumberFormat("en");

export function whole(value) {
  return WHOLE.format(Math.round(value));
}

/** Three significant digits at the most, as on a scale: 0.25, 5, 1,250. */
export function plain(value) {
  return WHOLE.format(Number(value.toPrecision(3)));
}

/** Three significant digits, as in 0.12, 12.3 and 1,234. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return whole(value);
  if (size >= 10) return value.toFixed(1);
  if (size === 0) return "0";
  return value.toFixed(2);
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.1) return `${(value * 1000).toFixed(value < 0.01 ? 2 : 1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${whole(value / 60)} min`;
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** Seconds as on a scale, without zeros that say nothing. */
export function plainSeconds(value) {
  if (value === 0) return "0";
  if (value < 0.001) return `${plain(value * 1e6)} µs`;
  return value < 1 ? `${plain(value * 1000)} ms` : `${plain(value)} s`;
}

/** How many bytes a text is in UTF-8, in a unit of at most four digits. */
export function size(text) {
  const bytes = new Blob([text]).size;
  if (bytes < 1000) return counted(bytes, "byte");
  if (bytes < 999_950) return `${(bytes / 1e3).toFixed(1)} kB`; // what is more would be rounded to 1000.0
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

export function counted(number, one, many = `${one}s`) {
  return `${whole(number)} ${number === 1 ? one : many}`;
}

/** How long ago a moment was, in days and less. */
export function ago(moment) {
  const minutes = (Date.now() - moment) / 60000;
  if (minutes < 1) return "now";
  if (minutes < 60) return `${Math.floor(minutes)} min`;
  if (minutes < 60 * 24) return `${Math.floor(minutes / 60)} h`;
  if (minutes < 60 * 24 * 30) return `${Math.floor(minutes / 60 / 24)} d`;
  return new Date(moment).toLocaleDateString("en", { year: "numeric", month: "short", day: "numeric" });
}
