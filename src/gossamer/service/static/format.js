// Formats numbers, durations, and times for display.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) {
    for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (size >= factor) return `${trimmed(value / factor)}${unit}`;
    }
  }
  return trimmed(value);
}

const trimmed = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

export const bytes = (value) => (value === null || value === undefined ? "–" : `${short(value)}B`);
export const rate = (value) => `${short(value ?? 0)}/s`;
export const share = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${trimmed(value)} s`;
  const minutes = Math.floor(value / 60);
  const left = Math.floor(value % 60);
  if (minutes < 60) return left ? `${minutes} min ${left} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function clock(at, withDay = false) {
  if (!at) return "–";
  const date = new Date(at * 1000);
  const time = date.toTimeString().slice(0, 8);
  return withDay ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}` : time;
}

const two = (value) => String(value).padStart(2, "0");

export const ago = (at) => (at ? `${seconds(Math.max(0, Date.now() / 1000 - at))} ago` : "–");
export const cut = (text, limit = 120) => (text.length > limit ? `${text.slice(0, limit - 1)}…` : text);
