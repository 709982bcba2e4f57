"use strict";
// Axes, marks and readings of one chart, as SVG: colours of text and lines are those of the page.
const drawing = (() => {
  const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"]
    .map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const LETTER = 6; // pixels, about

  function add(parent, name, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  // An axis is {from, to, log, label}, or {names, label}; a scale is its map to pixels.
  function scaleOf({ from, to, log }, start, end) {
    const f = log ? Math.log10 : (value) => value;
    const scale = (value) => start + ((f(value) - f(from)) / (f(to) - f(from))) * (end - start);
    scale.back = (pixel) => {
      const value = f(from) + ((pixel - start) / (end - start)) * (f(to) - f(from));
      return log ? 10 ** value : value;
    };
    return scale;
  }

  // What an axis must show of values, with some room around them.
  function span(values, log = false, room = 0) {
    const known = values.filter((value) => value !== null && (!log || value > 0));
    if (!known.length) return { from: log ? 0.1 : 0, to: 1, log };
    const f = log ? Math.log10 : (value) => value;
    let [low, high] = [Infinity, -Infinity];
    for (const value of known) [low, high] = [Math.min(low, f(value)), Math.max(high, f(value))];
    const more = high > low ? room * (high - low) : Math.abs(low) * 0.1 || 1;
    const back = log ? (value) => 10 ** value : (value) => value;
    return { from: back(low - more), to: back(high + more), log };
  }

  function ticksOf({ from, to, log }, most) {
    if (log) {
      const [low, high] = [Math.ceil(Math.log10(from) - 1e-9), Math.floor(Math.log10(to) + 1e-9)];
      const step = Math.ceil((high - low + 1) / most);
      const powers = Array.from({ length: high - low + 1 }, (_, i) => low + i);
      if (powers.length > 2) return powers.filter((power) => power % step === 0).map((power) => 10 ** power);
      const fine = [low - 1, ...powers].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
      const inside = fine.filter((value) => value >= from && value <= to);
      if (inside.length > 1) return inside;
    }
    const rough = (to - from) / most;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((digit) => digit * unit >= rough);
    const first = Math.ceil(from / step - 1e-9);
    const count = Math.floor(to / step + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, i) => (first + i) * step);
  }

  function number(value, digits = 4) {
    if (value === null) return "?";
    const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    if (size >= -3 && size < 6) return value.toLocaleString("en", { maximumSignificantDigits: digits });
    const factor = Number((value / 10 ** size).toPrecision(digits));
    const power = `10${String(size).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])}`;
    return factor === 1 ? power : `${factor}·${power}`;
  }

  function lineOf(xs, ys, scaleX, scaleY) {
    let path = "", drawn = false;
    xs.forEach((x, i) => {
      const [px, py] = [scaleX(x), ys[i] === null ? NaN : scaleY(ys[i])];
      const known = Number.isFinite(px) && Number.isFinite(py);
      if (known) path += `${drawn ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`;
      drawn = known;
    });
    return path;
  }

  function bandOf(xs, lows, highs, scaleX, scaleY, floor) {
    const known = xs.map((_, i) => i).filter((i) => lows[i] !== null && highs[i] >= floor);
    const point = (i, value) => `${scaleX(xs[i]).toFixed(1)} ${scaleY(Math.max(value, floor)).toFixed(1)}`;
    const edges = [...known.map((i) => point(i, highs[i])), ...known.reverse().map((i) => point(i, lows[i]))];
    return edges.length ? `M${edges.join("L")}Z` : "";
  }

  // Points as the round ends of lines without length: one path, however many there are.
  function dotsOf(xs, ys, scaleX, scaleY) {
    return xs.map((x, i) => lineOf([x], [ys[i]], scaleX, scaleY)).filter(Boolean).map((at) => `${at}h0`).join("");
  }

  function colourOf(share) {
    const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
    const i = Math.min(Math.floor(at), VIRIDIS.length - 2);
    return VIRIDIS[i].map((low, part) => Math.round(low + (at - i) * (VIRIDIS[i + 1][part] - low)));
  }

  // An image with a pixel for each cell, the first row at the top; null is left clear.
  function imageOf(rows, axis) {
    const canvas = Object.assign(document.createElement("canvas"), { width: rows[0].length, height: rows.length });
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(canvas.width, canvas.height);
    const share = scaleOf(axis, 0, 1);
    rows.flat().forEach((value, i) => {
      if (value !== null && (!axis.log || value > 0)) pixels.data.set([...colourOf(share(value)), 255], 4 * i);
    });
    context.putImageData(pixels, 0, 0);
    return canvas.toDataURL();
  }

  function axes(svg, plot, x, y) {
    const scaleX = scaleOf(x, 0, plot.width), scaleY = scaleOf(y, plot.height, 0);
    const group = add(svg, "g", { transform: `translate(${plot.left} ${plot.top})` });
    const [bottom, middle] = [plot.height, plot.width / 2];
    for (const [value, text] of labels(x, plot.width / (x.names ? 12 : 60))) {
      const at = scaleX(value);
      if (!x.names) add(group, "path", { class: "grid", d: `M${at} 0V${bottom}` });
      const turned = x.upright ? { "text-anchor": "end", transform: `translate(${at + 4} ${bottom + 5}) rotate(-90)` } : { "text-anchor": "middle", x: at, y: bottom + 14 };
      add(group, "text", { class: "tick", ...turned }, text);
    }
    for (const [value, text] of labels(y, plot.height / (y.names ? 12 : 34))) {
      const at = scaleY(value);
      if (!y.names) add(group, "path", { class: "grid", d: `M0 ${at}H${plot.width}` });
      add(group, "text", { class: "tick", x: -6, y: at + 4, "text-anchor": "end" }, text);
    }
    add(group, "text", { class: "label", x: middle, y: bottom + plot.below - 4, "text-anchor": "middle" }, x.label);
    if (y.label) add(group, "text", { class: "label", "text-anchor": "middle", transform: `translate(${11 - plot.left} ${bottom / 2}) rotate(-90)` }, y.label);
    return [scaleX, scaleY];
  }

  // What stands beside an axis and where: at most so many, of names every second or third if need be.
  function labels(axis, most) {
    if (!axis.names) return ticksOf(axis, Math.max(2, Math.floor(most))).map((value) => [value, number(value)]);
    const step = Math.max(1, Math.ceil(axis.names.length / most));
    return axis.names.map((name, i) => [i, name]).filter(([i]) => i % step === 0);
  }
  const longest = (axis, most) => LETTER * Math.max(0, ...labels(axis, most).map(([, text]) => text.length));

  // The colours of a map beside it, from bottom to top.
  function bar(svg, plot, axis) {
    const left = plot.left + plot.width + 10;
    const steps = Array.from({ length: 64 }, (_, i) => [axis.log ? axis.from * (axis.to / axis.from) ** (1 - i / 63) : axis.to - (i / 63) * (axis.to - axis.from)]);
    add(svg, "image", { href: imageOf(steps, axis), x: left, y: plot.top, width: 10, height: plot.height, preserveAspectRatio: "none" });
    const scale = scaleOf(axis, plot.top + plot.height, plot.top);
    for (const [value, text] of labels(axis, plot.height / 34)) add(svg, "text", { class: "tick", x: left + 14, y: scale(value) + 4 }, text);
  }

  // Draws `chart` into `box`: its axes, the `marks` that it adds, and what it can `read` at a place.
  function draw(box, chart) {
    const [width, height] = [box.clientWidth, box.clientHeight];
    if (!width) return; // hidden
    const { x, y, colours, square } = chart;
    const across = square ? Math.min(width, height) : width;
    x.upright = Boolean(x.names) && longest(x, Infinity) + 4 > (across - 120) / x.names.length;
    const below = (x.upright ? longest(x, Infinity) + 8 : 18) + 16;
    const left = longest(y, y.names ? Infinity : height / 34) + (y.label ? 26 : 12);
    const plot = { left, top: 8, width: width - left - (colours ? 66 : 14), height: height - 8 - below, below };
    if (square) plot.width = plot.height = Math.max(20, Math.min(plot.width, plot.height));
    box.replaceChildren();
    const svg = add(box, "svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const [scaleX, scaleY] = axes(svg, plot, x, y);
    const inside = { x: plot.left, y: plot.top, width: plot.width, height: plot.height };
    const area = add(svg, "svg", inside); // marks outside of it are cut off
    add(area, "rect", { width: "100%", height: "100%", fill: "transparent" }); // feels the pointer
    chart.marks((name, attributes) => add(area, name, attributes), scaleX, scaleY);
    if (colours) bar(svg, plot, colours);
    const shown = add(area, "g", { class: "reading" });
    const note = Object.assign(document.createElement("div"), { className: "note", hidden: true });
    box.append(note);
    let start = null;
    const placeOf = (event) => {
      const frame = svg.getBoundingClientRect();
      const zoom = width / frame.width; // printed or zoomed
      return [(event.clientX - frame.left) * zoom - plot.left, (event.clientY - frame.top) * zoom - plot.top];
    };
    area.addEventListener("pointermove", (event) => {
      const [px, py] = placeOf(event);
      shown.replaceChildren();
      if (start !== null) add(shown, "rect", { class: "zoom", x: Math.min(start, px), width: Math.abs(px - start), height: plot.height });
      const reading = chart.read(px, py, scaleX, scaleY);
      note.hidden = !reading;
      if (!reading) return;
      if (reading.line !== undefined) add(shown, "path", { class: "grid", d: `M${reading.line} 0V${plot.height}` });
      for (const [cx, cy, fill] of reading.dots || []) add(shown, "circle", { cx, cy, r: 4, fill });
      note.replaceChildren(...reading.words.map(([text, colour]) => {
        const line = document.createElement("div");
        line.textContent = text;
        if (colour) line.style.borderLeft = `.5em solid ${colour}`;
        return line;
      }));
      const right = px > plot.width / 2;
      note.style.left = right ? "auto" : `${plot.left + px + 12}px`;
      note.style.right = right ? `${width - plot.left - px + 12}px` : "auto";
    });
    area.addEventListener("pointerleave", () => {
      shown.replaceChildren();
      note.hidden = true;
      start = null;
    });
    if (!chart.zoom) return;
    area.addEventListener("pointerdown", (event) => { [start] = placeOf(event); });
    area.addEventListener("pointerup", (event) => {
      const [end] = placeOf(event);
      const ends = [start, end].sort((a, b) => a - b).map(scaleX.back);
      const far = start !== null && Math.abs(end - start) > 8;
      start = null;
      if (far) chart.zoom(ends);
    });
    area.addEventListener("dblclick", () => chart.zoom(null));
  }

  return { add, draw, span, number, lineOf, bandOf, dotsOf, imageOf };
})();
