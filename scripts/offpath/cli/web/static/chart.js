// GPUs as memory slices over time, by tenant. Drawn on a canvas: at a thousand leases the spans are thousands.

import { clean, element, seconds } from "/static/words.js";

const GPUS = 24;
const LEFT = 34;
const TITLE = 18;
const AXIS = 22;
const MOST_SPANS = 8192;
const KEPT_MS = 600000;

export class Chart {
  constructor(canvas, note, pager) {
    this.canvas = canvas;
    this.note = note;
    this.spans = new Map();
    this.gpus = [];
    this.colours = new Map();
    this.now = 0;
    this.windowMs = 60000;
    this.first = 0;
    this.rows = [];
    this.cursor = null;
    this.filter = "";
    this.#pager(pager);
    canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX, event.offsetY));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
  }

  /** The history's answer: all spans, or those that changed. Spans are kept in the order of their last change. */
  take(history) {
    if (history.is_whole) this.spans.clear();
    this.now = history.now_ms;
    const at = Object.fromEntries(history.fields.map((name, n) => [name, n]));
    for (const row of history.rows) {
      this.spans.delete(row[at.number]);
      this.spans.set(row[at.number], {
        lease: row[at.lease], tenant: row[at.tenant], gpu: row[at.gpu], start: row[at.start], slices: row[at.slices],
        profile: row[at.profile], begin: row[at.begin_ms], end: row[at.end_ms],
      });
    }
    for (const [number, span] of this.spans) {
      const isOver = this.spans.size > MOST_SPANS;
      if (span.end !== null && (isOver || span.end < this.now - KEPT_MS)) this.spans.delete(number);
    }
  }

  show(gpus, colours) {
    this.gpus = gpus;
    this.colours = colours;
    this.draw();
  }

  /** Leases without the text in their tenant, GPU or profile are drawn faintly. */
  setFilter(text) {
    this.filter = text.toLowerCase();
    this.draw();
  }

  #isFiltered(span) {
    return this.filter !== "" && ![span.tenant, span.gpu, span.profile].some((each) => each.toLowerCase().includes(this.filter));
  }

  #pager(place) {
    this.back = element("button", "Previous GPUs", { type: "button" });
    this.range = element("span");
    this.forth = element("button", "Next GPUs", { type: "button" });
    this.back.addEventListener("click", () => { this.first -= GPUS; this.draw(); });
    this.forth.addEventListener("click", () => { this.first += GPUS; this.draw(); });
    this.pager = place;
    place.className = "pager";
    place.append(this.back, this.range, this.forth);
  }

  draw() {
    const { canvas } = this;
    this.first = Math.max(0, Math.min(this.first, Math.floor((this.gpus.length - 1) / GPUS) * GPUS));
    const gpus = this.gpus.slice(this.first, this.first + GPUS);
    this.pager.hidden = this.gpus.length <= GPUS;
    this.range.textContent = ` GPU ${this.first + 1}–${this.first + gpus.length} of ${this.gpus.length} `;
    this.back.disabled = this.first === 0;
    this.forth.disabled = this.first + GPUS >= this.gpus.length;
    const height = gpus.length <= 4 ? 17 : gpus.length <= 10 ? 9 : 5;
    let y = 4;
    this.rows = gpus.map((gpu) => {
      const slices = Math.max(1, Math.min(64, gpu.memory_slices));
      const row = { gpu, slices, height: slices === 1 ? height * 2 : height, top: y + TITLE };
      y = row.top + row.slices * row.height + 6;
      return row;
    });
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(200, canvas.clientWidth);
    const whole = Math.max(60, y + AXIS);
    canvas.style.setProperty("height", `${whole}px`);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(whole * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(canvas);
    this.ink = { line: style.getPropertyValue("--grid"), ink: style.getPropertyValue("--ink"), soft: style.getPropertyValue("--soft") };
    this.width = width;
    this.bottom = y;
    this.#grid(pen);
    this.#bars(pen);
    this.#axis(pen);
    this.#cross(pen);
  }

  #x(ms) {
    return LEFT + ((ms - this.now + this.windowMs) / this.windowMs) * (this.width - LEFT - 8);
  }

  #grid(pen) {
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "alphabetic";
    for (const row of this.rows) {
      const kind = row.gpu.is_emulated ? ", EMULATED" : "";
      pen.fillStyle = this.ink.ink;
      pen.fillText(`${clean(row.gpu.gpu)} (${clean(row.gpu.model)}${kind}), ${row.gpu.held_share} % held`, LEFT, row.top - 5);
      pen.fillStyle = this.ink.soft;
      if (row.height >= 12) {
        pen.font = "10px system-ui, sans-serif";
        for (let n = 0; n < row.slices; n += 1) pen.fillText(String(n), LEFT - 14, row.top + n * row.height + row.height / 2 + 4);
        pen.font = "12px system-ui, sans-serif";
      }
      pen.fillStyle = this.ink.line;
      for (let n = 0; n <= row.slices; n += 1) pen.fillRect(LEFT, row.top + n * row.height, this.width - LEFT - 8, 1);
    }
  }

  #bars(pen) {
    const rows = new Map(this.rows.map((row) => [row.gpu.gpu, row]));
    const left = this.now - this.windowMs;
    for (const span of this.spans.values()) {
      const row = rows.get(span.gpu);
      const end = span.end ?? this.now;
      if (!row || end < left || span.start >= row.slices) continue;
      const x = Math.max(LEFT, this.#x(span.begin));
      const w = Math.max(1.5, this.#x(end) - x);
      const y = row.top + span.start * row.height + 1;
      const h = Math.min(span.slices, row.slices - span.start) * row.height - 1;
      const isFiltered = this.#isFiltered(span);
      pen.globalAlpha = isFiltered ? 0.1 : span.end === null ? 0.92 : 0.6;
      pen.fillStyle = this.colours.get(span.tenant) ?? "#888888";
      pen.fillRect(x, y, w, h);
      pen.globalAlpha = 1;
      if (w > 48 && h >= 12 && !isFiltered) this.#label(pen, span, x, y, w);
    }
  }

  #label(pen, span, x, y, w) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w - 3, 16);
    pen.clip();
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = "#000000";
    pen.fillText(`${clean(span.tenant)} ${clean(span.profile)}`, x + 4, y + 12);
    pen.restore();
  }

  #axis(pen) {
    pen.fillStyle = this.ink.soft;
    pen.font = "11px system-ui, sans-serif";
    const step = this.windowMs / 6;
    for (let n = 0; n <= 6; n += 1) {
      const ms = this.now - this.windowMs + n * step;
      const text = n === 6 ? "now" : `−${Math.round((this.windowMs - n * step) / 1e3)} s`;
      const x = this.#x(ms);
      pen.textAlign = n === 0 ? "left" : n === 6 ? "right" : "center";
      pen.fillText(text, x, this.bottom + 14);
      pen.globalAlpha = 0.25;
      pen.fillRect(x, 4, 1, this.bottom - 4);
      pen.globalAlpha = 1;
    }
    pen.textAlign = "left";
  }

  #cross(pen) {
    if (!this.cursor || document.activeElement !== this.canvas) return;
    pen.strokeStyle = this.ink.ink;
    pen.lineWidth = 2;
    pen.strokeRect(this.cursor.x - 4, this.cursor.y - 4, 8, 8);
  }

  #key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    const lines = this.rows.flatMap((row) => Array.from({ length: row.slices }, (_, n) => row.top + (n + 0.5) * row.height));
    this.line = Math.max(0, Math.min(lines.length - 1, (this.line ?? 0) + (this.cursor ? step[1] : 0)));
    const wide = this.width - LEFT - 8;
    const x = (this.cursor?.x ?? this.width - 12) + (step[0] * wide) / 40;
    this.cursor = { x: Math.max(LEFT + 1, Math.min(this.width - 9, x)), y: lines[this.line] };
    this.draw();
    this.#point(this.cursor.x, this.cursor.y);
  }

  #point(x, y) {
    const row = this.rows.find((each) => y >= each.top && y < each.top + each.slices * each.height);
    if (!row) return;
    const slice = Math.floor((y - row.top) / row.height);
    const ms = this.now - this.windowMs + ((x - LEFT) / (this.width - LEFT - 8)) * this.windowMs;
    let found = null;
    for (const span of this.spans.values()) {
      const covers = span.gpu === row.gpu.gpu && slice >= span.start && slice < span.start + span.slices;
      if (covers && ms >= span.begin && ms <= (span.end ?? this.now)) found = span;
    }
    const place = `${clean(row.gpu.gpu)}, slice ${slice}, ${seconds(this.now - ms)} ago`;
    const text = found
      ? `${place}: lease ${found.lease} of ${clean(found.tenant)}, ${clean(found.profile)}, held ${seconds((found.end ?? this.now) - found.begin)}${found.end === null ? ", still held" : ""}`
      : `${place}: free`;
    if (this.note.textContent !== text) this.note.textContent = text;
  }
}
