// Draws rectangles so small that many share a pixel: each pixel gets the colours in it by the part of it that they cover.
"use strict";

(() => {
  /** A pixel that anything covers shows it with at least this part of its colour, so that nothing small is lost. */
  const LEAST = 0.22;

  Seam.Raster = class {
    constructor() {
      this.size(0, 0);
    }

    size(width, height) {
      if (this.width === width && this.height === height) return;
      Object.assign(this, { width, height });
      const pixels = width * height;
      [this.red, this.green, this.blue] = [0, 1, 2].map(() => new Float32Array(pixels));
      [this.used, this.held] = [0, 1].map(() => new Float32Array(pixels));
      this.image = pixels > 0 ? new ImageData(width, height) : null;
    }

    clear() {
      for (const layer of [this.red, this.green, this.blue, this.used, this.held]) layer.fill(0);
    }

    /** The part of a rectangle that is in the picture. */
    within(left, right, top, bottom) {
      return [Math.max(0, left), Math.min(this.width, right), Math.max(0, top), Math.min(this.height, bottom)];
    }

    /** Memory that is held: coordinates are pixels, with fractions. */
    hold(left, right, top, bottom) {
      const { width, held } = this;
      [left, right, top, bottom] = this.within(left, right, top, bottom);
      if (left >= right || top >= bottom) return;
      for (let y = Math.floor(top); y < bottom; y++) {
        const part = Math.min(bottom, y + 1) - Math.max(top, y);
        for (let x = Math.floor(left); x < right; x++) {
          held[y * width + x] += part * (Math.min(right, x + 1) - Math.max(left, x));
        }
      }
    }

    /** A block, of a colour from 0 to 255. */
    fill(left, right, top, bottom, red, green, blue) {
      const { width, used } = this;
      [left, right, top, bottom] = this.within(left, right, top, bottom);
      if (left >= right || top >= bottom) return;
      for (let y = Math.floor(top); y < bottom; y++) {
        const part = Math.min(bottom, y + 1) - Math.max(top, y);
        for (let x = Math.floor(left); x < right; x++) {
          const at = y * width + x;
          const covered = part * (Math.min(right, x + 1) - Math.max(left, x));
          used[at] += covered;
          this.red[at] += covered * red;
          this.green[at] += covered * green;
          this.blue[at] += covered * blue;
        }
      }
    }

    /** The picture, over a background without memory and one of free memory. */
    finish(none, free) {
      const { red, green, blue, used, held } = this;
      const out = this.image.data;
      for (let at = 0, to = 0; at < used.length; at++, to += 4) {
        const [part, in_use] = [Math.min(1, held[at]), used[at]];
        let r = none[0] + (free[0] - none[0]) * part;
        let g = none[1] + (free[1] - none[1]) * part;
        let b = none[2] + (free[2] - none[2]) * part;
        if (in_use > 0) {
          const cover = in_use >= 1 ? 1 : LEAST + (1 - LEAST) * in_use;
          r += (red[at] / in_use - r) * cover;
          g += (green[at] / in_use - g) * cover;
          b += (blue[at] / in_use - b) * cover;
        }
        out[to] = r;
        out[to + 1] = g;
        out[to + 2] = b;
        out[to + 3] = 255;
      }
      return this.image;
    }
  };
})();
