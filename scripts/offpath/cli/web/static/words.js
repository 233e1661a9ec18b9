// Words and forms of what is shown. Names come from tenants: they are text, never markup.

const LONGEST = 120;

/** A name or text of another party: without control and direction characters, and cut. */
export function clean(text) {
  const shown = String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\ufffd");
  return shown.length > LONGEST ? `${shown.slice(0, LONGEST - 1)}…` : shown;
}

/** A longer text: a reason or an explanation. */
export function sentence(text) {
  return String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\ufffd").slice(0, 2048);
}

export function seconds(ms) {
  if (ms === null || ms === undefined) return "-";
  const s = ms / 1e3;
  if (s < 120) return `${s.toFixed(1)} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}

export function milliseconds(ms) {
  return ms < 100 ? ms.toFixed(2) : ms.toFixed(0);
}

const STATES = {
  planned: "waits for its slices: leases before it are closed",
  creating: "its instance is created and its workers start",
  draining: "it takes no new request and ends with the last one",
  scrubbing: "its memory is overwritten before the slices are free",
};

/** Why a lease is there. */
export function leaseReason(lease) {
  const more = lease.is_restricted ? "; memory or model decides what fits" : "";
  if (STATES[lease.state]) return STATES[lease.state] + more;
  if (lease.running) return `runs ${lease.running} of ${lease.jobs} requests${more}`;
  if (lease.jobs) return `its ${lease.jobs} requests are copied or wait for their share${more}`;
  if (lease.is_pinned) return `pinned by the configuration${more}`;
  return `idle: kept warm for its tenant${more}`;
}

// Okabe and Ito's palette, distinguishable for colour-blind readers; further tenants get hues far from each other.
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

const ORDER = new Intl.Collator("en", { numeric: true });

/** A colour for each tenant, by the order of the names. */
export function colours(tenants) {
  const found = new Map();
  [...tenants].sort(ORDER.compare).forEach((name, n) => {
    found.set(name, n < PALETTE.length ? PALETTE[n] : `hsl(${Math.round((n * 137.5) % 360)} 55% 52%)`);
  });
  return found;
}

/** An element with text and attributes. Text is never parsed. */
export function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** The rows of a table of the server, as objects. */
export function objects(table) {
  return table.rows.map((row) => Object.fromEntries(table.fields.map((name, n) => [name, row[n]])));
}
