// Figures over operations, and fewer points of them that keep every peak.
"use strict";

(() => {
  /** How many entries of a level of a pyramid one entry above stands for. */
  const FACTOR = 16;

  /**
   * A figure that holds from each of its operations on, until the next (a level), or that is of single operations (an
   * event). `at` rises.
   */
  Seam.Figure = class {
    constructor(at, value, isEvent = false) {
      Object.assign(this, { at, value, isEvent });
      this.levels = [{ least: value, most: value }];
      while (this.levels.at(-1).most.length > FACTOR) this.levels.push(above(this.levels.at(-1)));
    }

    /** How many of its entries are of operations before `op`. */
    before(op) {
      let [low, high] = [0, this.at.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.at[middle] < op) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    /** The level after operation `op`. */
    valueAt(op) {
      const index = this.before(op + 1) - 1;
      return index < 0 ? 0 : this.value[index];
    }

    /** The least and the most of entries `from` to before `to`; null if there are none. */
    extremes(from, to) {
      if (from >= to) return null;
      let [least, most] = [Infinity, -Infinity];
      const take = (level, index) => {
        least = Math.min(least, level.least[index]);
        most = Math.max(most, level.most[index]);
      };
      for (const level of this.levels) {
        if (to - from <= 2 * FACTOR || level === this.levels.at(-1)) {
          for (let index = from; index < to; index++) take(level, index);
          break;
        }
        for (; from % FACTOR !== 0; from++) take(level, from);
        for (; to % FACTOR !== 0;) take(level, --to);
        [from, to] = [from / FACTOR, to / FACTOR];
      }
      return [least, most];
    }

    /** The least and the most in operations `from` to before `to`; of an event null where there is none. */
    range(from, to) {
      const found = this.extremes(this.before(from), this.before(to));
      if (this.isEvent) return found;
      const held = from > 0 ? this.valueAt(from - 1) : this.valueAt(0);
      // What held before is part of it only until the first operation changes it.
      const starts = this.at[this.before(from)] === from;
      if (!found) return [held, held];
      return starts ? found : [Math.min(found[0], held), Math.max(found[1], held)];
    }
  };

  function above({ least, most }) {
    const count = Math.ceil(most.length / FACTOR);
    const next = { least: new Float64Array(count).fill(Infinity), most: new Float64Array(count).fill(-Infinity) };
    for (let index = 0; index < most.length; index++) {
      const to = Math.floor(index / FACTOR);
      next.least[to] = Math.min(next.least[to], least[index]);
      next.most[to] = Math.max(next.most[to], most[index]);
    }
    return next;
  }

  /**
   * Points of figures in operations `from` to before `to`, for about `columns` columns of pixels: the operations, then the
   * values of each figure. Where operations are fewer than columns they are exact; else each column has the least and the
   * most of its operations. `exact` says which.
   */
  Seam.decimate = (figures, from, to, columns) => {
    const [first, last] = [Math.max(0, Math.floor(from)), Math.ceil(to)];
    if (last - first <= columns) {
      const ops = Array.from({ length: last - first + 1 }, (_, index) => first + index);
      const of = (figure) =>
        figure.isEvent
          ? ops.map((op) => figure.range(op, op + 1)?.[1] ?? null)
          : ops.map((op) => figure.valueAt(Math.min(op, last - 1)));
      return { exact: true, data: [ops, ...figures.map(of)] };
    }
    const width = (last - first) / columns;
    const edges = Array.from({ length: columns + 1 }, (_, index) => first + Math.round(index * width));
    const ops = [];
    for (let column = 0; column < columns; column++) {
      ops.push(edges[column], (edges[column] + edges[column + 1]) / 2);
    }
    const of = (figure) => {
      const values = [];
      for (let column = 0; column < columns; column++) {
        const found = figure.range(edges[column], edges[column + 1]);
        if (figure.isEvent) values.push(null, found?.[1] ?? null);
        else values.push(found[0], found[1]);
      }
      return values;
    };
    return { exact: false, data: [ops, ...figures.map(of)] };
  };

  /** The part of all operations that is shown, and the one that is pointed at. Whoever listens is told of changes. */
  Seam.View = class {
    constructor(total) {
      Object.assign(this, { total: Math.max(1, total), from: 0, to: Math.max(1, total), cursor: 0 });
      this.listeners = [];
      this.scheduled = new Set();
    }

    /** Calls `listener` in the next frame after a change of "range" or "cursor". */
    listen(listener) {
      this.listeners.push(listener);
    }

    set(from, to) {
      const least = Math.min(this.total, 12);
      const width = Math.min(this.total, Math.max(least, to - from));
      const middle = (from + to) / 2;
      const start = Math.min(Math.max(0, middle - width / 2), this.total - width);
      if (start === this.from && start + width === this.to) return;
      [this.from, this.to] = [start, start + width];
      this.changed("range");
    }

    /** Shows `factor` times as many operations, and leaves `around` where it is. */
    zoom(factor, around = (this.from + this.to) / 2) {
      const width = Math.min(this.total, Math.max(Math.min(this.total, 12), (this.to - this.from) * factor));
      const part = (around - this.from) / (this.to - this.from);
      this.set(around - part * width, around + (1 - part) * width);
    }

    pan(part) {
      const by = (this.to - this.from) * part;
      const from = Math.min(Math.max(0, this.from + by), this.total - (this.to - this.from));
      this.set(from, from + this.to - this.from);
    }

    reset() {
      this.set(0, this.total);
    }

    point(op) {
      const cursor = Math.min(Math.max(0, Math.floor(op)), this.total - 1);
      if (cursor === this.cursor) return;
      this.cursor = cursor;
      this.changed("cursor");
    }

    /** Points at an operation, and shows it where it is not shown. */
    goTo(op) {
      this.point(op);
      const width = this.to - this.from;
      if (op < this.from || op >= this.to) this.set(op - width / 2, op + width / 2);
    }

    changed(what) {
      if (this.scheduled.size === 0) requestAnimationFrame(() => this.tell());
      this.scheduled.add(what);
    }

    tell() {
      const what = this.scheduled;
      this.scheduled = new Set();
      for (const listener of this.listeners) listener(what);
    }
  };
})();
