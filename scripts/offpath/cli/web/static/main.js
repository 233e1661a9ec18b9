// Reads the state once a second while the page is visible, and draws it.

import { Chart } from "/static/chart.js";
import { Explain } from "/static/explain.js";
import { draw as drawNetwork } from "/static/network.js";
import { TableView } from "/static/tables.js";
import { clean, colours, element, leaseReason, milliseconds, objects, seconds, sentence } from "/static/words.js";

const $ = (id) => document.getElementById(id);
const FAILED = ["failed", "expired", "rejected", "retry_safe", "outcome_unknown"];
const SECTIONS = ["leases-over-time", "tenants", "leases", "requests", "ina", "jobs"];
const THEMES = ["system", "light", "dark"];
const LEGEND = 24;
const LATE_MS = 3000;
const OFFLINE = "no connection to the page's server: is `offpath web run` running?";
/** part: the data of a service in the state. places: what shows it. */
const SERVICES = {
  daemon: { part: "daemon", places: ["leases-over-time", "tenants", "leases", "requests"] },
  controller: { part: "controller", places: ["ina", "ina-job-table"] },
  "job manager": { part: "manager", places: ["work-table"] },
};

/** at: the time of the newest data of each service. readAt, ageMs: when the newest poll was received, its age then. */
const seen = {
  run: "", change: 0, etag: "", isPaused: false, timer: 0, failures: 0, document: null, isBusy: false, at: {}, readAt: 0,
  ageMs: 0,
};
let palette = new Map();
let jobPalette = new Map();
const colourOf = (tenant) => palette.get(tenant) ?? "#888888";

const explain = new Explain($("explain"), $("explain-title"), $("explain-body"), $("explain-close"));
const chart = new Chart($("chart"), $("chart-note"), $("gpu-pager"));

const column = (title, text, more = {}) => ({ title, text, ...more });
const number = (title, name, form = String) => column(title, (row) => form(row[name]), { number: true, value: (row) => row[name] ?? -1 });
const name = (title, field) => column(title, (row) => clean(row[field]) || "-");
const tenant = column("tenant", (row) => clean(row.tenant), { swatch: (row) => colourOf(row.tenant) });
const long = (title, field) => column(title, (row) => sentence(row[field]), { long: true });
const list = (title, field) => column(title, (row) => row[field].map(clean).join(" "), { long: true });
const age = (title, field, factor = 1) => column(title, (row) => seconds(row[field] * factor), { number: true, value: (row) => row[field] });
const reason = column("reason", (row) => (row.reason && row.reason !== "none" ? clean(row.reason) : "-"));

const requestColumns = [
  column("request", (row) => row.request, { open: (row) => explain.request(row.request) }),
  tenant, name("kernel", "kernel"), number("R", "demand"), number("priority", "priority"), name("state", "state"),
  reason, column("lease", (row) => (row.lease ? String(row.lease) : "-"), { number: true, value: (row) => row.lease }),
];
const jobColumn = column("job", (row) => clean(row.job), { open: (row) => explain.job(row.job) });

const tables = {
  tenants: new TableView($("tenant-table"), [
    tenant, number("jobs/s", "jobs_per_s", (n) => n.toFixed(1)), number("running", "running"),
    number("queued", "queued"), number("sessions", "sessions"), number("leases", "leases"),
    column("share", (row) => (row.max_share < row.all_share ? `${row.held_share} of ${row.max_share} %` : `${row.held_share} %`), { number: true, value: (row) => row.held_share }),
    number("p50 ms", "p50_ms", milliseconds), number("p99 ms", "p99_ms", milliseconds), number("failed", "failed"),
  ], (row) => row.tenant, "no tenant"),
  leases: new TableView($("lease-table"), [
    number("lease", "lease"), tenant, name("GPU", "gpu"), name("profile", "profile"), number("start", "start"),
    column("state", (row) => clean(row.state) + (row.is_pinned ? " pinned" : "")),
    column("reason", leaseReason, { long: true }),
    column("share", (row) => `${row.running_share}/${row.alpha}`, { number: true, value: (row) => row.running_share }),
    age("held", "held_ms"), age("load", "load_ms"),
  ], (row) => String(row.lease), "no lease"),
  jobs: new TableView($("job-table"), [
    ...requestColumns, age("age", "age_ms"),
    column("deadline in", (row) => seconds(row.deadline_in_ms), { number: true, value: (row) => row.deadline_in_ms ?? Infinity }),
  ], (row) => row.job, "no request"),
  ended: new TableView($("ended-table"), [...requestColumns, age("ended ago", "age_ms")], (row) => row.job, "no request has ended"),
  groups: new TableView($("group-table"), [name("root", "root"), list("jobs", "jobs"), column("may use it now", (row) => Object.entries(row.using).map(([job, how]) => `${clean(job)}: ${clean(how)}`).join("; ") || "none", { long: true })], (row) => row.root, "no group"),
  trees: new TableView($("tree-table"), [jobColumn, name("root", "root"), list("switches", "switches"), column("granted", (row) => (row.is_granted ? "yes" : "no")), age("since", "since_ms"), long("reason", "why")], (row) => row.job, "no tree"),
  holds: new TableView($("hold-table"), [name("switch", "switch"), name("job", "job"), name("slot", "slot"), column("confirmed", (row) => (row.is_allowed ? "yes" : "no")), age("since", "since_ms"), long("reason", "why")], (row) => `${row.switch} ${row.job} ${row.slot}`, "no job occupies a switch"),
  inaJobs: new TableView($("ina-job-table"), [jobColumn, name("state", "state"), number("ranks", "ranks"), list("hosts", "hosts"), name("tree", "tree"), age("since", "age_ms")], (row) => row.job, "no job"),
  works: new TableView($("work-table"), [name("job", "job"), name("state", "state"), number("GPUs", "gpus"), name("model", "model"), list("nodes", "nodes"), name("server", "server"), column("INA", (row) => (row.server ? (row.uses_ina ? "yes" : "no") : "-")), number("Gbit/s", "rate_bps", (n) => (n / 1e9).toFixed(1)), age("since", "age_s", 1e3)], (row) => row.job, "no job"),
};

// -- drawing ---------------------------------------------------------------------------------------------------------
function fill(view, table) {
  view.update(objects(table), table.is_cut);
}

function drawDaemon(daemon) {
  const all = 100 * daemon.gpus.length;
  const tenants = objects(daemon.tenants).map((row) => ({ ...row, all_share: all, failed: FAILED.reduce((sum, end) => sum + (row.ended[end] ?? 0), 0) }));
  palette = colours(tenants.map((row) => row.tenant));
  tables.tenants.update(tenants, daemon.tenants.is_cut);
  fill(tables.leases, daemon.leases);
  fill(tables.jobs, daemon.jobs);
  fill(tables.ended, daemon.ended);
  chart.show(daemon.gpus, palette);
  const names = tenants.map((row) => row.tenant);
  const legend = names.slice(0, LEGEND).map((each) => {
    const item = element("span");
    const swatch = element("span", "", { class: "swatch" });
    swatch.style.setProperty("background", colourOf(each));
    item.append(swatch, clean(each));
    return item;
  });
  if (names.length > LEGEND) legend.push(element("span", `and ${names.length - LEGEND} more tenants`));
  $("legend").replaceChildren(...legend);
}

function drawController(controller) {
  const part = controller ?? { jobs: { fields: [], rows: [] }, groups: { fields: [], rows: [] }, trees: { fields: [], rows: [] }, holds: { fields: [], rows: [] }, network: { nodes: [], links: [], left_out: 0 }, status: { switches: {} } };
  const jobs = objects(part.jobs);
  const trees = objects(part.trees);
  jobPalette = colours(jobs.map((row) => row.job));
  fill(tables.groups, part.groups);
  tables.trees.update(trees, part.trees.is_cut);
  fill(tables.holds, part.holds);
  tables.inaJobs.update(jobs, part.jobs.is_cut);
  drawNetwork($("network"), part.network, trees, jobs, part.status.switches, (job) => jobPalette.get(job) ?? "#888888");
  const { left_out: leftOut, is_known: isKnown } = part.network;
  $("ina-note").textContent = controller
    ? `mode ${clean(part.status.mode)}, term ${part.status.term}, ${part.status.jobs} jobs, ${part.status.agents.length} agents` +
      (isKnown ? "" : "; links are those of the trees (give --topology for all)") + (leftOut ? `; ${leftOut} nodes are not drawn` : "")
    : "There is no controller in the runtime directory.";
}

function drawManager(manager) {
  tables.works.update(manager ? objects(manager.jobs) : [], Boolean(manager?.jobs.is_cut));
  $("work-note").textContent = manager ? "" : "There is no job manager in the runtime directory.";
}

/** What is shown of a service that cannot be read, or after a poll that is late, is old: its age. */
function drawAges() {
  const state = seen.document;
  if (!state) return;
  const age = seen.ageMs + performance.now() - seen.readAt;
  const isLate = age > state.next_ms + LATE_MS;
  const parts = isLate ? [`all data is ${seconds(age)} old`] : [];
  for (const [service, { places }] of Object.entries(SERVICES)) {
    const isFaulty = service in state.faults;
    places.forEach((place) => $(place).classList.toggle("stale", isLate || isFaulty));
    if (!isFaulty) continue;
    const at = seen.at[service];
    if (at === undefined) parts.push(`no data of the ${service}`);
    else parts.push(`data of the ${service} is ${seconds(state.now_ms - at + age)} old`);
  }
  $("ages").textContent = parts.join("; ");
  $("ages").hidden = parts.length === 0;
}

function drawStatus(state) {
  const bad = Object.entries(state.faults);
  const texts = bad.map(([service, text]) => `${service} cannot be read: ${sentence(text)}`);
  if (texts.join("\n") !== [...$("faults").children].map((each) => each.textContent).join("\n")) {
    $("faults").replaceChildren(...texts.map((text) => element("p", text)));
  }
  const status = state.daemon?.status;
  const parts = [];
  if (status) {
    parts.push(`offpathd ${clean(status.release)}`, `up ${seconds(status.uptime_ms)}`, `${status.sessions} sessions`, `${status.leases} leases`, `${status.unanswered} unanswered`, `${status.queued} queued`);
    if (!status.has_helper) parts.push("NO HELPER");
    if (status.is_draining) parts.push("DRAINING");
    if (status.is_last_good) parts.push("LAST GOOD CONFIGURATION");
  }
  if (state.next_ms > 1500) parts.push(`read every ${seconds(state.next_ms)}`);
  showStatus(parts.join(", ") || "connected", bad.length > 0);
}

function showStatus(text, isBad) {
  const shown = $("status");
  if (shown.textContent !== text) shown.textContent = text;
  shown.className = isBad ? "bad" : "";
}

function drawAll() {
  const state = seen.document;
  if (!state) return;
  drawStatus(state);
  const { controller: ofController, "job manager": ofManager } = state.faults;
  if (state.daemon) drawDaemon(state.daemon);
  else chart.draw();
  if (ofController) $("ina-note").textContent = `The controller cannot be read: ${sentence(ofController)}`;
  else drawController(state.controller);
  if (ofManager) $("work-note").textContent = `The job manager cannot be read: ${sentence(ofManager)}`;
  else drawManager(state.manager);
  if (!document.documentElement.dataset.polls) performance.mark("data-drawn");
  document.documentElement.dataset.polls = String(state.poll);
  drawAges();
}

// -- reading ---------------------------------------------------------------------------------------------------------
async function read() {
  clearTimeout(seen.timer);
  if (document.hidden || seen.isPaused || seen.isBusy) return;
  seen.isBusy = true;
  let wait = 1000;
  try {
    const query = new URLSearchParams({ run: seen.run, after: String(seen.change) });
    const answer = await fetch(`/api/state?${query}`, { headers: seen.etag ? { "If-None-Match": seen.etag } : {}, cache: "no-store" });
    if (answer.status === 401) {
      showEntry("Open the link that `offpath web run` printed, or give its token.");
      return;
    }
    if (answer.status === 200) {
      const { state, history, age_ms: ageMs } = await answer.json();
      seen.etag = answer.headers.get("etag") ?? "";
      if (state) {
        if (seen.run && state.run !== seen.run) {
          location.reload(); // another server: nothing that is shown is its data
          return;
        }
        for (const [service, { part }] of Object.entries(SERVICES)) {
          if (state[part]) seen.at[service] = state.now_ms;
        }
        seen.readAt = performance.now();
        seen.ageMs = ageMs;
        seen.run = state.run;
        seen.change = history.change;
        seen.document = state;
        const began = performance.now();
        chart.take(history);
        drawAll();
        performance.clearMeasures("draw");
        performance.measure("draw", { start: began });
        wait = Math.max(1000, state.next_ms / 2);
      } else {
        wait = 100;
      }
    } else if (answer.status === 304) {
      wait = 300;
    } else {
      throw new Error(String(answer.status));
    }
    seen.failures = 0;
  } catch {
    seen.failures += 1;
    wait = Math.min(10000, 1000 * seen.failures);
    showStatus(OFFLINE, true);
  } finally {
    seen.isBusy = false;
  }
  clearTimeout(seen.timer);
  seen.timer = setTimeout(read, wait);
}

function showEntry(text) {
  $("entry").hidden = false;
  $("main").hidden = true;
  $("entry-text").textContent = text;
  showStatus("not opened", true);
  $("token").focus();
}

/** Why the secret begins no session; empty if it does. */
async function refusalOf(secret) {
  if (!/^[\x20-\x7e]+$/.test(secret)) return "Give the token: ASCII characters.";
  try {
    const answer = await fetch("/api/session", { headers: { Authorization: `Bearer ${secret}` }, cache: "no-store" });
    return answer.ok ? "" : sentence((await answer.json()).detail);
  } catch {
    return OFFLINE;
  }
}

async function enter(secret) {
  const refusal = await refusalOf(secret);
  if (refusal) {
    showEntry(refusal);
    return;
  }
  $("entry").hidden = true;
  $("main").hidden = false;
  await read();
}

// -- controls --------------------------------------------------------------------------------------------------------
function setTheme(theme) {
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
  chart.draw();
}

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "system";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  try {
    localStorage.setItem("theme", next);
  } catch {
    // without storage the theme lasts as long as the page
  }
  setTheme(next);
}

function setPause(isPaused) {
  seen.isPaused = isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  $("pause").textContent = isPaused ? "Resume" : "Pause";
  if (!isPaused) read();
}

function onKey(event) {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape" && event.target === $("filter")) event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const section = SECTIONS[Number(event.key) - 1];
  if (section) {
    $(section).scrollIntoView();
    $(section).querySelector("h2").setAttribute("tabindex", "-1");
    $(section).querySelector("h2").focus({ preventScroll: true });
  } else if (event.key === "/") {
    event.preventDefault();
    $("filter").focus();
  } else if (event.key === "p") setPause(!seen.isPaused);
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") $("keys").showModal();
}

$("filter").addEventListener("input", () => {
  const text = $("filter").value.trim();
  Object.values(tables).forEach((table) => table.setFilter(text));
  chart.setFilter(text);
});
$("window").addEventListener("change", () => { chart.windowMs = Number($("window").value) * 1000; chart.draw(); });
$("pause").addEventListener("click", () => setPause(!seen.isPaused));
$("theme").addEventListener("click", nextTheme);
$("help").addEventListener("click", () => $("keys").showModal());
$("keys-close").addEventListener("click", () => $("keys").close());
$("enter").addEventListener("click", () => enter($("token").value));
$("token").addEventListener("keydown", (event) => { if (event.key === "Enter") enter($("token").value); });
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => { if (!document.hidden) read(); });
setInterval(drawAges, 1000);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.draw());

let stored = null;
try {
  stored = localStorage.getItem("theme");
} catch {
  // no storage: the system's theme
}
if (THEMES.includes(stored)) setTheme(stored);
const secret = location.hash.slice(1);
if (/^[A-Za-z0-9_-]{32}$/.test(secret)) {
  history.replaceState(null, "", "/");
  enter(secret);
} else {
  read();
}
