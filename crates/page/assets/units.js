// Numbers as people read them, elements, and the colours of the page.
"use strict";
const Seam = {};

(() => {
  const UNITS = [
    ["TiB", 2 ** 40],
    ["GiB", 2 ** 30],
    ["MiB", 2 ** 20],
    ["KiB", 2 ** 10],
  ];

  /** Bytes with a unit: 1.50 GiB. */
  Seam.bytes = (bytes) => {
    const [unit, scale] = UNITS.find(([, scale]) => Math.abs(bytes) >= scale) ?? ["bytes", 1];
    return scale === 1 ? `${bytes} ${unit}` : `${(bytes / scale).toFixed(2)} ${unit}`;
  };

  /** Bytes at an axis whose largest value is `most`: all in one unit, with as few digits as tell them apart. */
  Seam.axisBytes = (values, most) => {
    const [unit, scale] = UNITS.find(([, scale]) => most >= scale) ?? ["bytes", 1];
    const step = values.length > 1 ? Math.abs(values[1] - values[0]) / scale : 1;
    const digits = [0, 1, 2, 3, 4].find((digits) => (step * 10 ** digits) % 1 === 0) ?? 5;
    return values.map((value) => (value == null ? "" : `${(value / scale).toFixed(digits)} ${unit}`));
  };

  /** Distances between the figures at an axis of bytes: powers of two, so that they are whole numbers of a unit. */
  Seam.BYTE_STEPS = Array.from({ length: 52 }, (_, power) => 2 ** power);

  Seam.count = (number) => Math.round(number).toLocaleString("en-US");

  /** "1 call", "2 calls". */
  Seam.plural = (number, one, many = `${one}s`) => `${Seam.count(number)} ${number === 1 ? one : many}`;

  Seam.duration = (ns) => {
    const [unit, scale] = [
      ["s", 1e9],
      ["ms", 1e6],
      ["µs", 1e3],
    ].find(([, scale]) => ns >= scale) ?? ["ns", 1];
    const value = ns / scale;
    return `${scale === 1 ? Math.round(value) : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
  };

  Seam.percent = (part) => `${(part * 100).toFixed(2)}%`;

  /** An address as hexadecimal. */
  Seam.address = (address) => `0x${address.toString(16)}`;

  /** Makes an element; children are elements or text. */
  Seam.element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value != null) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  // Okabe and Ito's colours, which people tell apart who do not see red and green; with dashes where more are needed.
  const LIGHT = ["#0072b2", "#d55e00", "#007a5a", "#a8467f", "#2b2b2b", "#a97400", "#2a8fc7", "#7a6f00"];
  const DARK = ["#56b4e9", "#ff8f4a", "#2fc99c", "#e59ac4", "#e4e4e4", "#f0b429", "#9ad2f5", "#f0e442"];
  const DASHES = [[], [7, 3], [2, 3], [10, 3, 2, 3]];

  Seam.isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };

  /** How the n-th strategy is drawn. Neighbours differ in colour and in dashes. */
  Seam.look = (index) => {
    const colours = Seam.isDark() ? DARK : LIGHT;
    return {
      colour: colours[index % colours.length],
      dash: DASHES[(index + Math.floor(index / colours.length)) % DASHES.length],
    };
  };

  /** The value of a colour of page.css. */
  Seam.css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Viridis, from dark to light, by matplotlib (CC0).
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];

  /** `count` colours of a scale that is ordered by lightness. */
  Seam.scale = (count) => {
    const [low, high] = Seam.isDark() ? [1.6, 8] : [0, 7.4];
    return Array.from({ length: count }, (_, index) => {
      const at = count > 1 ? low + ((high - low) * index) / (count - 1) : (low + high) / 2;
      return mixed(VIRIDIS[Math.floor(at)], VIRIDIS[Math.min(8, Math.floor(at) + 1)], at % 1);
    });
  };

  /** As many different colours as there are. */
  Seam.distinct = (index) => (Seam.isDark() ? DARK : LIGHT)[index % LIGHT.length];

  /** Red, green and blue of #rrggbb. */
  Seam.rgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

  function mixed(a, b, part) {
    const [from, to] = [Seam.rgb(a), Seam.rgb(b)];
    const parts = from.map((value, index) => Math.round(value + (to[index] - value) * part));
    return `#${parts.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  }

  /** A short line as it is drawn in a chart, for a legend. */
  Seam.sample = ({ colour, dash, width = 2.5 }) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 28 10");
    svg.setAttribute("class", "sample");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("d", "M0 5H28");
    line.setAttribute("style", `stroke:${colour};stroke-width:${width};stroke-dasharray:${(dash ?? []).join(" ")}`);
    svg.append(line);
    return svg;
  };
})();
