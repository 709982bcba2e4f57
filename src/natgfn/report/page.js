"use strict";
// Says what each chart of the page shows, and switches runs and axes on and off.
(() => {
  const { names, figures } = JSON.parse(document.getElementById("data").textContent);
  const { span, number, lineOf, bandOf, dotsOf, imageOf } = drawing;
  const COLOURS = ["#2f86c9", "#e07b1a", "#2a9d6f", "#c2558f", "#8a7bd8", "#b0912b", "#4fb3bf", "#d1495b"];
  const DASHES = ["none", "6 3", "2 2", "6 2 2 2"];
  const colour = (run) => COLOURS[run % COLOURS.length];
  const dash = (run) => DASHES[Math.floor(run / COLOURS.length) % DASHES.length];
  const hidden = new Set();
  const seen = (figure) => figure.series.filter((one) => !hidden.has(one.run));
  let axis = "updates";

  function nearest(values, wanted) {
    let best = 0;
    values.forEach((value, i) => { if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = i; });
    return best;
  }

  function curves(figure) {
    const series = seen(figure);
    const x = { ...span(figure.zoom || series.flatMap((one) => one[axis])), label: axis };
    const inside = (one, values) => values.filter((_, i) => one[axis][i] >= x.from && one[axis][i] <= x.to);
    const y = span(series.flatMap((one) => [one.middle, one.low || [], one.high || []].flatMap((v) => inside(one, v))), figure.log, 0.04);
    return {
      x, y,
      marks(add, scaleX, scaleY) {
        for (const one of series.filter((some) => some.low)) {
          const floor = figure.log ? y.from : -Infinity;
          add("path", { class: "band", fill: colour(one.run), d: bandOf(one[axis], one.low, one.high, scaleX, scaleY, floor) });
        }
        for (const one of series) {
          const alone = one.middle.length === 1;
          const d = (alone ? dotsOf : lineOf)(one[axis], one.middle, scaleX, scaleY);
          add("path", { class: alone ? "dots" : "line", stroke: colour(one.run), "stroke-dasharray": alone ? "none" : dash(one.run), d });
        }
      },
      read(px, _, scaleX, scaleY) {
        if (!series.length) return null;
        const wanted = scaleX.back(px);
        const at = series.map((one) => nearest(one[axis], wanted));
        const line = scaleX(series[0][axis][at[0]]);
        const words = series.map((one, i) => {
          const range = one.low ? ` (${number(one.low[at[i]])} to ${number(one.high[at[i]])})` : "";
          return [`${number(one.middle[at[i]])}${range}${names.length > 1 ? ` ${names[one.run]}` : ""}`, colour(one.run)];
        });
        const dots = series.map((one, i) => [scaleX(one[axis][at[i]]), scaleY(one.middle[at[i]]), colour(one.run)]);
        const when = `${axis} ${number(series[0][axis][at[0]], 6)}`;
        return { line, words: [[when], ...words], dots: dots.filter(([, py]) => Number.isFinite(py)) };
      },
      zoom(ends) {
        figure.zoom = ends;
        draw(figure);
      },
    };
  }

  function law(figure) {
    const series = seen(figure);
    const x = { ...span(series.flatMap((one) => one.target), true, 0.04), label: "target probability" };
    const y = { ...span(series.flatMap((one) => [...one.learned, ...one.target]), true, 0.04), label: "learned probability" };
    return {
      x, y,
      marks(add, scaleX, scaleY) {
        add("path", { class: "diagonal", d: lineOf([x.from, x.to], [x.from, x.to], scaleX, scaleY) });
        for (const one of series) {
          add("path", { class: "dots", stroke: colour(one.run), d: dotsOf(one.target, one.learned, scaleX, scaleY) });
        }
      },
      read(px, py, scaleX, scaleY) {
        let best = null;
        for (const one of series) {
          one.target.forEach((target, i) => {
            const [dx, dy] = [scaleX(target), scaleY(one.learned[i])];
            const far = Math.hypot(dx - px, dy - py);
            if (far < (best ? best.far : 20)) best = { far, dx, dy, one, i };
          });
        }
        if (!best) return null;
        const { one, i } = best;
        const words = [[`target ${number(one.target[i])}, learned ${number(one.learned[i])}`, colour(one.run)]];
        return { words: names.length > 1 ? [...words, [names[one.run]]] : words, dots: [[best.dx, best.dy, colour(one.run)]] };
      },
    };
  }

  function map(figure) {
    const { values, axes } = figure;
    const [rows, columns] = [values.length, values[0].length];
    const side = (count, at) => ({ from: -0.5, to: count - 0.5, label: axes[at], names: figure.names && figure.names[at] });
    const y = side(rows, 0);
    if (y.names) [y.from, y.to] = [y.to, y.from]; // the first row is at the top
    const colours = figure.names ? { from: 0, to: 1 } : span(values.flat(), figure.log);
    return {
      x: side(columns, 1), y, colours, square: rows === columns,
      marks(add) {
        const href = imageOf(figure.names ? values : [...values].reverse(), colours);
        add("image", { href, width: "100%", height: "100%", preserveAspectRatio: "none" });
      },
      read(px, py, scaleX, scaleY) {
        const [row, column] = [Math.round(scaleY.back(py)), Math.round(scaleX.back(px))];
        if (values[row]?.[column] === undefined) return null;
        const named = (at, i) => `${axes[at]} ${figure.names ? figure.names[at][i] : i}`;
        return { words: [[`${named(0, row)}, ${named(1, column)}`], [number(values[row][column])]] };
      },
    };
  }

  const charts = { curves, law, map };
  function draw(figure) {
    const box = document.getElementById(figure.id);
    if (figure.kind === "graph") graphs.draw(box, figure);
    else drawing.draw(box, charts[figure.kind](figure));
  }

  function press(button, on) {
    button.setAttribute("aria-pressed", String(on));
  }

  names.forEach((name, run) => {
    const button = document.createElement("button");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colour(run);
    button.type = "button";
    button.append(swatch, name);
    press(button, true);
    button.addEventListener("click", () => {
      const off = !hidden.delete(run);
      if (off) hidden.add(run);
      press(button, !off);
      document.querySelectorAll(`figure[data-run="${run}"]`).forEach((figure) => figure.classList.toggle("off", off));
      figures.filter((figure) => figure.series).forEach(draw);
    });
    document.getElementById("legend").append(button);
  });

  document.querySelectorAll("#axis button").forEach((button) => {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      document.querySelectorAll("#axis button").forEach((other) => press(other, other === button));
      figures.forEach((figure) => { figure.zoom = null; });
      figures.filter((figure) => figure.kind === "curves").forEach(draw);
    });
  });

  document.querySelectorAll("button.log").forEach((button) => {
    const figure = figures.find((one) => one.id === button.dataset.figure);
    button.addEventListener("click", () => {
      figure.log = !figure.log;
      press(button, figure.log);
      draw(figure);
    });
  });

  document.querySelectorAll(".threshold").forEach((choice) => {
    const slider = choice.querySelector("input");
    const figure = figures.find((one) => one.id === slider.dataset.figure);
    choice.hidden = false;
    slider.addEventListener("input", () => {
      figure.threshold = Number(slider.value);
      draw(figure);
    });
  });

  const moves = figures.some((figure) => figure.kind === "curves");
  document.getElementById("axis").hidden = !moves;
  document.getElementById("legend").hidden = names.length < 2;
  document.getElementById("controls").hidden = !moves && names.length < 2;

  // Called for every chart when it gets its size, and whenever that changes.
  const watcher = new ResizeObserver((entries) => {
    for (const entry of entries) draw(figures.find((figure) => figure.id === entry.target.id));
    document.body.dataset.drawn = "yes";
  });
  figures.forEach((figure) => watcher.observe(document.getElementById(figure.id)));
})();
