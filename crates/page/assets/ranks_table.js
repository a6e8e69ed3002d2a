// The table of ranks: sorted by any column, filtered, and as long as somebody asks for.
"use strict";

(() => {
  /** Rows that are made at a time. */
  const PAGE = 200;

  const bytes = (size) => (size == null ? Seam.element("td", { class: "failed" }, "too much") : Seam.bytes(size));

  /** Columns: a heading, the value by which rows are sorted, the cell, and the figure by which a row may be unlike the others. */
  function columns(strategies, sought) {
    const all = [
      { label: "rank", of: (row) => row.rank ?? row.name, cell: (row) => row.name },
      { label: "device", of: (row) => row.capacity, cell: (row) => `${row.device.replace("sim:", "")}`, isText: true },
      { label: "live", of: (row) => row.peak_live, cell: (row) => Seam.bytes(row.peak_live), figure: "live" },
      {
        label: "recorded",
        of: (row) => (row.reserved_before === 0 ? row.recorded_reserved : null),
        cell: (row) => (row.reserved_before > 0 || row.recorded_reserved == null ? "–" : Seam.bytes(row.recorded_reserved)),
        figure: "recorded",
      },
    ];
    for (const name of strategies) {
      const of = (row) => row.strategies[name].reserved;
      all.push({ label: name, of, cell: (row) => bytes(of(row)), figure: `${name} reserved` });
    }
    for (const name of sought ? strategies : []) {
      const of = (row) => (row.grows ? (row.strategies[name].largest_step ?? 0) : null);
      all.push({ label: `${name} step`, of, cell: (row) => Seam.times(of(row)), figure: `${name} step` });
    }
    return all;
  }

  Seam.RankTable = class {
    /** `choose` is told of a row whose name was clicked. */
    constructor(parent, { rows, strategies, deciding, choose }) {
      Object.assign(this, { rows, deciding, choose });
      this.columns = columns(strategies, rows.some((row) => row.sought));
      this.filter = "all";
      this.words = "";
      this.order = { column: null, down: false };
      this.shown = PAGE;
      this.body = Seam.element("tbody");
      this.head = Seam.element("thead");
      this.count = Seam.element("p", { class: "note", role: "status" });
      this.more = Seam.element("button", { type: "button", onclick: () => this.showMore() });
      const label = "Every rank, strategy beside strategy";
      const table = Seam.element("table", { "aria-label": label }, this.head, this.body);
      const scroll = Seam.element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
      parent.replaceChildren(this.tools(), scroll, this.count, this.more);
      this.fill();
    }

    tools() {
      const option = ([value, text]) => Seam.element("option", { value }, text);
      const kinds = [
        ["all", "all"],
        ["unlike", "unlike the others"],
        ["decides", "those that decide"],
        ["fails", "those that do not run"],
      ];
      const set = (key) => (event) => {
        this[key] = event.target.value;
        this.shown = PAGE;
        this.fill();
      };
      this.kind = Seam.element("select", { "aria-label": "Shown", onchange: set("filter") }, ...kinds.map(option));
      this.search = Seam.element("input", { type: "search", "aria-label": "Name or device has", oninput: set("words") });
      return Seam.element(
        "div",
        { class: "toolbar" },
        Seam.element("label", {}, "Shown", this.kind),
        Seam.element("label", {}, "Name or device has", this.search),
      );
    }

    /** The rows that are asked for, in the order that is. */
    chosenRows() {
      const words = this.words.toLowerCase();
      const is = {
        all: () => true,
        unlike: (row) => row.outlier.length > 0,
        decides: (row) => this.deciding.has(row.name),
        fails: (row) => Object.values(row.strategies).some((of) => of.reserved == null),
      }[this.filter];
      const rows = this.rows.filter((row) => is(row) && `${row.name} ${row.device}`.toLowerCase().includes(words));
      const { column, down } = this.order;
      if (column == null) return rows;
      // What has no figure comes last, however it is sorted.
      const by = (a, b) => (a == null) - (b == null) || (a == null ? 0 : (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      return rows.sort((a, b) => by(column.of(a), column.of(b)));
    }

    fill() {
      const rows = this.chosenRows();
      this.heading();
      this.body.replaceChildren(...rows.slice(0, this.shown).map((row) => this.row(row)));
      const left = rows.length - Math.min(this.shown, rows.length);
      this.count.textContent = `${Seam.count(rows.length - left)} of ${Seam.plural(rows.length, "rank")}${rows.length < this.rows.length ? ` that are asked for, of ${Seam.count(this.rows.length)}` : ""}. A diamond marks a figure that is unlike the others'.`;
      this.more.hidden = left === 0;
      this.more.textContent = `Show all ${Seam.count(rows.length)}`;
    }

    showMore() {
      this.shown = Infinity;
      this.fill();
    }

    heading() {
      const cells = this.columns.map((column, index) => {
        const { order } = this;
        const sorted = order.column === column ? (order.down ? "descending" : "ascending") : "none";
        const sort = () => {
          // Figures begin with the largest, names with the first.
          const first = index > 1;
          this.order = { column, down: order.column === column ? !order.down : first };
          this.fill();
          this.head.querySelectorAll("button")[index].focus();
        };
        const button = Seam.element("button", { type: "button", onclick: sort }, column.label);
        return Seam.element("th", { scope: "col", "aria-sort": sorted, class: column.isText ? "text" : null }, button);
      });
      this.head.replaceChildren(Seam.element("tr", {}, ...cells));
    }

    row(row) {
      const unlike = new Set(row.outlier.map((one) => one.figure));
      const [name, ...others] = this.columns;
      const decides = this.deciding.get(row.name);
      const head = Seam.element("th", { scope: "row", onclick: () => this.choose(row) }, name.cell(row));
      if (decides) head.append(Seam.element("span", { title: `decides with ${decides.join(", ")}` }, " ▼"));
      const cells = others.map((column) => {
        const cell = column.cell(row);
        const made = cell instanceof Node ? cell : Seam.element("td", { class: column.isText ? "text" : null }, cell);
        if (unlike.has(column.figure)) made.classList.add("unlike");
        return made;
      });
      const made = Seam.element("tr", {}, head, ...cells);
      made.seamRow = row;
      made.classList.toggle("chosen", row === this.chosen);
      return made;
    }

    /** Marks a row, and scrolls to it where that is asked for. */
    mark(row, isScrolled = false) {
      this.chosen = row;
      if (isScrolled && !this.find(row)) {
        this.filter = this.kind.value = "all";
        this.words = this.search.value = "";
        this.shown = Infinity;
        this.fill();
      }
      for (const made of this.body.children) made.classList.toggle("chosen", made.seamRow === row);
      if (isScrolled) this.find(row)?.scrollIntoView({ block: "center" });
    }

    find(row) {
      return [...this.body.children].find((made) => made.seamRow === row);
    }
  };
})();
