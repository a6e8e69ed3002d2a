// What blocks are coloured by: classes with names, the class of a block, and the colours.
"use strict";

(() => {
  const SIZES = [2 ** 20, 2 ** 22, 2 ** 24, 2 ** 26, 2 ** 28, 2 ** 30];
  const TIMES = [10, 100, 1000, 10000, 100000];

  /** What blocks are coloured by: classes with a name, and the class of a block. */
  Seam.COLOURINGS = {
    size: (job) =>
      ordered(["up to 1 MiB", "to 4 MiB", "to 16 MiB", "to 64 MiB", "to 256 MiB", "to 1 GiB", "larger"], (block) =>
        classOf(SIZES, job.size[block]),
      ),
    stream: (job) => {
      const names = job.about.streams.map((stream) => `stream ${stream}`);
      const shown = names.length > 8 ? [...names.slice(0, 7), "other streams"] : names;
      return unordered(shown, (block) => Math.min(job.stream[block], shown.length - 1));
    },
    pool: (job) => unordered(["large", "small (up to 1 MiB)"], (block) => (job.size[block] <= 2 ** 20 ? 1 : 0)),
    pieces: (job, layout) => {
      const names = ["in one piece", "stitched from 2", "from 3 or 4", "from 5 to 16", "from more"];
      const of = (block) => classOf([1, 2, 4, 16], layout.pieces[layout.first[block]]);
      return { names, of, colours: () => [Seam.css("whole"), ...Seam.scale(names.length - 1)] };
    },
    lifetime: (job) => {
      const names = ["up to 10 operations", "to 100", "to 1,000", "to 10,000", "to 100,000", "longer, or never freed"];
      return ordered(names, (block) => classOf(TIMES, job.freed[block] - job.from[block]));
    },
    stack: (job) => {
      const bytes = new Map();
      for (let block = 0; block < job.blocks; block++) {
        const line = job.line(block);
        bytes.set(line, (bytes.get(line) ?? 0) + job.size[block]);
      }
      const isKnown = !bytes.delete(null);
      const top = [...bytes]
        .sort((a, b) => b[1] - a[1])
        .slice(0, 7)
        .map(([line]) => line);
      const names = top.map((line) => job.about.lines[line]);
      const at = new Map(top.map((line, index) => [line, index]));
      return unordered(
        names.length === bytes.size && isKnown ? names : [...names, "others"],
        (block) => at.get(job.line(block)) ?? names.length,
      );
    },
  };

  const classOf = (bounds, value) => {
    const at = bounds.findIndex((bound) => value <= bound);
    return at < 0 ? bounds.length : at;
  };
  const ordered = (names, of) => ({ names, of, colours: () => Seam.scale(names.length) });
  const unordered = (names, of) => ({ names, of, colours: () => names.map((_, index) => Seam.distinct(index)) });
})();
