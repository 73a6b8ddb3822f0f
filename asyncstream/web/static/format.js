// Numbers as people read them. Nothing here knows of the page.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const plain = new Intl.NumberFormat("en");

export const NONE = "–";

export function number(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 10000 ? plain.format(Math.round(value)) : compact.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0/s";
  if (value < 10) return `${value.toFixed(1)}/s`;
  return `${value < 10000 ? plain.format(Math.round(value)) : compact.format(value)}/s`;
}

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms <= 0) return "0 ms";
  if (ms < 1) return "<1 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 120) return `${Math.round(minutes)} min`;
  const hours = minutes / 60;
  return hours < 48 ? `${Math.floor(hours)} h ${Math.round(minutes % 60)} min` : `${Math.round(hours / 24)} days`;
}

export function bytes(size) {
  let value = size;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function words(name) {
  return name.replaceAll("_", " ");
}
