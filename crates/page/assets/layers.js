// Where the blocks of a strategy lay: rectangles of operations and bytes, found by what is shown.
"use strict";

(() => {
  /** Where addresses are unused for longer than this part of all that is used, they are left out. */
  const LONGEST_GAP = 1 / 64;

  /** Rectangles in time and bytes, found fast whatever their length: those of one power of two of operations together. */
  class Spans {
    constructor(from, until, low, high, block, place) {
      Object.assign(this, { from, until, low, high, block, place });
      const level = (index) => 31 - Math.clz32(Math.max(1, until[index] - from[index]));
      const counts = new Uint32Array(33);
      for (let index = 0; index < from.length; index++) counts[level(index) + 1]++;
      for (let at = 1; at < counts.length; at++) counts[at] += counts[at - 1];
      this.starts = counts.slice();
      this.order = new Uint32Array(from.length);
      const next = counts.slice();
      // Rectangles are made in the order of their first operations, so each level is in it too.
      for (let index = 0; index < from.length; index++) this.order[next[level(index)]++] = index;
    }

    /** Calls `each` with every rectangle that touches operations `from` to before `to`. */
    visit(from, to, each) {
      for (let level = 0; level < 32; level++) {
        const [start, end] = [this.starts[level], this.starts[level + 1]];
        if (start === end) continue;
        const longest = 2 ** (level + 1);
        let [low, high] = [start, end];
        while (low < high) {
          const middle = (low + high) >> 1;
          if (this.from[this.order[middle]] <= from - longest) low = middle + 1;
          else high = middle;
        }
        for (let at = low; at < end; at++) {
          const index = this.order[at];
          if (this.from[index] >= to) break;
          if (this.until[index] > from) each(index);
        }
      }
    }

    /** The rectangle at an operation and a byte, or -1. */
    at(op, byte) {
      let found = -1;
      this.visit(op, op + 1, (index) => {
        if (this.low[index] <= byte && byte < this.high[index]) found = index;
      });
      return found;
    }
  }

  Seam.Layout = class {
    static async load(job, index) {
      const { about, column } = await Seam.unpack(`map-${job.number}-${index}`);
      const layout = Object.assign(new Seam.Layout(), { job, course: job.courses[index], unit: about.unit });
      layout.read(column);
      return layout;
    }

    read(column) {
      const { unit } = this;
      const bytes = (name) => column(name).map((value) => value * unit);
      this.address = bytes("address");
      this.bytes = bytes("bytes");
      this.pieces = column("pieces");
      [this.pieceStart, this.pieceSize] = [bytes("piece_start"), bytes("piece_size")];
      this.firstPiece = new Uint32Array(this.pieces.length + 1);
      this.pieces.forEach((count, place) => (this.firstPiece[place + 1] = this.firstPiece[place] + count));
      this.first = column("first");
      this.chunks = {
        low: bytes("chunk_start"),
        size: bytes("chunk_size"),
        from: column("chunk_from"),
        until: column("chunk_until").map((until) => (until === 0 ? Infinity : until - 1)),
      };
      this.later = new Map();
      const [of, op, place] = [column("later_block"), column("later_op"), column("later_place")];
      of.forEach((block, index) => {
        if (!this.later.has(block)) this.later.set(block, []);
        this.later.get(block).push([op[index], place[index]]);
      });
      [this.rangeStart, this.rangeSize] = [bytes("range_start"), bytes("range_size")];
      this.end = Math.min(this.course.end, this.job.total);
      this.axes = {};
    }

    /** How many blocks have a place: those from before the run ended. */
    get blocks() {
      return this.first.length;
    }

    /** The stays of a block: operations from and until, and its place. */
    stays(block) {
      const until = Math.min(this.job.until[block], this.end);
      const later = this.later.get(block) ?? [];
      const starts = [[this.job.from[block], this.first[block]], ...later];
      return starts.map(([from, place], index) => [from, starts[index + 1]?.[0] ?? until, place]);
    }

    /** The place of a block at an operation. */
    placeAt(block, op) {
      const stay = this.stays(block).findLast(([from]) => from <= op);
      return stay ? stay[2] : this.first[block];
    }

    /** The rectangles by memory ("memory": bytes that are held) or by address ("addresses"), and how long the axis is. */
    axis(name) {
      this.axes[name] ??= name === "memory" ? this.byMemory() : this.byAddress();
      return this.axes[name];
    }

    byMemory() {
      const { pieceStart, pieceSize, firstPiece, pieces } = this;
      const spans = this.spans(
        (place) => pieces[place],
        (place, piece) => pieceStart[firstPiece[place] + piece],
        (place, piece) => pieceSize[firstPiece[place] + piece],
      );
      const ends = this.chunks.low.map((low, index) => low + this.chunks.size[index]);
      const length = Math.max(1, most(ends), most(spans.high));
      return { spans, length, chunks: this.chunks, addressAt: (byte) => byte };
    }

    byAddress() {
      const used = Array.from(this.address, (address, place) => [address, address + this.bytes[place]]);
      used.sort((a, b) => a[0] - b[0]);
      const total = this.bytes.length ? used.at(-1)[1] - used[0][0] : 1;
      const ranges = [];
      const sum = () => ranges.reduce((sum, [from, to]) => sum + to - from, 0);
      for (const [from, to] of used) {
        const last = ranges.at(-1);
        if (last && from <= last[1]) last[1] = Math.max(last[1], to);
        else ranges.push([from, to]);
      }
      const gap = Math.min(total, sum()) * LONGEST_GAP;
      const joined = [];
      for (const [from, to] of ranges) {
        const last = joined.at(-1);
        if (last && from - last[1] <= gap) last[1] = to;
        else joined.push([from, to]);
      }
      let next = 0;
      const starts = joined.map(([from, to], index) => {
        const start = index > 0 ? next + gap : 0;
        next = start + to - from;
        return start;
      });
      const rangeOf = (address) => {
        let [low, high] = [0, joined.length];
        while (high - low > 1) {
          const middle = (low + high) >> 1;
          if (joined[middle][0] <= address) low = middle;
          else high = middle;
        }
        return low;
      };
      const at = this.address.map((address) => starts[rangeOf(address)] + address - joined[rangeOf(address)][0]);
      const spans = this.spans(
        () => 1,
        (place) => at[place],
        (place) => this.bytes[place],
      );
      const chunks = {
        low: Float64Array.from(starts),
        size: Float64Array.from(joined, ([from, to]) => to - from),
        from: new Float64Array(joined.length),
        until: new Float64Array(joined.length).fill(Infinity),
      };
      const addressAt = (byte) => {
        const range = starts.findLastIndex((start) => start <= byte);
        return joined[Math.max(0, range)]?.[0] + byte - (starts[Math.max(0, range)] ?? 0);
      };
      const names = joined.map(([from, to]) => this.reserved(from, to));
      return { spans, length: Math.max(1, next), chunks, addressAt, names };
    }

    /** What the driver was asked for where a range of addresses lies. */
    reserved(from, to) {
      const sizes = this.rangeSize.filter(
        (size, index) => this.rangeStart[index] < to && this.rangeStart[index] + size > from,
      );
      if (sizes.length === 0) return "addresses of cuMemAlloc, or of the driver's pool";
      if (sizes.length === 1) return `in one reservation of ${Seam.bytes(sizes[0])}`;
      return `in ${Seam.count(sizes.length)} reservations of up to ${Seam.bytes(most(sizes))}`;
    }

    spans(count, start, size) {
      let rectangles = 0;
      const parts = [];
      for (let block = 0; block < this.blocks; block++) {
        const stays = this.later.has(block) ? this.stays(block) : null;
        parts.push(stays);
        if (stays) stays.forEach(([, , place]) => (rectangles += count(place)));
        else rectangles += count(this.first[block]);
      }
      const [from, until] = [new Uint32Array(rectangles), new Uint32Array(rectangles)];
      const [low, high] = [new Float64Array(rectangles), new Float64Array(rectangles)];
      const [of, at] = [new Uint32Array(rectangles), new Uint32Array(rectangles)];
      let next = 0;
      const add = (block, first, last, place) => {
        for (let piece = 0; piece < count(place); piece++, next++) {
          [from[next], until[next], of[next], at[next]] = [first, last, block, place];
          low[next] = start(place, piece);
          high[next] = low[next] + size(place, piece);
        }
      };
      for (let block = 0; block < this.blocks; block++) {
        if (parts[block]) parts[block].forEach(([first, last, place]) => add(block, first, last, place));
        else add(block, this.job.from[block], Math.min(this.job.until[block], this.end), this.first[block]);
      }
      // Later stays of a block begin behind those of blocks that follow.
      const sorted = this.later.size === 0 ? null : Array.from(from.keys()).sort((a, b) => from[a] - from[b]);
      const by = (list) => (sorted ? list.map((_, index) => list[sorted[index]]) : list);
      return new Spans(by(from), by(until), by(low), by(high), by(of), by(at));
    }

    /** The chunk at a byte of memory and an operation, or -1. */
    chunkAt(op, byte) {
      const { low, size, from, until } = this.chunks;
      return low.findIndex(
        (start, index) => start <= byte && byte < start + size[index] && from[index] <= op && op < until[index],
      );
    }

    /** The free bytes around a byte that no block has: from, to, and the chunk. */
    holeAt(op, byte, spans) {
      const chunk = this.chunkAt(op, byte);
      if (chunk < 0) return null;
      let [from, to] = [this.chunks.low[chunk], this.chunks.low[chunk] + this.chunks.size[chunk]];
      spans.visit(op, op + 1, (index) => {
        if (spans.high[index] <= byte) from = Math.max(from, spans.high[index]);
        if (spans.low[index] > byte) to = Math.min(to, spans.low[index]);
      });
      return { from, to, chunk };
    }
  };

  function most(list) {
    return list.reduce((best, value) => Math.max(best, value), 0);
  }
})();
