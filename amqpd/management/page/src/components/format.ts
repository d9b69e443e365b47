// Formats for numbers, sizes, durations and times. They do not use Intl: on its first use a browser loads language
// data, which takes as long as all scripts of the page.

const SHORT = ["", "K", "M", "B", "T"];

const groupDigits = (value: number): string => String(value).replace(/\B(?=(?:\d{3})+$)/g, ",");

/** 12,345; a missing value is a dash. */
export function formatCount(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : groupDigits(Math.round(value));
}

/** 12.3K, for axes. */
export function formatShort(value: number): string {
  let step = 0;
  let shown = Math.abs(value) < 1 ? Math.round(value * 100) / 100 : Math.round(value * 10) / 10;
  while (Math.abs(shown) >= 1000 && step < SHORT.length - 1) {
    value /= 1000;
    step += 1;
    shown = Math.round(value * 10) / 10;
  }
  return `${shown}${SHORT[step]}`;
}

/** 0.4/s, 12/s, 10,200/s. */
export function formatRate(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const shown = value > 0 && value < 10 ? String(Math.round(value * 10) / 10) : formatCount(value);
  return `${shown}/s`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function formatBytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(value) < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** 1 d 3 h, 4 min 10 s, 12 s, 3.4 ms. */
export function formatDuration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  const us = Math.round(ms * 1000);
  if (us < 1000) return `${us} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** Local time: 2026-11-23 14:30:05. */
export function formatTime(ms: number | null | undefined): string {
  if (!ms) return "–";
  const at = new Date(ms);
  const two = (value: number): string => String(value).padStart(2, "0");
  return (
    `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
  );
}

/** "1 message", "1,203 messages". */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${formatCount(value)} ${value === 1 ? one : many}`;
}
