// Tables with a filter, an order and pages. A row keeps its element while it is shown, so that it keeps the focus.

import { element } from "/static/words.js";

const PAGE = 50;

export class TableView {
  /** columns: {title, text(row), number, long, value(row), swatch(row), open(row)}; key(row): a unique text. */
  constructor(place, columns, key, empty) {
    this.columns = columns;
    this.key = key;
    this.rows = [];
    this.filter = "";
    this.first = 0;
    this.order = null;
    this.shown = new Map();
    this.empty = element("p", empty, { class: "empty" });
    this.cut = element("p", "", { class: "empty" });
    this.cut.hidden = true;
    this.body = element("tbody");
    this.head = element("tr");
    this.pager = element("p", "", { class: "pager" });
    const table = element("table");
    const head = element("thead");
    head.append(this.head);
    table.append(head, this.body);
    this.box = element("div", "", { class: "scroll" });
    this.box.append(table);
    place.append(this.box, this.empty, this.pager, this.cut);
    this.headings = columns.map((column, n) => this.#heading(column, n));
    this.#pagerButtons();
    this.draw();
  }

  #heading(column, n) {
    const cell = element("th", "", { scope: "col" });
    if (column.number) cell.className = "number";
    const button = element("button", column.title, { type: "button", class: "plain" });
    button.addEventListener("click", () => {
      const isSame = this.order && this.order.n === n;
      this.order = isSame && this.order.down ? null : { n, down: Boolean(isSame) };
      this.headings.forEach((each, m) => {
        const sorted = this.order && this.order.n === m;
        if (sorted) each.setAttribute("aria-sort", this.order.down ? "descending" : "ascending");
        else each.removeAttribute("aria-sort");
      });
      this.draw();
    });
    cell.append(button);
    this.head.append(cell);
    return cell;
  }

  #pagerButtons() {
    this.back = element("button", "Previous", { type: "button" });
    this.range = element("span");
    this.forth = element("button", "Next", { type: "button" });
    this.back.addEventListener("click", () => { this.first -= PAGE; this.draw(); });
    this.forth.addEventListener("click", () => { this.first += PAGE; this.draw(); });
    this.pager.append(this.back, this.range, this.forth);
  }

  /** isCut: there are more rows, which the server did not read. */
  update(rows, isCut = false) {
    this.rows = rows;
    this.cut.hidden = !isCut;
    this.cut.textContent = `Only the first ${rows.length} are read; there are more.`;
    this.draw();
  }

  setFilter(text) {
    this.filter = text.toLowerCase();
    this.first = 0;
    this.draw();
  }

  #fitting() {
    let rows = this.rows;
    if (this.filter) {
      rows = rows.filter((row) => this.columns.some((column) => column.text(row).toLowerCase().includes(this.filter)));
    }
    if (this.order) {
      const column = this.columns[this.order.n];
      const value = column.value ?? column.text;
      const sign = this.order.down ? -1 : 1;
      rows = [...rows].sort((a, b) => {
        const x = value(a);
        const y = value(b);
        return sign * (x < y ? -1 : x > y ? 1 : 0);
      });
    }
    return rows;
  }

  draw() {
    const rows = this.#fitting();
    this.first = Math.max(0, Math.min(this.first, Math.floor((rows.length - 1) / PAGE) * PAGE));
    const page = rows.slice(this.first, this.first + PAGE);
    const keys = new Set(page.map(this.key));
    for (const [key, line] of this.shown) {
      if (!keys.has(key)) {
        line.row.remove();
        this.shown.delete(key);
      }
    }
    let next = this.body.firstChild;
    for (const each of page) {
      const key = this.key(each);
      let line = this.shown.get(key);
      if (!line) {
        line = this.#line();
        this.shown.set(key, line);
      }
      this.#fill(line, each);
      if (line.row === next) next = next.nextSibling;
      else this.body.insertBefore(line.row, next);
    }
    this.box.hidden = rows.length === 0;
    this.empty.hidden = rows.length !== 0;
    this.pager.hidden = rows.length <= PAGE;
    this.range.textContent = `${this.first + 1}–${this.first + page.length} of ${rows.length}`;
    this.back.disabled = this.first === 0;
    this.forth.disabled = this.first + PAGE >= rows.length;
  }

  #line() {
    const line = { row: element("tr"), cells: [], data: null };
    for (const column of this.columns) {
      const cell = element("td");
      if (column.number) cell.className = "number";
      if (column.long) cell.className = "long";
      let swatch = null;
      if (column.swatch) {
        swatch = element("span", "", { class: "swatch" });
        cell.append(swatch);
      }
      let text = document.createTextNode("");
      if (column.open) {
        const button = element("button", "", { type: "button", class: "plain" });
        button.addEventListener("click", () => column.open(line.data));
        button.append(text);
        cell.append(button);
      } else {
        cell.append(text);
      }
      line.row.append(cell);
      line.cells.push({ text, swatch });
    }
    return line;
  }

  #fill(line, row) {
    line.data = row;
    this.columns.forEach((column, n) => {
      const { text, swatch } = line.cells[n];
      const shown = column.text(row);
      if (text.data !== shown) text.data = shown;
      if (swatch) swatch.style.setProperty("background", column.swatch(row));
    });
  }
}
