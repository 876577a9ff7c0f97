// The page's language: its texts, times and numbers.

import { LANGUAGES, TEXTS } from "./texts.js";

const KEPT = "qworkspace.language";

const language = choose();
const column = Object.keys(LANGUAGES).indexOf(language);

/** The text of `key`, with `{name}` replaced by the values. */
export function t(key, values = {}) {
  const text = TEXTS[key]?.[column] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

/** Whether there is a text of that key: for codes that come from the daemon. */
export function hasText(key) {
  return key in TEXTS;
}

/** The page's language, and those it could have. */
export function currentLanguage() {
  return language;
}

/** Remember the choice and show the page in it; what streams is re-joined. */
export function chooseLanguage(name) {
  remember(name);
  location.reload();
}

// Making a formatter takes longer than a thousand uses of it.
const TIME = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(language, { month: "short", day: "numeric" });
const DATE = new Intl.DateTimeFormat(language, { year: "numeric", month: "short", day: "numeric" });
const FULL = new Intl.DateTimeFormat(language, { dateStyle: "full", timeStyle: "short" });
const NUMBER = new Intl.NumberFormat(language);

/** A moment for people: the time today, the day before that. */
export function formatMoment(date, now = new Date()) {
  if (date.toDateString() === now.toDateString()) return TIME.format(date);
  return (date.getFullYear() === now.getFullYear() ? DAY : DATE).format(date);
}

/** Day and time in full, for tooltips. */
export function formatFull(date) {
  return FULL.format(date);
}

export function formatNumber(number) {
  return NUMBER.format(number);
}

export function formatDuration(milliseconds) {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(1)} s`;
  return `${Math.floor(milliseconds / 60_000)} min ${Math.round((milliseconds % 60_000) / 1000)} s`;
}

function choose() {
  let kept = null;
  try {
    kept = localStorage.getItem(KEPT);
  } catch {
    // A browser that keeps nothing: its own language decides.
  }
  if (kept in LANGUAGES) return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

function remember(name) {
  try {
    localStorage.setItem(KEPT, name);
  } catch {
    // Nothing to keep it in.
  }
}
